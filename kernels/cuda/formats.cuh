// Rows of bf16 and of e4m3, as kernels that read either take them apart.
#pragma once
#include "kernels/cuda/common.cuh"

// WIDTH values an access.
template <int N> struct Bf16 {
  static constexpr int WIDTH = N;
  using Element = bf16_bits;
  using Raw = std::conditional_t<N == 1, bf16_bits, Bits<N>>;
  static __device__ __forceinline__ Pack<N> values(Raw raw) {
    if constexpr (N == 1)
      return {bf16_to_float(raw)};
    else
      return widen(raw);
  }
};

struct E4m3 {
  static constexpr int WIDTH = 16;
  using Element = uint8_t;
  using Raw = uint4;
  static __device__ __forceinline__ Pack<16> values(Raw raw) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    Pack<16> p;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint16_t two = (uint16_t)(words[i / 2] >> (i % 2 * 16));
      const float2 v = __half22float2(half2_of_e4m3(two));
      p.v[2 * i] = v.x;
      p.v[2 * i + 1] = v.y;
    }
    return p;
  }
};
