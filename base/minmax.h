// The smaller and the larger of two whole numbers.
#pragma once
#include <stdint.h>

static inline int64_t min_i64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t max_i64(int64_t a, int64_t b) {
  return a > b ? a : b;
}
