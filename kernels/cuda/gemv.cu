// A product of one row, for generation: a walk over the weights, which is all that it costs.
// Launch: a warp two rows of W, 8 warps a block. A lane takes every 32nd access of 16 bytes, and
// AHEAD of each row are under way before the first is used.
#include "kernels/cuda/common.cuh"

enum { GEMV_WARPS = 8, OUTPUTS = 2, AHEAD = 4 };

template <int N> using Raw = std::conditional_t<N == 1, bf16_bits, Bits<N>>;
static __device__ __forceinline__ Pack<1> widen(bf16_bits b) {
  return {bf16_to_float(b)};
}

template <int N>
static __global__ __launch_bounds__(GEMV_WARPS * 32) void gemv_kernel(
    int64_t rows, int K, const bf16_bits *__restrict__ a, const bf16_bits *__restrict__ W,
    const bf16_bits *add, const int32_t *row, bf16_bits *out) {
  const int64_t n = ((int64_t)blockIdx.x * GEMV_WARPS + threadIdx.x / 32) * OUTPUTS;
  const int lane = (int)threadIdx.x % 32, packs = K / N;
  if (n >= rows) return;
  const int outputs = rows - n < OUTPUTS ? 1 : OUTPUTS;
  const Raw<N> *of_a = reinterpret_cast<const Raw<N> *>(a), *of_W[OUTPUTS];
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++)
    of_W[i] = reinterpret_cast<const Raw<N> *>(W + (n + min(i, outputs - 1)) * K);
  float sum[OUTPUTS] = {};
  for (int k = lane; k < packs; k += 32 * AHEAD) {
    Raw<N> w[OUTPUTS][AHEAD], x[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      const int at = min(k + 32 * j, packs - 1);
      x[j] = of_a[at];
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++) w[i][j] = __ldcs(of_W[i] + at);
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      if (k + 32 * j >= packs) break;
      const Pack<N> p = widen(x[j]);
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++) {
        const Pack<N> q = widen(w[i][j]);
#pragma unroll
        for (int e = 0; e < N; e++) sum[i] += p.v[e] * q.v[e];
      }
    }
  }
  if (row) out += *row * rows;
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++) {
    const float total = warp_sum(sum[i]);
    if (lane == 0 && i < outputs)
      out[n + i] = bf16_from_float(total + (add ? bf16_to_float(add[n + i]) : 0.0f));
  }
}

void launch_gemv(int64_t N, int64_t K, const act_t *a, const act_t *W, const act_t *add,
                 const int32_t *row, act_t *out, cudaStream_t stream) {
  by_width(K, [&](auto width, int) {
    gemv_kernel<decltype(width)::value>
        <<<blocks_for(N, GEMV_WARPS * OUTPUTS), GEMV_WARPS * 32, 0, stream>>>(
            N, (int)K, bits(a), bits(W), add ? bits(add) : nullptr, row, bits(out));
  });
}
