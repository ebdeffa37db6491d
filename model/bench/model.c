#include "model/bench/model.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/rng.h"

enum { PATTERN = (1 << 22) - 3 }; // a prime: no two rows of a matrix are alike

static void fill_tensor(Llama *llama, const ParamTensor *t, uint64_t key, float *pattern) {
  Backend *be = llama->be;
  const int64_t n = t->rows * t->cols, most = n < PATTERN ? n : PATTERN;
  const double deviation = llama->config.initializer_range;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < most; i++)
    pattern[i] =
        t->rows == 1 ? 1 : (float)(deviation * rng_normal(key, (uint64_t)i)); // norms are 1
  for (int64_t i = 0; i < n; i += PATTERN)
    be->write_master(be, (char *)t->master + (size_t)i * be->master_bytes, pattern,
                     n - i < PATTERN ? n - i : PATTERN);
  be->zero(be, t->m, (size_t)n * be->master_bytes);
  be->zero(be, t->v, (size_t)n * be->master_bytes);
}

void bench_weights(Llama *llama, uint64_t seed) {
  float *pattern = xmalloc(PATTERN * sizeof *pattern);
  for (int i = 0; i < llama->param_count; i++)
    fill_tensor(llama, &llama->tensors[i], rng_mix(seed) + (uint64_t)i, pattern);
  free(pattern);
  llama->be->refresh(llama->be, llama->tensors, llama->param_count);
}

static int64_t max64(int64_t a, int64_t b) {
  return a > b ? a : b;
}

int bench_share(Llama *twin, const Llama *llama, Backend *be, Error *err) {
  const int L = (int)llama->config.num_hidden_layers;
  const size_t row = (size_t)be->max_tokens * be->stat_bytes, sumsq = (size_t)be->parts.sumsq * row,
               s = (size_t)max64(be->parts.gate_up, max64(be->parts.qkv, be->parts.logits)) * row,
               bytes = (size_t)(2 * L + 1) * sumsq + s;
  char *block = be->alloc(be, bytes);
  if (!block)
    return error_set(err, "the GPU has no %s left for the row statistics of the second kind",
                     size_text(bytes).text);
  be->zero(be, block, bytes);
  *twin = *llama;
  twin->be = be;
  twin->acts.layers = xmalloc((size_t)L * sizeof *twin->acts.layers);
  for (int l = 0; l < L; l++) {
    LayerActs *a = &twin->acts.layers[l];
    *a = llama->acts.layers[l];
    a->x_sumsq = block + (size_t)(2 * l) * sumsq;
    a->x1_sumsq = block + (size_t)(2 * l + 1) * sumsq;
  }
  twin->acts.final_sumsq = block + (size_t)(2 * L) * sumsq;
  twin->acts.s = block + (size_t)(2 * L + 1) * sumsq;
  return 0;
}

void bench_unshare(Llama *twin) {
  if (!twin->be) return;
  twin->be->release(twin->be, twin->acts.layers[0].x_sumsq); // where the block begins
  free(twin->acts.layers);
  *twin = (Llama){0};
}
