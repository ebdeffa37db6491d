// How benchmarks time what they launch on a stream: by CUDA events, with the second-level cache
// emptied before, if asked for.
#pragma once
#include <stdlib.h>

#include "kernels/cuda/gpu.h"

typedef struct GpuTimer {
  cudaStream_t stream;
  cudaEvent_t start, stop;
  char *flush; // NULL: the cache is left as it is
  size_t flush_bytes;
} GpuTimer;

// What is timed: launches on the timer's stream.
typedef void BenchCall(void *context);

// flush_bytes: more than the second-level cache has (60 MB at most), or 0. Ends the process with a
// sentence if the GPU refuses.
static inline GpuTimer gpu_timer_open(cudaStream_t stream, size_t flush_bytes) {
  GpuTimer t = {.stream = stream, .flush_bytes = flush_bytes};
  CUDA_CHECK(cudaEventCreate(&t.start));
  CUDA_CHECK(cudaEventCreate(&t.stop));
  if (flush_bytes) CUDA_CHECK(cudaMalloc((void **)&t.flush, flush_bytes));
  return t;
}

static inline void gpu_timer_close(GpuTimer *t) {
  CUDA_CHECK(cudaEventDestroy(t->start));
  CUDA_CHECK(cudaEventDestroy(t->stop));
  CUDA_CHECK(cudaFree(t->flush));
}

// Milliseconds a call, of `calls` back to back.
static inline double gpu_timer_ms(const GpuTimer *t, int calls, BenchCall *call, void *context) {
  // Also long enough for the host to have launched what is timed before its turn comes.
  if (t->flush) CUDA_CHECK(cudaMemsetAsync(t->flush, 0, t->flush_bytes, t->stream));
  CUDA_CHECK(cudaEventRecord(t->start, t->stream));
  for (int i = 0; i < calls; i++) call(context);
  CUDA_CHECK(cudaEventRecord(t->stop, t->stream));
  CUDA_CHECK(cudaEventSynchronize(t->stop));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, t->start, t->stop));
  return (double)ms / calls;
}

static inline int gpu_timer_by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static inline void sort_samples(double *samples, int count) {
  qsort(samples, (size_t)count, sizeof *samples, gpu_timer_by_value);
}
// Of sorted samples.
static inline double median_of(const double *sorted, int count) {
  return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}
