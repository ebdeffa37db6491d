// Row statistics in tests.
#pragma once
#include "tests/gpu/gpu_test.h"

// On the device, in so many parts; rows past M hold NaN.
static inline RowStat stat_in(Bench *b, int64_t parts, int64_t M, const float *values) {
  const int64_t stride = b->be->max_tokens;
  float *all = xmalloc((size_t)(parts * stride) * sizeof *all);
  for (int64_t p = 0; p < parts; p++)
    for (int64_t m = 0; m < stride; m++)
      all[p * stride + m] = m >= M           ? NAN
                            : parts == 1     ? values[m]
                            : p == 0         ? values[m] * 0.75f
                            : p == parts - 1 ? values[m] * 0.25f
                                             : 0.0f;
  void *data = fp32_buffer(b, parts * stride, all);
  free(all);
  return (RowStat){.data = data, .stride = stride, .parts = (int32_t)parts};
}

// Room for most_parts; the producer says how many it leaves, and the others stay NaN.
static inline RowStat stat_out(Bench *b, int64_t most_parts) {
  const int64_t stride = b->be->max_tokens;
  return (RowStat){.data = fp32_buffer(b, most_parts * stride, NULL), .stride = stride};
}

// The sum over all parts of each row, in fresh memory.
static inline float *stat_read(Bench *b, RowStat s, int64_t M) {
  float *all = bench_read(b, s.data), *sum = xcalloc((size_t)M, sizeof *sum);
  assert_true(s.parts > 0);
  for (int64_t p = 0; p < s.parts; p++)
    for (int64_t m = 0; m < M; m++) sum[m] += all[p * s.stride + m];
  free(all);
  return sum;
}

// ---- For the CPU backend, whose classes are all floats here
static inline act_t *act(const float *x) {
  return (act_t *)(uintptr_t)x;
}
static inline grad_t *grad(float *x) {
  return (grad_t *)x;
}
static inline RowStat whole(const float *values, int64_t M) {
  return (RowStat){.data = (stat_t *)(uintptr_t)values, .stride = M, .parts = 1};
}
