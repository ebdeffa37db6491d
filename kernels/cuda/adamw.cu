// AdamW over all tensors, and the bf16 compute copies. arXiv 1711.05101, as torch.optim.AdamW:
//   g' = clip g      m = b1 m + (1 - b1) g'      v = b2 v + (1 - b2) g'^2
//   W = (1 - lr decay) W - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
//   compute = bf16(W)      folded = bf16(W wn), with the wn of this update
// and g = grad + grad_folded wn, with the wn that the forward used (grads.cu keeps it).
// Two launches: norm weights first, since the folded copies read them; then everything else. Before
// them one thread decides on the device whether the update happens (loss and norm finite), counts
// it, and prepares its factors: so nothing has to come back to the host within a step. Bytes an
// element: 12 + 12 of fp32 state (8 + 8 with bf16 moments, rounded after the step is made), a
// gradient of 2 or 4, a copy of 2 (twice both for a tied embedding).
// Launch: a block UPDATE_BLOCK elements of one tensor, 4 a thread at a time.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/tensors.cuh"
#include "kernels/moments.h"

enum { THREADS = 256 };

static __global__ void factors_kernel(StepState *state) {
  state->applied = isfinite(state->loss) && isfinite(state->grad_norm);
  if (!state->applied) return;
  const AdamW a = state->hyper;
  const double t = (double)++state->updates;
  const bool clipped = a.clip_norm > 0 && state->grad_norm > a.clip_norm;
  state->clip = clipped ? (float)(a.clip_norm / state->grad_norm) : 1.0f;
  state->step_size = (float)(a.learning_rate / (1 - pow(a.beta1, t)));
  state->per_root = (float)(1 / sqrt(1 - pow(a.beta2, t)));
}

struct Factors {
  float clip, step_size, per_root, keep, beta1, beta2, eps;
  uint32_t key; // of bf16 moments' noise
};

static __device__ __forceinline__ float update(float w, float &m, float &v, float g,
                                               const Factors &f) {
  g *= f.clip;
  m = f.beta1 * m + (1 - f.beta1) * g;
  v = f.beta2 * v + (1 - f.beta2) * g * g;
  return f.keep * w - f.step_size * m / (sqrtf(v) * f.per_root + f.eps);
}

// Of a vector over the columns of a matrix, from one column on; past the last one comes the first.
template <int N>
static __device__ __forceinline__ Pack<N> at_columns(const float *vector, int column, int cols) {
  if (N > 1 && cols % N == 0) return load_pack<N>(vector + column);
  Pack<N> values;
#pragma unroll
  for (int k = 0; k < N; k++) values.v[k] = vector[(column + k) % cols];
  return values;
}

// From element i of the tensor, which is in that column.
template <typename Grad, int N>
static __device__ __forceinline__ Pack<N> gradient(const DeviceTensor &t, int64_t i, int column) {
  Pack<N> g = {};
  if (t.grad) g = load_pack<N>((const Grad *)t.grad + i);
  if (!t.grad_folded) return g;
  const Pack<N> folded = load_pack<N>((const Grad *)t.grad_folded + i),
                wn = at_columns<N>(t.norm_before, column, (int)t.cols);
#pragma unroll
  for (int k = 0; k < N; k++) g.v[k] += folded.v[k] * wn.v[k];
  return g;
}

template <typename Grad, typename Moment, int N>
static __device__ __forceinline__ Pack<N> update_pack(const DeviceTensor &t, int64_t i, int column,
                                                      const Factors &f) {
  Moment *const m_at = (Moment *)t.m + i, *const v_at = (Moment *)t.v + i;
  Pack<N> w = load_once<N>(t.master + i), m = load_once<N>(m_at), v = load_once<N>(v_at);
  const Pack<N> g = gradient<Grad, N>(t, i, column);
#pragma unroll
  for (int k = 0; k < N; k++) w.v[k] = update(w.v[k], m.v[k], v.v[k], g.v[k], f);
  store_once(t.master + i, w);
  if constexpr (std::is_same_v<Moment, bf16_bits>) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      const uint32_t noise = moment_noise(f.key, i + k);
      m.v[k] = moment_round(m.v[k], noise);
      v.v[k] = moment_round(v.v[k], noise >> 16);
    }
  }
  store_once(m_at, m);
  store_once(v_at, v);
  return w;
}

template <int N>
static __device__ __forceinline__ void copy_pack(const DeviceTensor &t, int64_t i, int column,
                                                 const Pack<N> &w) {
  Pack<N> copy = w;
  if (t.compute) store_pack(t.compute + i, copy);
  if (!t.folded) return;
  const Pack<N> wn = at_columns<N>(t.norm, column, (int)t.cols);
#pragma unroll
  for (int k = 0; k < N; k++) copy.v[k] = w.v[k] * wn.v[k];
  store_pack(t.folded + i, copy);
}

// The update and the copies; Moment void: the copies only.
template <typename Grad, typename Moment, int N>
static __device__ __forceinline__ void step(const DeviceTensor &t, int64_t i, int column,
                                            const Factors &f) {
  if constexpr (std::is_void_v<Moment>)
    copy_pack(t, i, column, load_pack<N>((const float *)t.master + i));
  else
    copy_pack(t, i, column, update_pack<Grad, Moment, N>(t, i, column, f));
}

static __device__ __forceinline__ Factors factors_of(const DeviceTensor &t,
                                                     const StepState *state) {
  const AdamW &a = state->hyper;
  const float keep = (float)(1 - a.learning_rate * (t.decay ? a.weight_decay : 0));
  return {state->clip,    state->step_size, state->per_root, keep,
          (float)a.beta1, (float)a.beta2,   (float)a.eps,    moment_key(state->updates, t.index)};
}

template <typename Grad, typename Moment>
static __global__ __launch_bounds__(THREADS) void adamw_kernel(ParamTable table,
                                                               int64_t first_block,
                                                               const StepState *state) {
  constexpr bool UPDATE = !std::is_void_v<Moment>;
  if (UPDATE && !state->applied) return;
  const int64_t block = first_block + blockIdx.x;
  const DeviceTensor t = table.tensors[table.update_owner[block]];
  const Factors f = UPDATE ? factors_of(t, state) : Factors{};
  const int64_t begin = (block - t.first_update) * UPDATE_BLOCK,
                end = min(begin + (int64_t)UPDATE_BLOCK, t.rows * t.cols);
  const int start_column = (int)(begin % t.cols), cols = (int)t.cols;
#pragma unroll 2
  for (int64_t i = begin + threadIdx.x * 4; i + 3 < end; i += THREADS * 4)
    step<Grad, Moment, 4>(t, i, (start_column + (int)(i - begin)) % cols, f);
  const int64_t i = end - end % 4 + threadIdx.x; // the last one to three elements of a tensor
  if (i < end) step<Grad, Moment, 1>(t, i, (int)(i % cols), f);
}

template <typename Grad, typename Moment> static void launch(const Cuda *c) {
  const int64_t norms = c->table.norm_blocks, rest = c->table.update_blocks - norms;
  const auto kernel = adamw_kernel<Grad, Moment>;
  if (norms > 0) kernel<<<(unsigned)norms, THREADS, 0, c->gpu.stream>>>(c->table, 0, c->state);
  if (rest > 0) kernel<<<(unsigned)rest, THREADS, 0, c->gpu.stream>>>(c->table, norms, c->state);
  LAUNCHED();
}

void cuda_adamw(Backend *be, const ParamTensor *list, int count) {
  Cuda *c = cuda_of(be);
  cuda_table(c, list, count);
  factors_kernel<<<1, 1, 0, c->gpu.stream>>>(c->state);
  LAUNCHED();
  by_gradient(c->table.grads_fp32, [&](auto *grad) {
    using Grad = std::remove_pointer_t<decltype(grad)>;
    if (c->config.moments == MOMENTS_BF16)
      launch<Grad, bf16_bits>(c);
    else
      launch<Grad, float>(c);
  });
}

void cuda_refresh(Backend *be, const ParamTensor *list, int count) {
  cuda_table(cuda_of(be), list, count);
  launch<float, void>(cuda_of(be));
}
