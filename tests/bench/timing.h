// Timing calls on a stream with a pair of events, for benchmarks.
#pragma once
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/cuda/check.h"
#include "tests/gpu/random_fill.h"

typedef struct Timer {
  cudaStream_t stream;
  cudaEvent_t start, stop;
} Timer;

static inline Timer timer_open(cudaStream_t stream) {
  Timer t = {.stream = stream};
  CUDA_CHECK(cudaEventCreate(&t.start));
  CUDA_CHECK(cudaEventCreate(&t.stop));
  return t;
}

static inline void timer_close(const Timer *t) {
  CUDA_CHECK(cudaEventDestroy(t->start));
  CUDA_CHECK(cudaEventDestroy(t->stop));
}

static inline void timer_start(const Timer *t) {
  CUDA_CHECK(cudaEventRecord(t->start, t->stream));
}

// Seconds since timer_start, once the GPU is there.
static inline double timer_stop(const Timer *t) {
  float ms = 0;
  CUDA_CHECK(cudaEventRecord(t->stop, t->stream));
  CUDA_CHECK(cudaEventSynchronize(t->stop));
  CUDA_CHECK(cudaEventElapsedTime(&ms, t->start, t->stop));
  return ms * 1e-3;
}

static inline int compare_seconds(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

// Median, which sorts the times.
static inline double median_seconds(double *times, int count) {
  qsort(times, (size_t)count, sizeof *times, compare_seconds);
  return (times[(count - 1) / 2] + times[count / 2]) / 2;
}

// Median seconds of a call, over batches of back-to-back calls, after one batch that is not
// counted. before: what comes before each batch and is not timed, or nothing.
#define TIME_CALLS(timer, batches, calls, seconds, before, call)                                   \
  do {                                                                                             \
    double times_[batches];                                                                        \
    for (int batch_ = -1; batch_ < (batches); batch_++) {                                          \
      before;                                                                                      \
      timer_start(timer);                                                                          \
      for (int i_ = 0; i_ < (calls); i_++) call;                                                   \
      const double taken_ = timer_stop(timer);                                                     \
      if (batch_ >= 0) times_[batch_] = taken_ / (calls);                                          \
    }                                                                                              \
    seconds = median_seconds(times_, batches);                                                     \
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
