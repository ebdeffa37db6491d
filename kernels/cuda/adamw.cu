// AdamW over all tensors, and the bf16 compute copies. arXiv 1711.05101, as torch.optim.AdamW:
//   g' = clip g      m = b1 m + (1 - b1) g'      v = b2 v + (1 - b2) g'^2
//   W = (1 - lr decay) W - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
//   compute = bf16(W)      folded = bf16(W wn), with the wn of this update
// Two launches: norm weights first, since the folded copies read them; then everything else. Before
// them one thread decides on the device whether the update happens (loss and norm finite), counts
// it, and prepares its factors: so nothing has to come back to the host within a step. Bytes an
// element: 12 + 12 of fp32 state, a gradient of 2 or 4, a copy of 2 (4 for a tied embedding).
// Launch: a block UPDATE_BLOCK elements of one tensor, 4 a thread at a time.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/tensors.cuh"

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
};

static __device__ __forceinline__ float update(float w, float &m, float &v, float g,
                                               const Factors &f) {
  g *= f.clip;
  m = f.beta1 * m + (1 - f.beta1) * g;
  v = f.beta2 * v + (1 - f.beta2) * g * g;
  return f.keep * w - f.step_size * m / (sqrtf(v) * f.per_root + f.eps);
}

template <typename Grad>
static __device__ __forceinline__ Pack<4> update_four(const DeviceTensor &t, int64_t i,
                                                      const Factors &f) {
  float4 w = __ldcs(reinterpret_cast<const float4 *>(t.master + i));
  float4 m = __ldcs(reinterpret_cast<const float4 *>(t.m + i));
  float4 v = __ldcs(reinterpret_cast<const float4 *>(t.v + i));
  const Pack<4> g = load_pack<4>((const Grad *)t.grad + i);
  w.x = update(w.x, m.x, v.x, g.v[0], f);
  w.y = update(w.y, m.y, v.y, g.v[1], f);
  w.z = update(w.z, m.z, v.z, g.v[2], f);
  w.w = update(w.w, m.w, v.w, g.v[3], f);
  __stcs(reinterpret_cast<float4 *>(t.master + i), w);
  __stcs(reinterpret_cast<float4 *>(t.m + i), m);
  __stcs(reinterpret_cast<float4 *>(t.v + i), v);
  return four(w);
}

// column: of element i.
static __device__ __forceinline__ void copy_four(const DeviceTensor &t, int64_t i, int column,
                                                 Pack<4> w) {
  if (t.compute) *reinterpret_cast<uint2 *>(t.compute + i) = narrow(w);
  if (!t.folded) return;
  const int cols = (int)t.cols;
  Pack<4> wn = {1, 1, 1, 1};
  if (t.norm && cols % 4 == 0)
    wn = load_pack<4>(t.norm + column);
  else if (t.norm)
    wn = {t.norm[column], t.norm[(column + 1) % cols], t.norm[(column + 2) % cols],
          t.norm[(column + 3) % cols]};
#pragma unroll
  for (int k = 0; k < 4; k++) w.v[k] *= wn.v[k];
  *reinterpret_cast<uint2 *>(t.folded + i) = narrow(w);
}

// UPDATE: the update and the copies; otherwise the copies only.
template <typename Grad, bool UPDATE>
static __global__ __launch_bounds__(THREADS) void adamw_kernel(ParamTable table,
                                                               int64_t first_block,
                                                               const StepState *state) {
  if (UPDATE && !state->applied) return;
  const int64_t block = first_block + blockIdx.x;
  const DeviceTensor t = table.tensors[table.update_owner[block]];
  Factors f = {};
  if (UPDATE) {
    const AdamW &a = state->hyper;
    f = {state->clip,     state->step_size,
         state->per_root, (float)(1 - a.learning_rate * (t.decay ? a.weight_decay : 0)),
         (float)a.beta1,  (float)a.beta2,
         (float)a.eps};
  }
  const int64_t begin = (block - t.first_update) * UPDATE_BLOCK,
                end = min(begin + (int64_t)UPDATE_BLOCK, t.rows * t.cols);
  const int start_column = (int)(begin % t.cols), cols = (int)t.cols;
#pragma unroll 2
  for (int64_t i = begin + threadIdx.x * 4; i + 3 < end; i += THREADS * 4) {
    const Pack<4> w = UPDATE ? update_four<Grad>(t, i, f) : load_pack<4>(t.master + i);
    copy_four(t, i, (start_column + (int)(i - begin)) % cols, w);
  }
  const int64_t i = end - end % 4 + threadIdx.x; // the last one to three elements of a tensor
  if (i >= end) return;
  if (UPDATE)
    t.master[i] =
        update(t.master[i], t.m[i], t.v[i], load_pack<1>((const Grad *)t.grad + i).v[0], f);
  const float wn = t.norm ? t.norm[i % t.cols] : 1.0f;
  if (t.compute) t.compute[i] = bf16_from_float(t.master[i]);
  if (t.folded) t.folded[i] = bf16_from_float(t.master[i] * wn);
}

template <typename Grad, bool UPDATE> static void launch(const Cuda *c) {
  const int64_t norms = c->table.norm_blocks, rest = c->table.update_blocks - norms;
  const auto kernel = adamw_kernel<Grad, UPDATE>;
  if (norms > 0) kernel<<<(unsigned)norms, THREADS, 0, c->gpu.stream>>>(c->table, 0, c->state);
  if (rest > 0) kernel<<<(unsigned)rest, THREADS, 0, c->gpu.stream>>>(c->table, norms, c->state);
  LAUNCHED();
}

void cuda_adamw(Backend *be, const ParamTensor *list, int count) {
  Cuda *c = cuda_of(be);
  cuda_table(c, list, count);
  factors_kernel<<<1, 1, 0, c->gpu.stream>>>(c->state);
  LAUNCHED();
  by_gradient(c->table.grads_fp32,
              [&](auto *grad) { launch<std::remove_pointer_t<decltype(grad)>, true>(c); });
}

void cuda_refresh(Backend *be, const ParamTensor *list, int count) {
  cuda_table(cuda_of(be), list, count);
  launch<float, false>(cuda_of(be));
}
