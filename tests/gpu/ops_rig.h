// What the tests of the GPU backends' operations share: shapes, the backends of each, parts of the
// twins, and the runner. The CPU backend gets the same bf16 inputs widened to fp32. The bound of
// each error is twice the error of a twin: the CPU's result with a rounding to bf16 wherever the
// operation stores a bf16 value.
#pragma once
#include "kernels/cpu/cpu.h"
#include "tests/gpu/row_stats.h"

typedef struct Shape {
  const char *name;
  int64_t D, F, H, KV, d, V, B, T;
} Shape;

typedef struct Subject {
  Shape s;
  int64_t M, R, Hd;
  Backend *cpu, *bf16, *fp32; // fp32: gradients in fp32
  Backend *writer;            // for generation alone
  bool fused;                 // then z holds the row scale already
} Subject;

typedef struct Subjects {
  Subject list[16];
  int count;
} Subjects;

// RoPE's angle per position of pair j.
double inv_freq(const Shape *s, int64_t j);

static const float eps = 1e-5f; // of RMSNorm

// ---- Parts of the twins; arrays are fresh memory

float *floats(int64_t n);                                       // zeros
float *row_squares(const float *x, int64_t M, int64_t n);       // [M]: of x [M, n]
int32_t *random_tokens(int64_t M, int64_t V, const char *name); // [M]
float *weight(int64_t N, int64_t K, const char *name);          // [N, K]: of a GEMM over K inputs
// x [M, K] times W [N, K] transposed, rounded to bf16.
float *product_rounded(int64_t M, int64_t N, int64_t K, const float *x, const float *W);
// Each row of x [M, n] times its r of RMSNorm.
void scale_rows(const Subject *t, const float *sumsq, int64_t n, float *x);
// "what, shape", until the next call.
const char *label(const Subject *t, const char *what);

// ---- The runner: one cmocka test an operation, over all shapes

#define OVER_ALL_SHAPES(name, ...)                                                                 \
  static void test_##name(void **state) {                                                          \
    const Subjects *all = *state;                                                                  \
    for (int i = 0; i < all->count; i++) {                                                         \
      const Subject *t = &all->list[i];                                                            \
      __VA_ARGS__;                                                                                 \
    }                                                                                              \
  }

// Runs them in each of kernel_modes; returns how many failed.
int run_over_backends(const struct CMUnitTest *tests, size_t count);
