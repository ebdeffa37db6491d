// All programs by name: those of the table in kernels/fused/programs.h, and those that only tests
// and benchmarks launch. And RoPE's table as programs/rope.cu reads it.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/fused/program.h"

#define TEST_PROGRAMS(ROW)                                                                         \
  ROW(plain_nt)                                                                                    \
  ROW(plain_nn)                                                                                    \
  ROW(plain_tn)                                                                                    \
  ROW(absmax)                                                                                      \
  ROW(layer_norm)                                                                                  \
  ROW(geglu)                                                                                       \
  ROW(geglu_backward)                                                                              \
  ROW(bias_gelu)                                                                                   \
  ROW(bias_gelu_backward)                                                                          \
  ROW(silu_copies_fp8)                                                                             \
  ROW(gated_residual)                                                                              \
  ROW(gated_residual_backward)                                                                     \
  ROW(router)                                                                                      \
  ROW(clamped_swiglu)                                                                              \
  ROW(clamped_swiglu_fp8)                                                                          \
  ROW(clamped_swiglu_backward)                                                                     \
  ROW(clamped_swiglu_backward_fp8)                                                                 \
  ROW(head_norm_rope_64)                                                                           \
  ROW(head_norm_rope_128)                                                                          \
  ROW(head_norm_rope_64_fp8)                                                                       \
  ROW(head_norm_rope_128_fp8)                                                                      \
  ROW(capped_logits)                                                                               \
  ROW(capped_logits_fp8)                                                                           \
  ROW(capped_dlogits)                                                                              \
  ROW(capped_dlogits_fp8)

#define ROW(NAME, file) extern const Program fused_program_##file;
FUSED_PROGRAMS(ROW)
#undef ROW
#define ROW(file) extern const Program fused_program_##file;
TEST_PROGRAMS(ROW)
#undef ROW

// NULL: there is none of this name.
static inline const Program *program_named(const char *name) {
  static const Program *const programs[] = {
#define ROW(NAME, file) &fused_program_##file,
      FUSED_PROGRAMS(ROW)
#undef ROW
#define ROW(file) &fused_program_##file,
          TEST_PROGRAMS(ROW)
#undef ROW
  };
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
    if (strcmp(programs[i]->name, name) == 0) return programs[i];
  return NULL;
}

typedef struct Shape {
  int64_t M, N, K;
} Shape;

// From "MxNxK". Sides that are no multiple of 8 are not a shape, but for M.
static inline bool shape_read(const char *text, Shape *s) {
  long long M, N, K;
  int end = 0;
  if (sscanf(text, "%lldx%lldx%lld%n", &M, &N, &K, &end) != 3 || text[end]) return false;
  *s = (Shape){M, N, K};
  return M > 0 && N > 0 && K > 0 && N % 8 == 0 && K % 8 == 0;
}
// Columns of tile operands of a chunk's width, beside N of the product.
static inline int64_t operand_cols(const Program *program, int32_t chunk_cols, int64_t N) {
  return N * chunk_cols / program->columns;
}

// ---- RoPE's table, as programs/rope.cu reads it

// fp16, nearest even. |x| below 65504.
static inline uint16_t half_bits(double x) {
  if (x == 0) return signbit(x) ? 0x8000 : 0;
  const int exponent = ilogb(x) > -14 ? ilogb(x) : -14; // smaller values share the last step
  const unsigned steps = (unsigned)rint(ldexp(fabs(x), 10 - exponent)); // 1024 to 2048, or fewer
  return (uint16_t)((x < 0 ? 0x8000u : 0u) | (((unsigned)(exponent + 14) << 10) + steps));
}

typedef struct RopeTable {
  int64_t rows, cols;
  uint16_t *values; // [rows, cols] cosine and sine of a pair
} RopeTable;

// Row `first` + i holds position base + first + i % period, and there are exactly the rows and
// columns that steps read: 64 rows from a period's last on, unless steps end where periods do, and
// 64 columns from a head's last multiple of 8 on. Rows before `first` belong to nobody and are NaN.
static inline RopeTable rope_table(int64_t base, int64_t first, int64_t period, int64_t head_dim,
                                   const double *inv_freq) {
  RopeTable t = {.rows = first + period + (period % 64 == 0 ? 0 : 63), .cols = head_dim + 56};
  t.values = xmalloc((size_t)(t.rows * t.cols) * sizeof *t.values);
#pragma omp parallel for
  for (int64_t row = 0; row < t.rows; row++)
    for (int64_t c = 0; c < t.cols; c += 2) {
      const double angle =
          (double)(base + first + (row - first) % period) * inv_freq[c % head_dim / 2];
      t.values[row * t.cols + c] = row < first ? 0xffff : half_bits(cos(angle));
      t.values[row * t.cols + c + 1] = row < first ? 0xffff : half_bits(sin(angle));
    }
  return t;
}
