// bf16 on the host: the upper half of an fp32's bits.
#pragma once
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16_bits;

// The nearest, ties to even. NaN stays NaN. Written without a branch, so that loops of it become
// vector instructions.
static inline uint16_t bf16_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 64;
  return (uint16_t)(value != value ? nan : nearest);
}
