// Norm weights around 1 for the tests of weight gradients, some of them 0 or as good as 0.
#pragma once
#include <stdint.h>

#include "base/memory.h"
#include "base/rng.h"

static inline float *norm_weights(int64_t n) {
  float *w = xcalloc((size_t)n, sizeof *w);
  const uint64_t key = rng_key(7, "norm");
  for (int64_t k = 0; k < n; k++) w[k] = (float)(0.5 + rng_uniform(key, (uint64_t)k));
  for (int64_t k = 3; k < n; k += 97) w[k] = k % 2 ? 0.0f : -1e-30f;
  return w;
}
