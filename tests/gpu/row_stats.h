// Row statistics of a backend in tests, [parts, max_tokens]: rows past M hold NaN.
#pragma once
#include "tests/gpu/gpu_test.h"

static inline void *stat_in(Bench *b, int64_t parts, int64_t M, const float *values) {
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
  return data;
}
static inline void *stat_out(Bench *b, int64_t parts) {
  return fp32_buffer(b, parts * b->be->max_tokens, NULL);
}
// The sum over all parts of each row, in fresh memory.
static inline float *stat_read(Bench *b, const void *data, int64_t parts, int64_t M) {
  float *all = bench_read(b, data), *sum = xcalloc((size_t)M, sizeof *sum);
  for (int64_t p = 0; p < parts; p++)
    for (int64_t m = 0; m < M; m++) sum[m] += all[p * b->be->max_tokens + m];
  free(all);
  return sum;
}
