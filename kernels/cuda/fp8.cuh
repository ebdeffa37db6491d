// FP8 in registers, packed.
#pragma once
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

// e4m3 of four values, the first in the lowest byte.
static __device__ __forceinline__ uint32_t e4m3_four(float a, float b, float c, float d) {
  return __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E4M3) |
         (uint32_t)__nv_cvt_float2_to_fp8x2({c, d}, __NV_SATFINITE, __NV_E4M3) << 16;
}
// Of two, in the lower half.
static __device__ __forceinline__ uint32_t e4m3_two(__half2 values) {
  return __nv_cvt_halfraw2_to_fp8x2(values, __NV_SATFINITE, __NV_E4M3);
}

// fp8_round_stochastic of two dithered values times 2^-8, whose exponents are fp16's then: each
// one's code in the upper byte of its half. NaN, of either sign, gets no noise.
static __device__ __forceinline__ uint32_t e4m3_stochastic(float a, float b, uint32_t noise) {
  const __half2 largest = __floats2half2_rn(1.75f, 1.75f), exact = __floats2half2_rn(a, b),
                h = __hmax2_nan(__hmin2_nan(exact, largest), __hneg2(largest));
  const uint32_t bits =
      *reinterpret_cast<const uint32_t *>(&h) + (noise & __heq2_mask(h, h) & 0x007f007fu);
  return bits + (bits & 0x7fff7fffu); // moves all but the sign
}
