// Cross entropy's loss and gradient from logits whose row maxima and sums programs/logits.cu has
// left in parts.
//     loss = lse - logit[target]      dlogits' = r scale (exp(logit - lse) - onehot(target))
// Launch: a block a row. The row's parts are joined in a fixed order; then, for the gradient, one
// pass over it.
#include "kernels/cuda/common.cuh"
#include "kernels/fused/epilogue.cuh"
#include "kernels/fused/kernels.h"

enum { THREADS = 512 };

static __device__ __forceinline__ OnlineSoftmax join_warp(OnlineSoftmax a) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    OnlineSoftmax other;
    other.max = __shfl_xor_sync(0xffffffffu, a.max, lanes);
    other.sum = __shfl_xor_sync(0xffffffffu, a.sum, lanes);
    a.merge(other);
  }
  return a;
}

// Log-sum-exp of row m, in every thread.
static __device__ float row_lse(const RowStat &p, int64_t m, float2 *scratch /* [32] */) {
  const MaxSum *parts = reinterpret_cast<const MaxSum *>(p.data);
  OnlineSoftmax all;
  for (int i = (int)threadIdx.x; i < p.parts; i += THREADS) {
    OnlineSoftmax part;
    part.max = parts[i * p.stride + m].max;
    part.sum = parts[i * p.stride + m].sum;
    all.merge(part);
  }
  all = join_warp(all);
  const int lane = threadIdx.x % 32;
  if (lane == 0) scratch[threadIdx.x / 32] = {all.max, all.sum};
  __syncthreads();
  OnlineSoftmax of_warp;
  if (lane < THREADS / 32) of_warp.max = scratch[lane].x, of_warp.sum = scratch[lane].y;
  of_warp = join_warp(of_warp);
  return of_warp.max + logf(of_warp.sum);
}

template <bool GRADIENT>
static __global__ __launch_bounds__(THREADS) void cross_entropy_kernel(
    int64_t V, RowStat softmax, RowScale r, float grad_scale, bf16_bits *logits,
    const int32_t *targets, float *row_loss, float *s) {
  __shared__ float2 of_warps[32];
  __shared__ float sums[32];
  const int64_t m = blockIdx.x;
  const int target = targets[m];
  bf16_bits *row = logits + m * V;
  const float target_logit = bf16_to_float(row[target]); // before any thread overwrites it
  const float lse = row_lse(softmax, m, of_warps);       // has a barrier
  if (threadIdx.x == 0) row_loss[m] = lse - target_logit;
  if (!GRADIENT) return;
  const float scale = row_rstd(r, m) * grad_scale;
  float sum = 0;
#pragma unroll 4
  for (int at = (int)threadIdx.x * 8; at < V; at += THREADS * 8) {
    Pack<8> p = load_pack<8>(row + at);
    Pack<8> g;
#pragma unroll
    for (int i = 0; i < 8; i++)
      g.v[i] = scale * (__expf(p.v[i] - lse) - (at + i == target ? 1.0f : 0.0f));
    store_pack(row + at, g);
#pragma unroll
    for (int i = 0; i < 8; i++) sum += g.v[i] * p.v[i];
  }
  sum = block_sum(sum, sums);
  if (threadIdx.x == 0) s[m] = sum;
}

void launch_fused_cross_entropy(int64_t M, int64_t V, RowStat softmax, RowScale r,
                                float grad_scale, act_t *logits, const int32_t *targets,
                                float *row_loss, RowStat *s, cudaStream_t stream) {
  const auto kernel = s ? cross_entropy_kernel<true> : cross_entropy_kernel<false>;
  kernel<<<(unsigned)M, THREADS, 0, stream>>>(V, softmax, r, grad_scale, bits(logits), targets,
                                              row_loss, s ? one_part(s) : nullptr);
  LAUNCHED();
}
