// Muon's momentum: m and u of all parts in one launch, the norm of each u in a second. Bytes an
// element: 4 + 4 of fp32 momentum (2 + 2 of bf16), a gradient of 2 or 4, u of 2.
#include "kernels/cuda/muon.h"
#include "kernels/cuda/update.cuh"
#include "kernels/formats.h"

enum { THREADS = 256 };

struct Momentum {
  float scale, momentum;
  uint32_t key; // of bf16 moments' noise
};

// Elements of one row from i on: returns u as it was stored, for its norm.
template <typename Grad, typename Moment, int N>
static __device__ __forceinline__ Pack<N> momentum(const DeviceTensor &t, int64_t i, int column,
                                                   const PartRow &at, const Momentum &f) {
  Pack<N> norm = {}, m = load_once<N>((const Moment *)t.m + i), u;
  if (t.norm) norm = at_columns<N>(t.norm_before, column, (int)t.cols);
  const Pack<N> g = gradient<Grad, N>(t, i, norm);
#pragma unroll
  for (int k = 0; k < N; k++) {
    const float new_part = (1 - f.momentum) * (f.scale * g.v[k]);
    m.v[k] = f.momentum * m.v[k] + new_part;
    u.v[k] = f.momentum * m.v[k] + new_part;
    if constexpr (std::is_same_v<Moment, bf16_bits>)
      m.v[k] = moment_round(m.v[k], moment_noise(f.key, i + k));
  }
  store_once((Moment *)t.m + i, m);
  store_pack(at.direction + column, u);
  return u;
}

// Sums of squares by part, whose number is known only at run time: no array in local memory.
struct PartSums {
  float of[MOST_PARTS] = {};
  __device__ __forceinline__ void add(int slot, float value) {
#pragma unroll
    for (int k = 0; k < MOST_PARTS; k++) of[k] += slot == k ? value : 0;
  }
};

// Launch: UPDATE_BLOCK elements of one tensor.
template <typename Grad, typename Moment>
static __global__ __launch_bounds__(THREADS) void momentum_kernel(ParamTable table,
                                                                  const StepState *state) {
  __shared__ float scratch[MOST_PARTS][32];
  __shared__ PartList parts;
  if (!state->applied) return;
  const auto [tensor, block] = table.momentum_order[blockIdx.x];
  const DeviceTensor t = table.tensors[tensor];
  parts.fill(t);
  const Momentum f = {state->scale, (float)state->hyper.momentum,
                      moment_key(state->updates, t.index)};
  const int64_t begin = (block - t.first_momentum) * UPDATE_BLOCK,
                end = min(begin + (int64_t)UPDATE_BLOCK, t.rows * t.cols);
  const BlockOfRows rows(t, begin);
  PartSums sums;
  const auto all = [&](auto width) {
    constexpr int N = decltype(width)::value;
#pragma unroll 2
    for (int64_t i = begin + threadIdx.x * N; i < end; i += THREADS * N) {
      const PartRow at = parts.of(rows.row(i), t.cols);
      sums.add(at.slot, square_sum(momentum<Grad, Moment, N>(t, i, rows.column(i), at, f)));
    }
  };
  if (t.cols % 4 == 0)
    all(Width<4>());
  else
    all(Width<1>());
  for (int k = 0; k < t.part_count; k++) {
    const float sum = block_sum(sums.of[k], scratch[k]);
    if (threadIdx.x == 0) table.momentum_sums[(int64_t)block * MOST_PARTS + k] = sum;
  }
}

// The sum of squares of a part of the tensor, by the whole block.
static __device__ float squares_of(const ParamTable &table, const DevicePart &part, int slot,
                                   float *scratch) {
  const float *sums = table.momentum_sums + part.first_block * MOST_PARTS + slot;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < part.blocks; i += THREADS) sum += sums[i * MOST_PARTS];
  return block_sum(sum, scratch);
}

// Launch: a block a part.
static __global__ __launch_bounds__(THREADS) void norms_kernel(ParamTable table,
                                                               const StepState *state) {
  __shared__ float scratch[MOST_PARTS][32];
  if (!state->applied) return;
  const DevicePart part = table.parts[blockIdx.x];
  float own = 0, largest = 0;
  for (int slot = 0; slot < part.slots; slot++) {
    const float sum = squares_of(table, part, slot, scratch[slot]);
    if (slot == part.slot) own = sum;
    largest = fmaxf(largest, sum);
  }
  if (threadIdx.x > 0) return;
  const float norm = sqrtf(own);
  const bool is_noise = norm <= (float)MUON_NOISE * sqrtf(largest);
  *part.factor = is_noise ? 0 : 1 / fmaxf(norm, (float)MUON_EPS);
}

void launch_momentum(const ParamTable *table, bool moments_bf16, const StepState *state,
                     cudaStream_t stream) {
  if (table->momentum_blocks == 0) return;
  by_gradient(table->grads_fp32, [&](auto *grad) {
    using Grad = std::remove_pointer_t<decltype(grad)>;
    const unsigned blocks = (unsigned)table->momentum_blocks;
    if (moments_bf16)
      momentum_kernel<Grad, bf16_bits><<<blocks, THREADS, 0, stream>>>(*table, state);
    else
      momentum_kernel<Grad, float><<<blocks, THREADS, 0, stream>>>(*table, state);
  });
  LAUNCHED();
  norms_kernel<<<(unsigned)table->part_count, THREADS, 0, stream>>>(*table, state);
  LAUNCHED();
}

// Launch: blocks of a matrix in x, matrices in y.
template <int N>
static __global__
__launch_bounds__(THREADS) void normalize_kernel(int64_t elements, const bf16_bits *from,
                                                 const float *factors, bf16_bits *to) {
  const int64_t first = blockIdx.y * elements;
  const float factor = factors[blockIdx.y];
  for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N; i < elements;
       i += (int64_t)gridDim.x * THREADS * N) {
    Pack<N> p = load_pack<N>(from + first + i);
#pragma unroll
    for (int k = 0; k < N; k++) p.v[k] *= factor;
    store_pack(to + first + i, p);
  }
}

static __global__ void ones_kernel(int64_t count, float *to) {
  const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i < count) to[i] = 1;
}

void launch_normalize(int64_t count, int64_t elements, const bf16_bits *from, float *factors,
                      bf16_bits *to, cudaStream_t stream) {
  const dim3 blocks(min(blocks_for(elements, 8 * 4 * THREADS), 1024u), (unsigned)count);
  by_width(elements, [&](auto width, int) {
    normalize_kernel<decltype(width)::value>
        <<<blocks, THREADS, 0, stream>>>(elements, from, factors, to);
  });
  ones_kernel<<<blocks_for(count, THREADS), THREADS, 0, stream>>>(count, factors);
  LAUNCHED();
}
