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
  for (int64_t i = 0; i < n; i += PATTERN) {
    master_t *to = (master_t *)((uintptr_t)t->master + (size_t)i * be->master_bytes);
    be->write_master(be, to, pattern, n - i < PATTERN ? n - i : PATTERN);
  }
}

void bench_weights(Llama *llama, uint64_t seed) {
  float *pattern = xmalloc(PATTERN * sizeof *pattern);
  for (int i = 0; i < llama->param_count; i++)
    fill_tensor(llama, &llama->tensors[i], rng_mix(seed) + (uint64_t)i, pattern);
  free(pattern);
  llama_zero_moments(llama);
  llama->be->refresh(llama->be, llama->tensors, llama->param_count);
}

static void take_stat(Arena *arena, const Backend *be, int64_t most_parts, RowStat *s) {
  s->stride = be->max_tokens;
  s->data = arena_take(arena, (size_t)(most_parts * s->stride) * be->stat_bytes);
}

static size_t lay_out_statistics(Acts *acts, int64_t L, const Backend *be, char *block) {
  Arena arena = {block, 0};
  for (int64_t l = 0; l < L; l++) {
    take_stat(&arena, be, be->most_parts.sumsq, &acts->layers[l].x_sumsq);
    take_stat(&arena, be, be->most_parts.sumsq, &acts->layers[l].x1_sumsq);
  }
  take_stat(&arena, be, be->most_parts.sumsq, &acts->layers[L].x_sumsq);
  take_stat(&arena, be, be->most_parts.s, &acts->s);
  return arena.used;
}

int bench_share(Llama *to, const Llama *llama, Backend *be, Error *err) {
  const int64_t L = llama->config.num_hidden_layers;
  *to = *llama;
  to->be = be;
  if (!be->folds_softmax) to->acts.softmax_scale = NULL;
  to->acts.layers = xmalloc((size_t)(L + 1) * sizeof *to->acts.layers);
  for (int64_t l = 0; l <= L; l++) to->acts.layers[l] = llama->acts.layers[l];
  const size_t bytes = lay_out_statistics(&to->acts, L, be, NULL);
  to->acts_block = be->alloc(be, bytes);
  if (!to->acts_block) {
    bench_unshare(to);
    return error_set(err, "the GPU has no %s left for the row statistics of the second kind",
                     size_text(bytes).text);
  }
  be->zero(be, to->acts_block, bytes);
  lay_out_statistics(&to->acts, L, be, to->acts_block);
  return 0;
}

void bench_unshare(Llama *to) {
  if (!to->be) return;
  if (to->acts_block) to->be->release(to->be, to->acts_block);
  free(to->acts.layers);
  *to = (Llama){0};
}

int bench_sum_apart(Llama *llama, size_t *bytes, Error *err) {
  ParamTensor *head = llama->lm_head;
  *bytes = 0;
  if (!head->part_sum) return 0;
  *bytes = (size_t)(head->rows * head->cols) * llama->be->stat_bytes;
  head->part_sum = (stat_t *)llama->be->alloc(llama->be, *bytes);
  if (head->part_sum) return 0;
  return error_set(err, "the GPU has no %s left for the sum of lm_head's gradient",
                   size_text(*bytes).text);
}

void issue_slice(Llama *llama, int index, bool accumulate) {
  const int64_t l = index % llama->config.num_hidden_layers,
                chunk = index % llama->shape.loss_chunks;
  const double per_token = 1 / (double)(llama->shape.batch * llama->shape.seq);
  embed_forward(llama);
  layer_forward(llama, l);
  head_backward(llama, chunk, per_token, accumulate);
  layer_backward(llama, l, accumulate);
  embed_backward(llama, accumulate);
  params_update(llama);
}

void issue_alone(Llama *llama, Operation operation, int index, bool accumulate) {
  llama->left_out = ~(1u << operation);
  issue_slice(llama, index, accumulate);
  llama->left_out = 0;
}

Recorder *record_slice(const Llama *llama) {
  const OpsConfig ops = llama_ops_config(&llama->config, &llama->shape, 1, 0);
  Recorder *recorder = recorder_create(&ops, llama->be);
  Llama recorded = *llama;
  recorded.be = &recorder->base;
  issue_slice(&recorded, 0, false);
  return recorder;
}

const OperationCall *record_alone(Recorder *recorder, const Llama *llama, Operation operation,
                                  int index) {
  Llama recorded = *llama;
  recorded.be = &recorder->base;
  recorder->count = 0;
  issue_alone(&recorded, operation, index, false);
  return recorder->calls;
}

int prepared_by(const OperationCall *calls, int i) {
  const Operation operation = calls[i].operation;
  const bool of_head = operation == OP_LM_HEAD_WGRAD || operation == OP_LM_HEAD_DGRAD;
  const void *input = calls[i].made_before;
  int j = input || of_head ? i - 1 : -1;
  while (j >= 0 &&
         (of_head ? calls[j].operation != OP_HEAD_LOSS
                  : calls[j].out != input && calls[j].beside != input && calls[j].copies != input))
    j--;
  return j;
}

void list_makers(const Recorder *slice, int makers[OPERATION_COUNT]) {
  for (int i = 0; i < OPERATION_COUNT; i++) makers[i] = -1;
  for (int i = 0; i < slice->count; i++) {
    const int maker = prepared_by(slice->calls, i);
    if (maker >= 0) makers[slice->calls[i].operation] = (int)slice->calls[maker].operation;
  }
}

void issue_inputs(Llama *llama, Recorder *recorder, const int makers[OPERATION_COUNT],
                  Operation operation, int index) {
  const OperationCall call = *record_alone(recorder, llama, operation, index);
  if (call.fp8 && call.input.data) {
    const bool transposed = call.form == GEMM_TN;
    llama->be->repack(llama->be, transposed ? call.K : call.M, transposed ? call.M : call.K,
                      call.input);
  }
  if (makers[operation] < 0) return;
  const Operation maker = (Operation)makers[operation];
  issue_inputs(llama, recorder, makers, maker, index);
  issue_alone(llama, maker, index, false);
}
