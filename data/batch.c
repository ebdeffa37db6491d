#include "data/batch.h"

#include <stdlib.h>

#include "base/memory.h"

Batch batch_alloc(int64_t rows) {
  const size_t n = (size_t)rows;
  int32_t *all = xcalloc(3 * n, sizeof *all);
  return (Batch){.tokens = all, .targets = all + n, .lengths = all + 2 * n};
}

void batch_free(Batch *batch) {
  free(batch->tokens);
  *batch = (Batch){0};
}

void batch_clear(Batch *batch) {
  batch->documents = batch->counted = 0;
}

void batch_pad(Batch *batch, int64_t at, int64_t rows, int64_t longest) {
  for (int64_t i = at; i < at + rows; i++) {
    batch->tokens[i] = 0;
    batch->targets[i] = NO_TARGET;
  }
  for (int64_t left = rows, n; longest > 0 && left > 0; left -= n) {
    n = left < longest ? left : longest;
    batch->lengths[batch->documents++] = (int32_t)n;
  }
}

double batch_attended(const Batch *batch, int64_t windows, int64_t T) {
  double sum = 0;
  if (batch->documents == 0) return (double)windows * (double)T * (double)T;
  for (int64_t i = 0; i < batch->documents; i++)
    sum += (double)batch->lengths[i] * (double)batch->lengths[i];
  return sum;
}
