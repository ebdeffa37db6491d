// The arithmetic of the epilogue programs, one definition for every implementation, on the host and
// on the GPU. `real` is fp32; a test build makes it fp64.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "base/host_device.h"

#ifdef REAL_IS_DOUBLE
typedef double real;
#define real_exp exp
#define real_log log
#define real_sqrt sqrt
#else
typedef float real;
#define real_exp exp_inline
#define real_log logf
#define real_sqrt sqrtf
#endif

#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

// e^x for the CPU, right to an ulp of fp32, denormals included. There is no branch and no call in
// it, so that a loop over it becomes vector instructions, as one over expf does not.
static inline HOST_DEVICE float exp_inline(float x) {
  const float most = 90, least = -105; // their powers are infinity and 0; NaN stays
  x = x > most ? most : x;
  x = x < least ? least : x;
  const float magic = 12582912; // 1.5 2^23: a value added to it is rounded to a whole number
  const float shifted = x * LOG2_E + magic, n = shifted - magic;
  const float r = x - n * 0.693145752f - n * 1.42860677e-6f; // the first has 16 bits: exact
  const float q =
      0.49999994f + r * (0.16666521f + r * (0.04166839f + r * (0.008368745f + r * 0.0013814539f)));
  const float power = 1 + (r + r * r * q);
  // Times 2^n in two halves, for 2^n alone may be beyond a float.
  uint32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  const int32_t whole = (int32_t)(bits & 0x7fffff) - 0x400000, half = whole / 2;
  const uint32_t low = (uint32_t)(half + 127) << 23, high = (uint32_t)(whole - half + 127) << 23;
  float low_scale, high_scale;
  memcpy(&low_scale, &low, sizeof low);
  memcpy(&high_scale, &high, sizeof high);
  return power * low_scale * high_scale;
}

// r of RMSNorm from the row's sum of squares: 1 / sqrt(sumsq / D + eps). arXiv 1910.07467.
static inline HOST_DEVICE real rms_rstd(real sumsq, int64_t D, real eps) {
  return 1 / real_sqrt(sumsq / (real)D + eps);
}

// A position's row of RoPE's table, [half, 2]: cosine and sine of position * inv_freq, in double
// before rounding: exact at large positions, too.
static inline void rope_row(int64_t position, int64_t half, const double *inv_freq, real *row) {
  for (int64_t j = 0; j < half; j++) {
    const double angle = (double)position * inv_freq[j];
    row[2 * j] = (real)cos(angle);
    row[2 * j + 1] = (real)sin(angle);
  }
}

// 2^x, right to 2 ulp of fp32 on a GPU, where results below 2^-126 become 0.
static inline HOST_DEVICE float exp2_fast(float x) {
#ifdef __CUDA_ARCH__
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}

// 1 / (1 + exp(-x)). On a GPU with its approximate exponential and reciprocal, each right to 2 ulp
// of fp32: rounding to bf16 hides that, and epilogues have no time for more. An exp below 2^-126
// adds nothing to 1, and a result below it becomes 0.
static inline HOST_DEVICE real sigmoid(real x) {
#ifdef __CUDA_ARCH__
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1 + exp2_fast(x * -LOG2_E)));
  return reciprocal;
#else
  return 1 / (1 + real_exp(-x));
#endif
}

// silu(gate) * up, silu(g) = g sigmoid(g). arXiv 2002.05202.
static inline HOST_DEVICE real swiglu(real gate, real up) {
  return gate * sigmoid(gate) * up;
}

// Gradients of y = swiglu(gate, up) for dy.
static inline HOST_DEVICE void swiglu_backward(real gate, real up, real dy, real *dgate,
                                               real *dup) {
  const real s = sigmoid(gate);
  const real silu = gate * s;
  *dgate = dy * up * (s + silu - silu * s);
  *dup = dy * silu;
}

// Rotates the pair (a, b) by the angle whose cosine and sine are given; the sign as in Hugging
// Face's rotate_half. The inverse rotation has -sin. arXiv 2104.09864.
static inline HOST_DEVICE void rope_rotate(real *a, real *b, real cosine, real sine) {
  const real x = *a, y = *b;
  *a = x * cosine - y * sine;
  *b = y * cosine + x * sine;
}

// Which pair of z's columns (2 pair: gate, 2 pair + 1: up) holds feature f of F, and back. Inside
// each whole group of 8, pair i holds feature 0 2 4 6 1 3 5 7: then the thread of a GEMM epilogue
// that holds the fragments of z holds exactly the pair of y that it has to store. A last group of
// fewer than 8 is in natural order.
static inline HOST_DEVICE int64_t pair_of_feature(int64_t f, int64_t F) {
  const int64_t group = f - f % 8, j = f % 8;
  if (group + 8 > F) return f;
  return group + (j % 2 == 0 ? j / 2 : 4 + j / 2);
}
static inline HOST_DEVICE int64_t feature_of_pair(int64_t p, int64_t F) {
  const int64_t group = p - p % 8, i = p % 8;
  if (group + 8 > F) return p;
  return group + (i < 4 ? 2 * i : 2 * i - 7);
}
