// FP8 in registers, packed.
#pragma once
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
