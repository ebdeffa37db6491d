// What the benchmarks of single calls share: a median over batches of calls, and random data.
#pragma once
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "tests/bench/gpu_timer.h"
#include "tests/gpu/random_fill.h"

// Median milliseconds of a call, over batches of back-to-back calls, after one batch that is not
// counted. timer: a GpuTimer *.
#define TIME_CALLS(timer, batches, calls, milliseconds, call)                                      \
  do {                                                                                             \
    double times_[batches];                                                                        \
    for (int batch_ = -1; batch_ < (batches); batch_++) {                                          \
      float ms_ = 0;                                                                               \
      if ((timer)->flush)                                                                          \
        CUDA_CHECK(cudaMemsetAsync((timer)->flush, 0, (timer)->flush_bytes, (timer)->stream));     \
      CUDA_CHECK(cudaEventRecord((timer)->start, (timer)->stream));                                \
      for (int i_ = 0; i_ < (calls); i_++) call;                                                   \
      CUDA_CHECK(cudaEventRecord((timer)->stop, (timer)->stream));                                 \
      CUDA_CHECK(cudaEventSynchronize((timer)->stop));                                             \
      CUDA_CHECK(cudaEventElapsedTime(&ms_, (timer)->start, (timer)->stop));                       \
      if (batch_ >= 0) times_[batch_] = (double)ms_ / (calls);                                     \
    }                                                                                              \
    sort_samples(times_, batches);                                                                 \
    milliseconds = median_of(times_, batches);                                                     \
  } while (0)

// Normal values in bf16.
static inline void fill_with_normals(void *memory, size_t bytes) {
  enum { PATTERN = 1 << 20 };
  uint16_t *pattern = xmalloc(PATTERN * sizeof *pattern);
  for (uint64_t i = 0; i < PATTERN; i++) {
    const float value = (float)rng_normal(3, i);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    pattern[i] = (uint16_t)(bits >> 16);
  }
  fill_with_copies(memory, bytes, pattern, PATTERN * sizeof *pattern);
  free(pattern);
}
