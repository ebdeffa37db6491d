// Gradients and moments as bf16 or fp32, and packs of fp32.
#pragma once
#include "kernels/cuda/common.cuh"

// Calls launch with a null pointer to the gradients' type.
template <class Launch> static void by_gradient(bool fp32, Launch launch) {
  if (fp32)
    launch((float *)nullptr);
  else
    launch((bf16_bits *)nullptr);
}

// Packs of fp32, as those of bf16 in common.cuh; 8 are two accesses.
static __device__ __forceinline__ Pack<4> four(float4 f) {
  return {f.x, f.y, f.z, f.w};
}
template <int N> static __device__ __forceinline__ Pack<N> load_pack(const float *from) {
  const float4 *fours = reinterpret_cast<const float4 *>(from);
  if constexpr (N == 1)
    return {*from};
  else if constexpr (N == 4)
    return four(*fours);
  else
    return {fours[0].x, fours[0].y, fours[0].z, fours[0].w,
            fours[1].x, fours[1].y, fours[1].z, fours[1].w};
}
static __device__ __forceinline__ void store_pack(float *to, const Pack<1> &p) {
  *to = p.v[0];
}
static __device__ __forceinline__ void store_pack(float *to, const Pack<4> &p) {
  *reinterpret_cast<float4 *>(to) = {p.v[0], p.v[1], p.v[2], p.v[3]};
}
static __device__ __forceinline__ void store_pack(float *to, const Pack<8> &p) {
  store_pack(to, Pack<4>{p.v[0], p.v[1], p.v[2], p.v[3]});
  store_pack(to + 4, Pack<4>{p.v[4], p.v[5], p.v[6], p.v[7]});
}

// Of what is read or written once a step: kept out of the caches.
template <int N> static __device__ __forceinline__ Pack<N> load_once(const float *from) {
  if constexpr (N == 1)
    return {__ldcs(from)};
  else
    return four(__ldcs(reinterpret_cast<const float4 *>(from)));
}
template <int N> static __device__ __forceinline__ Pack<N> load_once(const bf16_bits *from) {
  if constexpr (N == 1)
    return {bf16_to_float(__ldcs(from))};
  else
    return widen(__ldcs(reinterpret_cast<const Bits<N> *>(from)));
}
template <int N>
static __device__ __forceinline__ void store_once(bf16_bits *to, const Pack<N> &p) {
  if constexpr (N == 1)
    __stcs(to, bf16_from_float(p.v[0]));
  else
    __stcs(reinterpret_cast<Bits<N> *>(to), narrow(p));
}
static __device__ __forceinline__ void store_once(float *to, const Pack<1> &p) {
  __stcs(to, p.v[0]);
}
static __device__ __forceinline__ void store_once(float *to, const Pack<4> &p) {
  __stcs(reinterpret_cast<float4 *>(to), {p.v[0], p.v[1], p.v[2], p.v[3]});
}
