#include "kernels/cuda/timer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/cuda/check.h"
#include "kernels/fp8.h"

static int compare_doubles(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

double median(double *times, int count) {
  qsort(times, (size_t)count, sizeof *times, compare_doubles);
  return times[count / 2];
}

int time_calls(TimedCall *call, const void *context, int warm_up, int runs, cudaStream_t stream,
               double *milliseconds, Error *err) {
  cudaEvent_t events[MAX_TIMED_RUNS + 1];
  double times[MAX_TIMED_RUNS] = {0};
  int status = 0;
  assert(runs <= MAX_TIMED_RUNS);
  for (int i = 0; i <= runs; i++) CUDA_CHECK(cudaEventCreate(&events[i]));
  for (int i = -warm_up; i < runs && status == 0; i++) {
    if (i <= 0) CUDA_CHECK(cudaEventRecord(events[0], stream)); // its last record counts
    status = call(context, err);
    if (i >= 0) CUDA_CHECK(cudaEventRecord(events[i + 1], stream));
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
  for (int i = 0; i < runs && status == 0; i++) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, events[i], events[i + 1]));
    times[i] = ms;
  }
  for (int i = 0; i <= runs; i++) CUDA_CHECK(cudaEventDestroy(events[i]));
  *milliseconds = median(times, runs);
  return status;
}

enum { PATTERN = (1 << 18) - 5 }; // a prime: in a matrix filled with copies no two rows are alike

// Copies of a pattern of PATTERN elements, which it frees.
static void fill(void *to, size_t bytes, void *pattern, size_t element_bytes, cudaStream_t stream) {
  size_t done = bytes < PATTERN * element_bytes ? bytes : PATTERN * element_bytes;
  CUDA_CHECK(cudaMemcpyAsync(to, pattern, done, cudaMemcpyHostToDevice, stream));
  while (done < bytes) { // each copy doubles what is filled
    const size_t more = bytes - done < done ? bytes - done : done;
    CUDA_CHECK(cudaMemcpyAsync((char *)to + done, to, more, cudaMemcpyDeviceToDevice, stream));
    done += more;
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
  free(pattern);
}

void fill_random(void *to, size_t bytes, double scale, cudaStream_t stream) {
  uint16_t *pattern = xmalloc(PATTERN * sizeof *pattern);
#pragma omp parallel for schedule(static)
  for (int i = 0; i < PATTERN; i++) {
    const float value = (float)(scale * rng_normal(1, (uint64_t)i));
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    pattern[i] = (uint16_t)(bits >> 16);
  }
  fill(to, bytes, pattern, sizeof *pattern, stream);
}

void fill_random_fp8(void *to, size_t bytes, cudaStream_t stream) {
  uint8_t *pattern = xmalloc(PATTERN);
#pragma omp parallel for schedule(static)
  for (int i = 0; i < PATTERN; i++)
    pattern[i] = fp8_bits(FP8_E4M3, (float)rng_normal(1, (uint64_t)i));
  fill(to, bytes, pattern, sizeof *pattern, stream);
}
