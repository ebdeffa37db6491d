// A warp on the CPU: 32 fibers in step, and what device code calls of CUDA. The compiler is told to
// include it before everything else.
#pragma once
#include <math.h>
#include <string.h>

#include <functional>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>

// Runs body(lane) for lanes 0 to 31 together.
void warp_run(const std::function<void(int)> &body);
// What lane ^ mask gives.
float warp_exchange(float value, int mask);

static inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return warp_exchange(value, mask);
}
static inline float __ldg(const float *p) {
  return *p;
}
static inline float rsqrtf(float x) {
  return 1 / sqrtf(x);
}
static inline float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline size_t __cvta_generic_to_shared(const void *) {
  return 0;
}
#define __expf expf // glibc declares one of its own
