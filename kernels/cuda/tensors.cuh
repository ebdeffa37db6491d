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

static __device__ __forceinline__ float grad_load(const float *g) {
  return *g;
}
static __device__ __forceinline__ float grad_load(const bf16_bits *g) {
  return bf16_to_float(*g);
}
// Returns the value as stored.
static __device__ __forceinline__ float grad_store(float *g, float value) {
  return *g = value;
}
static __device__ __forceinline__ float grad_store(bf16_bits *g, float value) {
  return bf16_to_float(*g = bf16_from_float(value));
}

// Four neighbours in one access; `at` is a multiple of 4 and so is the tensors' alignment.
static __device__ __forceinline__ float4 grad_load_four(const float *g) {
  return *reinterpret_cast<const float4 *>(g);
}
static __device__ __forceinline__ float4 grad_load_four(const bf16_bits *g) {
  const uint2 u = *reinterpret_cast<const uint2 *>(g);
  return {bf16_low(u.x), bf16_high(u.x), bf16_low(u.y), bf16_high(u.y)};
}
static __device__ __forceinline__ float4 grad_store_four(float *g, float4 v) {
  return *reinterpret_cast<float4 *>(g) = v;
}
static __device__ __forceinline__ float4 grad_store_four(bf16_bits *g, float4 v) {
  const uint2 u = {bf16_two(v.x, v.y), bf16_two(v.z, v.w)};
  *reinterpret_cast<uint2 *>(g) = u;
  return {bf16_low(u.x), bf16_high(u.x), bf16_low(u.y), bf16_high(u.y)};
}
