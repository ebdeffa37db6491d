// Gradients as bf16 or fp32, and packs of fp32.
#pragma once
#include "kernels/cuda/common.cuh"

// Calls launch with a null pointer to the gradients' type.
template <class Launch> static void by_gradient(bool fp32, Launch launch) {
  if (fp32)
    launch((float *)nullptr);
  else
    launch((bf16_bits *)nullptr);
}

// Packs of fp32, as those of bf16 in common.cuh.
static __device__ __forceinline__ Pack<4> four(float4 f) {
  return {f.x, f.y, f.z, f.w};
}
template <int N> static __device__ __forceinline__ Pack<N> load_pack(const float *from) {
  if constexpr (N == 1)
    return {*from};
  else
    return four(*reinterpret_cast<const float4 *>(from));
}
template <int N> static __device__ __forceinline__ void store_pack(float *to, const Pack<N> &p) {
  if constexpr (N == 1)
    *to = p.v[0];
  else
    *reinterpret_cast<float4 *>(to) = {p.v[0], p.v[1], p.v[2], p.v[3]};
}

// Of what is read once a step: kept out of the caches.
template <int N> static __device__ __forceinline__ Pack<N> load_once(const float *from) {
  if constexpr (N == 1)
    return {__ldcs(from)};
  else
    return four(__ldcs(reinterpret_cast<const float4 *>(from)));
}
