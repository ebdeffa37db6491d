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
