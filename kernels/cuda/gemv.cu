// A product of one row, for generation: a walk over the weights, which is all that it costs.
// Launch: a warp two rows of W, 8 warps a block. A lane takes every 32nd access of 16 bytes, and
// AHEAD of each row are under way before the first is used.
#include "kernels/cuda/formats.cuh"

enum { GEMV_WARPS = 8, OUTPUTS = 2, AHEAD = 4 };

// scaling_a, scaling_W: of copies, or NULL.
template <class Format>
static __global__ __launch_bounds__(GEMV_WARPS * 32) void gemv_kernel(
    int64_t rows, int K, const typename Format::Element *__restrict__ a, const Scaling *scaling_a,
    const typename Format::Element *__restrict__ W, const Scaling *scaling_W, const bf16_bits *add,
    const int32_t *row, bf16_bits *out) {
  using Raw = typename Format::Raw;
  const int64_t n = ((int64_t)blockIdx.x * GEMV_WARPS + threadIdx.x / 32) * OUTPUTS;
  const int lane = (int)threadIdx.x % 32, packs = K / Format::WIDTH;
  if (n >= rows) return;
  const int outputs = rows - n < OUTPUTS ? 1 : OUTPUTS;
  const Raw *of_a = reinterpret_cast<const Raw *>(a), *of_W[OUTPUTS];
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++)
    of_W[i] = reinterpret_cast<const Raw *>(W + (n + min(i, outputs - 1)) * K);
  float sum[OUTPUTS] = {};
  for (int k = lane; k < packs; k += 32 * AHEAD) {
    Raw w[OUTPUTS][AHEAD], x[AHEAD];
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
      const auto p = Format::values(x[j]);
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++) {
        const auto q = Format::values(w[i][j]);
#pragma unroll
        for (int e = 0; e < Format::WIDTH; e++) sum[i] += p.v[e] * q.v[e];
      }
    }
  }
  const float inverse = scaling_a ? scaling_a->inverse * scaling_W->inverse : 1;
  if (row) out += *row * rows;
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++) {
    const float total = warp_sum(sum[i]) * inverse;
    if (lane == 0 && i < outputs)
      out[n + i] = bf16_from_float(total + (add ? bf16_to_float(add[n + i]) : 0.0f));
  }
}

static unsigned gemv_blocks(int64_t N) {
  return blocks_for(N, GEMV_WARPS * OUTPUTS);
}

void launch_gemv(int64_t N, int64_t K, const act_t *a, const act_t *W, const act_t *add,
                 const int32_t *row, act_t *out, cudaStream_t stream) {
  by_width(K, [&](auto width, int) {
    gemv_kernel<Bf16<decltype(width)::value>><<<gemv_blocks(N), GEMV_WARPS * 32, 0, stream>>>(
        N, (int)K, bits(a), nullptr, bits(W), nullptr, bits(add), row, bits(out));
  });
}

void launch_gemv_fp8(int64_t N, int64_t K, const fp8_t *a, const Scaling *scaling_a, const fp8_t *W,
                     const Scaling *scaling_W, const act_t *add, const int32_t *row, act_t *out,
                     cudaStream_t stream) {
  gemv_kernel<E4m3><<<gemv_blocks(N), GEMV_WARPS * 32, 0, stream>>>(
      N, (int)K, reinterpret_cast<const uint8_t *>(a), scaling_a,
      reinterpret_cast<const uint8_t *>(W), scaling_W, bits(add), row, bits(out));
  LAUNCHED();
}
