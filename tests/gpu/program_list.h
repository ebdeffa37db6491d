// All programs by name: those of the table in kernels/fused/programs.h, and those that only tests
// and benchmarks launch.
#pragma once
#include <string.h>
#include "kernels/fused/program.h"

#define TEST_PROGRAMS(ROW)                                                                         \
  ROW(plain_nt)                                                                                    \
  ROW(plain_nn)                                                                                    \
  ROW(plain_tn)                                                                                    \
  ROW(absmax)                                                                                      \
  ROW(layer_norm)                                                                                  \
  ROW(geglu)                                                                                       \
  ROW(geglu_backward)                                                                              \
  ROW(capped_logits)                                                                               \
  ROW(capped_logits_fp8)

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
