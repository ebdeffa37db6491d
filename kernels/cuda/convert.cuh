// Conversions and comparisons, one function an instruction ("PTX ISA", cvt, max, min): the first
// value goes into the lower half. cuda_bf16.h and cuda_fp8.h have them, too, but reading their
// 13,000 lines costs a file a second, once for each architecture.
//
// e4m3 needs compute capability 8.9. The backend refuses FP8 on older GPUs, so the conversions
// compile to a trap there, and the kernels that convert become empty.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

#define CONVERT static __device__ __forceinline__
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define E4M3_CONVERT(...) __trap()
#else
#define E4M3_CONVERT(...) asm(__VA_ARGS__)
#endif

// To bf16, round to nearest even.
CONVERT uint32_t bf16_two(float low, float high) {
  uint32_t two;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}
// To e4m3, round to nearest even, saturated.
CONVERT uint16_t e4m3_two(float low, float high) {
  uint16_t two = 0;
  E4M3_CONVERT("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
  return two;
}
CONVERT uint16_t e4m3_two(__half2 values) {
  uint16_t two = 0;
  E4M3_CONVERT("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;"
               : "=h"(two)
               : "r"(*reinterpret_cast<const uint32_t *>(&values)));
  return two;
}
// From e4m3, exact.
CONVERT __half2 half2_of_e4m3(uint16_t two) {
  uint32_t halves = 0;
  E4M3_CONVERT("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(two));
  return *reinterpret_cast<const __half2 *>(&halves);
}
// The nearest values of sizes up to `largest`, positive; NaN becomes one without a sign. It has the
// sign of both multiplied. Used with e4m3 alone, it compiles to a trap as conversions do.
CONVERT __half2 half2_within(__half2 values, __half2 largest) {
  uint32_t two = 0;
  E4M3_CONVERT("min.NaN.xorsign.abs.f16x2 %0, %1, %2;"
               : "=r"(two)
               : "r"(*reinterpret_cast<const uint32_t *>(&values)),
                 "r"(*reinterpret_cast<const uint32_t *>(&largest)));
  return *reinterpret_cast<const __half2 *>(&two);
}
// The larger value, or NaN if either is NaN: fmaxf drops a NaN.
CONVERT float max_with_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
// The larger values of two pairs of bf16; of a value and NaN the value.
CONVERT uint32_t max_two(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
