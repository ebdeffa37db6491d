// AdamW's moments as bf16. A step moves v by (1 - beta2) of what it differs from the squared
// gradient. With beta2 = 0.999 that is often less than half of the distance from one bf16 to the
// next, and rounding to nearest would leave v where it is for ever. So rounding is stochastic: away
// from zero with the probability of what it would cut off, so that it is right in the mean. The
// noise is a hash of the update, the tensor and the element: the same run gives the same bits,
// resumed or not.
#pragma once
#include <stdint.h>
#include <string.h>
#include "base/host_device.h"
#include "kernels/noise.h"

// Of a tensor in an update. updates: applied so far; tensor: its place in the list.
static inline HOST_DEVICE uint32_t moment_key(int64_t updates, int tensor) {
  return noise_mix(noise_mix((uint32_t)updates) + (uint32_t)tensor);
}
// Of an element: 16 bits for m, and above them 16 for v.
static inline HOST_DEVICE uint32_t moment_noise(uint32_t key, int64_t element) {
  return noise_mix((uint32_t)element ^ key);
}

// The bf16 below or above, as a float; what bf16 holds stays as it is. Of `noise` the low 16 bits
// count; MOMENT_NEAREST rounds to nearest.
enum { MOMENT_NEAREST = 0x8000 };
static inline HOST_DEVICE float moment_round(float value, uint32_t noise) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits += noise & 0xffffu; // infinities and NaN stay
  bits &= 0xffff0000u;
  memcpy(&value, &bits, sizeof value);
  return value;
}
