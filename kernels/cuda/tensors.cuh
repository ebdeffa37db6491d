// Gradients as bf16 or fp32.
#pragma once
#include "kernels/cuda/common.cuh"

// Calls launch with a null pointer to the gradients' type.
template <class Launch> static void by_gradient(bool fp32, Launch launch) {
  if (fp32)
    launch((float *)nullptr);
  else
    launch((bf16_bits *)nullptr);
}

// N neighbours, 4 in one access or 1. Four start at a multiple of 4, and so do the tensors.
static __device__ __forceinline__ Pack<4> four(float4 f) {
  return {f.x, f.y, f.z, f.w};
}
static __device__ __forceinline__ Pack<4> four(uint2 u) {
  return {bf16_low(u.x), bf16_high(u.x), bf16_low(u.y), bf16_high(u.y)};
}
template <int N> static __device__ __forceinline__ Pack<N> load_values(const float *from) {
  if constexpr (N == 1)
    return {*from};
  else
    return four(*reinterpret_cast<const float4 *>(from));
}
template <int N> static __device__ __forceinline__ Pack<N> load_values(const bf16_bits *from) {
  if constexpr (N == 1)
    return load_pack<1>(from);
  else
    return four(*reinterpret_cast<const uint2 *>(from));
}

// Leave in `p` what was stored.
template <int N> static __device__ __forceinline__ void store_values(float *to, Pack<N> &p) {
  if constexpr (N == 1)
    *to = p.v[0];
  else
    *reinterpret_cast<float4 *>(to) = {p.v[0], p.v[1], p.v[2], p.v[3]};
}
template <int N> static __device__ __forceinline__ void store_values(bf16_bits *to, Pack<N> &p) {
  if constexpr (N == 1) {
    store_pack(to, p);
  } else {
    const uint2 u = {bf16_two(p.v[0], p.v[1]), bf16_two(p.v[2], p.v[3])};
    *reinterpret_cast<uint2 *>(to) = u;
    p = four(u);
  }
}

// Of what is read once a step: kept out of the caches.
template <int N> static __device__ __forceinline__ Pack<N> load_once(const float *from) {
  if constexpr (N == 1)
    return {__ldcs(from)};
  else
    return four(__ldcs(reinterpret_cast<const float4 *>(from)));
}
