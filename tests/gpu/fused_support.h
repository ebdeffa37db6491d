// RoPE's table as programs/rope.cu reads it, for the tests and the benchmark of the programs.
#pragma once
#include <math.h>
#include <stdint.h>

#include "base/memory.h"

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
