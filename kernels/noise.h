// Noise for stochastic rounding: a hash of where the value is, so that the same run gives the same
// bits.
#pragma once
#include <stdint.h>
#include "base/host_device.h"

// The last mixing of murmur3 (Appleby).
static inline HOST_DEVICE uint32_t noise_mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}
