// bf16 and FP8 in registers: as bits, alone and packed.
#pragma once
#include <stdint.h>
#include "kernels/cuda/convert.cuh"

static __device__ __forceinline__ float bf16_low(uint32_t two) {
  return __uint_as_float(two << 16);
}
static __device__ __forceinline__ float bf16_high(uint32_t two) {
  return __uint_as_float(two & 0xffff0000u);
}
static __device__ __forceinline__ float bf16_to_float(uint16_t bits) {
  return __uint_as_float((uint32_t)bits << 16);
}
static __device__ __forceinline__ uint16_t bf16_from_float(float value) {
  return (uint16_t)bf16_two(value, 0);
}

// e4m3 of four values, the first in the lowest byte.
static __device__ __forceinline__ uint32_t e4m3_four(float a, float b, float c, float d) {
  return e4m3_two(a, b) | (uint32_t)e4m3_two(c, d) << 16;
}

// fp8_round_stochastic of two dithered values times 2^-8, whose exponents are fp16's then: each
// one's code in the upper byte of its half. NaN gets no noise.
static __device__ __forceinline__ uint32_t e4m3_stochastic(float a, float b, uint32_t noise) {
  const __half2 h = half2_within(__floats2half2_rn(a, b), __floats2half2_rn(1.75f, 1.75f));
  const uint32_t bits =
      *reinterpret_cast<const uint32_t *>(&h) + (noise & __heq2_mask(h, h) & 0x007f007fu);
  return bits + (bits & 0x7fff7fffu); // moves all but the sign
}
