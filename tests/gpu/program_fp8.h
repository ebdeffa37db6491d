// FP8 operands of programs in tests.
#pragma once
#include "kernels/cuda/kernels.h"
#include "tests/gpu/gpu_test.h"

static inline int64_t whole_16(int64_t n) {
  return (n + 15) / 16 * 16;
}

// Bytes on the device; NULL: poison, which is NaN in both formats.
static inline uint8_t *fp8_buffer(Bench *b, int64_t count, const uint8_t *bytes) {
  return buffer_new(b, count, 1, bytes)->data;
}

// Normal values of a deviation, or their sizes, that FP8 holds exactly after `scale`; and on the
// device their bytes, in rows that are `stride` apart with NaN between.
static inline float *random_fp8(Bench *b, int64_t rows, int64_t cols, int64_t stride,
                                Fp8Format format, double deviation, float scale, bool one_sign,
                                const char *name, const void **data) {
  float *x = xmalloc((size_t)(rows * cols) * sizeof *x);
  uint8_t *bytes = xmalloc((size_t)(rows * stride));
  memset(bytes, 0xff, (size_t)(rows * stride));
  const uint64_t key = rng_key(42, name);
#pragma omp parallel for
  for (int64_t i = 0; i < rows * cols; i++) {
    const float normal = (float)(deviation * rng_normal(key, (uint64_t)i)) * scale,
                value = one_sign ? fabsf(normal) : normal;
    x[i] = fp8_round(format, value) / scale;
    bytes[i / cols * stride + i % cols] = fp8_bits(format, value);
  }
  *data = fp8_buffer(b, rows * stride, bytes);
  free(bytes);
  return x;
}

static inline Scaling *scaling_buffer(Bench *b, Fp8Format format, float scale) {
  const Scaling s = {.scale = scale, .inverse = 1 / scale, .format = format};
  return buffer_new(b, sizeof s / 4, 4, &s)->data;
}

// The format's value nearest to `value` after `scale`.
static inline float rounded_fp8(double value, float scale) {
  return fp8_round(FP8_E4M3, (float)value * scale) / scale;
}
