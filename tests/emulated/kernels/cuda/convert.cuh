// The conversions of kernels/cuda/convert.cuh, by the host's code in CUDA's headers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

static inline uint32_t bf16_two(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t *>(&two);
}
static inline uint16_t e4m3_two(float low, float high) {
  return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3);
}
static inline uint16_t e4m3_two(__half2 values) {
  return __nv_cvt_halfraw2_to_fp8x2(values, __NV_SATFINITE, __NV_E4M3);
}
static inline __half2 half2_of_e4m3(uint16_t two) {
  return __nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3);
}
static inline __half2 half2_within(__half2 values, __half2 largest) {
  return __hmax2_nan(__hmin2_nan(values, largest), __hneg2(largest));
}
static inline float max_with_nan(float a, float b) {
  return a > b || a != a ? a : b;
}
static inline uint32_t max_two(uint32_t a, uint32_t b) {
  const auto larger = [](uint32_t x, uint32_t y) {
    return fmaxf(__uint_as_float(x), __uint_as_float(y));
  };
  return bf16_two(larger(a << 16, b << 16), larger(a & 0xffff0000u, b & 0xffff0000u));
}
