// A set of bytes. Starts from zeros: empty.
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct ByteSet {
  uint64_t bits[4];
} ByteSet;

static inline void byte_set_add(ByteSet *set, char byte) {
  set->bits[(unsigned char)byte / 64] |= (uint64_t)1 << (unsigned char)byte % 64;
}

static inline bool byte_set_has(const ByteSet *set, char byte) {
  return set->bits[(unsigned char)byte / 64] >> (unsigned char)byte % 64 & 1;
}
