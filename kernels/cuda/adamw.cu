// AdamW over all tensors, and the compute copies. arXiv 1711.05101, as torch.optim.AdamW:
//   g' = clip g      m = b1 m + (1 - b1) g'      v = b2 v + (1 - b2) g'^2
//   W = (1 - lr decay) W - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
//   compute = bf16(W)      folded = bf16(W wn), with the wn of this update; or both FP8 copies
// and g = grad + grad_folded wn, with the wn that the forward used (grads.cu keeps it).
// Three launches: norm weights first, since the folded copies read them; then what has bf16 copies,
// then what has FP8 copies (weight_tile.cuh). Before them one thread decides on the device whether
// the update happens (loss and norm finite), counts it, and prepares its factors: so nothing has to
// come back to the host within a step. Bytes an element: 12 + 12 of fp32 state (8 + 8 with bf16
// moments, rounded after the step is made), a gradient of 2 or 4, copies of 2 (twice both for a
// tied embedding).
// Launch: a block UPDATE_BLOCK elements of one tensor, 4 a thread at a time; or a tile.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/tensors.cuh"
#include "kernels/cuda/weight_tile.cuh"
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

template <int N> struct Elements { Pack<N> w, m, v, g; };

// From element i of the tensor on. norm: wn as the forward used it, of their columns.
template <typename Grad, typename Moment, int N>
static __device__ __forceinline__ Elements<N> load_elements(const DeviceTensor &t, int64_t i,
                                                            const Pack<N> &norm) {
  Elements<N> e = {load_once<N>(t.master + i),
                   load_once<N>((const Moment *)t.m + i),
                   load_once<N>((const Moment *)t.v + i),
                   {}};
  if (t.grad) e.g = load_pack<N>((const Grad *)t.grad + i);
  if (!t.grad_folded) return e;
  const Pack<N> folded = load_pack<N>((const Grad *)t.grad_folded + i);
#pragma unroll
  for (int k = 0; k < N; k++) e.g.v[k] += folded.v[k] * norm.v[k];
  return e;
}

// Updates and stores them, and leaves the new weights in e.
template <typename Moment, int N>
static __device__ __forceinline__ void update_elements(const DeviceTensor &t, int64_t i,
                                                       Elements<N> &e, const Factors &f) {
#pragma unroll
  for (int k = 0; k < N; k++) e.w.v[k] = update(e.w.v[k], e.m.v[k], e.v.v[k], e.g.v[k], f);
  store_once(t.master + i, e.w);
  if constexpr (std::is_same_v<Moment, bf16_bits>) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      const uint32_t noise = moment_noise(f.key, i + k);
      e.m.v[k] = moment_round(e.m.v[k], noise);
      e.v.v[k] = moment_round(e.v.v[k], noise >> 16);
    }
  }
  store_once((Moment *)t.m + i, e.m);
  store_once((Moment *)t.v + i, e.v);
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
  if constexpr (std::is_void_v<Moment>) {
    copy_pack(t, i, column, load_pack<N>((const float *)t.master + i));
  } else {
    Pack<N> norm = {};
    if (t.norm) norm = at_columns<N>(t.norm_before, column, (int)t.cols);
    Elements<N> e = load_elements<Grad, Moment, N>(t, i, norm);
    update_elements<Moment>(t, i, e, f);
    copy_pack(t, i, column, e.w);
  }
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

// Of tensors with FP8 copies, a tile a block. An update that is left out writes the copies, too,
// since their scales may be new.
template <typename Grad, typename Moment>
static __global__ __launch_bounds__(WEIGHT_THREADS,
                                    2) void adamw_fp8_kernel(ParamTable table, int64_t first_block,
                                                             const StepState *state) {
  __shared__ uint32_t by_col[WEIGHT_TILE][WEIGHT_TILE / 4];
  constexpr bool UPDATE = !std::is_void_v<Moment>;
  const bool update = UPDATE && state->applied;
  const int64_t block = first_block + blockIdx.x;
  const DeviceTensor t = table.tensors[table.update_owner[block]];
  const Factors f = update ? factors_of(t, state) : Factors{};
  WeightTile tile = weight_tile(t, block, by_col);
  const int column = tile.column();
  Pack<4> before = {}, norm = {1, 1, 1, 1};
  if (t.norm && column < t.cols) {
    if (UPDATE) before = load_pack<4>((const float *)t.norm_before + column);
    norm = load_pack<4>(t.norm + column);
  }
#pragma unroll 1
  for (int q = 0; q < 4; q++) {
    Elements<4> e[4] = {};
#pragma unroll
    for (int k = 0; k < 4; k++) { // their loads are under way together
      const int64_t i = tile.row(q, k) * t.cols + column;
      if (!tile.inside(q, k)) continue;
      if constexpr (UPDATE) {
        if (update) e[k] = load_elements<Grad, Moment, 4>(t, i, before);
      }
      if (!update) e[k].w = load_once<4>(t.master + i);
    }
    Pack<4> values[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int64_t i = tile.row(q, k) * t.cols + column;
      const bool inside = tile.inside(q, k);
      if constexpr (UPDATE) {
        if (update && inside) update_elements<Moment>(t, i, e[k], f);
      }
#pragma unroll
      for (int c = 0; c < 4; c++) values[k].v[c] = e[k].w.v[c] * norm.v[c];
      if (t.compute && inside) store_pack(t.compute + i, e[k].w);
    }
    tile.store(q, values);
  }
  tile.finish();
  tile.report(block);
}

// The largest values of those that have no scale yet.
static __global__
__launch_bounds__(WEIGHT_THREADS) void largest_weight_kernel(ParamTable table,
                                                             int64_t first_block) {
  const int64_t block = first_block + blockIdx.x;
  const DeviceTensor t = table.tensors[table.update_owner[block]];
  if (t.scaling->scale != 0) return;
  WeightTile tile = weight_tile(t, block, nullptr);
  for (int i = 0; i < 16; i++)
    for (int c = tile.column(); tile.inside(i / 4, i % 4) && c < tile.column() + 4; c++)
      tile.count(t.master[tile.row(i / 4, i % 4) * t.cols + c] * (t.norm ? t.norm[c] : 1));
  tile.report(block);
}

template <typename Grad, typename Moment> static void launch(const Cuda *c) {
  const ParamTable &table = c->table;
  const auto blocks = [&](auto kernel, int threads, int64_t first, int64_t end) {
    if (first == end) return;
    kernel<<<(unsigned)(end - first), threads, 0, c->gpu.stream>>>(table, first, c->state);
    LAUNCHED();
  };
  blocks(adamw_kernel<Grad, Moment>, THREADS, 0, table.norm_blocks);
  blocks(adamw_kernel<Grad, Moment>, THREADS, table.norm_blocks, table.plain_blocks);
  blocks(adamw_fp8_kernel<Grad, Moment>, WEIGHT_THREADS, table.plain_blocks, table.update_blocks);
}

void cuda_adamw(Backend *be, const ParamTensor *list, int count) {
  Cuda *c = cuda_of(be);
  cuda_table(c, list, count);
  factors_kernel<<<1, 1, 0, c->gpu.stream>>>(c->state);
  LAUNCHED();
  if (c->scalings)
    launch_scalings_update(c->scalings, c->table_count, c->config.scaling_count, c->state,
                           c->gpu.stream);
  by_gradient(c->table.grads_fp32, [&](auto *grad) {
    using Grad = std::remove_pointer_t<decltype(grad)>;
    if (c->config.moments == MOMENTS_BF16)
      launch<Grad, bf16_bits>(c);
    else
      launch<Grad, float>(c);
  });
}

void cuda_largest_weights(const Cuda *c) {
  const int64_t first = c->table.plain_blocks, blocks = c->table.update_blocks - first;
  largest_weight_kernel<<<(unsigned)blocks, WEIGHT_THREADS, 0, c->gpu.stream>>>(c->table, first);
  LAUNCHED();
}

void cuda_copy_weights(const Cuda *c) {
  launch<float, void>(c);
}
