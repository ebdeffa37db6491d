// bf16 on the host.
#pragma once
#include <stdint.h>
#include <string.h>

static inline uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16); // nearest even
}
static inline float from_bf16(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline float rounded(float value) {
  return from_bf16(to_bf16(value));
}
