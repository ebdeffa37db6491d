// Times whole training steps on the unfused CUDA backend. Usage: bench_step [1b|350m|110m|15m]
// [loss_chunks]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/unfused/backend_unfused.h"
#include "model/llama.h"

enum { STEPS = 12, PATTERN = 1 << 20 };

typedef struct Size {
  const char *name;
  ModelConfig model;
  int64_t B, T;
} Size;

static const Size sizes[] = {
    {"1b", {2048, 8192, 16, 32, 8, 64, 128256, 4096, 1e-5, 500000, false, 0.02, {0}}, 8, 4096},
    {"350m", {1024, 2816, 24, 16, 16, 64, 32000, 2048, 1e-5, 500000, false, 0.02, {0}}, 16, 2048},
    {"110m", {768, 2048, 12, 12, 12, 64, 32000, 1024, 1e-5, 500000, false, 0.02, {0}}, 32, 1024},
    {"15m", {288, 768, 6, 6, 6, 48, 32000, 256, 1e-5, 500000, false, 0.02, {0}}, 128, 256},
};

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

// Random weights from one repeated pattern: real ones would take the host a minute.
static void set_weights(Llama *llama) {
  Backend *be = llama->be;
  float *pattern = xmalloc(PATTERN * sizeof *pattern);
  for (uint64_t i = 0; i < PATTERN; i++) pattern[i] = (float)(0.02 * rng_normal(4, i));
  float ones[8192];
  for (int i = 0; i < 8192; i++) ones[i] = 1;
  for (int i = 0; i < llama->param_count; i++) {
    const ParamTensor *t = &llama->tensors[i];
    const int64_t n = t->rows * t->cols;
    for (int64_t done = 0; done < n; done += PATTERN) {
      const int64_t part = n - done < PATTERN ? n - done : PATTERN;
      be->write_master(be, (float *)t->master + done, t->rows == 1 ? ones : pattern, part);
    }
    be->zero(be, t->m, (size_t)n * be->master_bytes);
    be->zero(be, t->v, (size_t)n * be->master_bytes);
  }
  be->refresh(be, llama->tensors, llama->param_count);
  free(pattern);
}

static void step(Llama *llama, const int32_t *tokens, const int32_t *targets) {
  const AdamW hyper = {1e-4, 0.9, 0.95, 1e-8, 0.1, 1};
  Backend *be = llama->be;
  be->step_begin(be);
  llama_load_batch(llama, tokens, targets);
  llama_forward(llama);
  llama_loss_backward(llama, 1, false);
  be->grads_finish(be, llama->tensors, llama->param_count);
  be->adamw(be, llama->tensors, llama->param_count, &hyper);
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  const Size *s = &sizes[0];
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (argc > 1 && strcmp(argv[1], sizes[i].name) == 0) s = &sizes[i];
  const int64_t chunks = argc > 2 ? atoll(argv[2]) : 1, M = s->B * s->T;
  const RunShape shape = {.batch = s->B, .seq = s->T, .loss_chunks = chunks, .train = true};
  const OpsConfig config = llama_ops_config(&s->model, &shape, s->T, 0);
  const UnfusedOptions options = {
      .train = true, .batch = s->B, .seq = s->T, .loss_tokens = M / chunks};
  Error err;
  double start = now_ms();
  Backend *be = backend_unfused_create(&config, &options, &err);
  Llama llama;
  if (!be || llama_create(&llama, &s->model, &shape, be, &err)) {
    fprintf(stderr, "%s\n", err.text);
    return 1;
  }
  const double created = now_ms() - start;
  set_weights(&llama);
  int32_t *tokens = xmalloc((size_t)M * sizeof *tokens),
          *targets = xmalloc((size_t)M * sizeof *targets);
  for (int64_t m = 0; m < M; m++) {
    tokens[m] = (int32_t)(rng_u64(1, (uint64_t)m) % (uint64_t)s->model.vocab_size);
    targets[m] = (int32_t)(rng_u64(2, (uint64_t)m) % (uint64_t)s->model.vocab_size);
  }
  double times[STEPS];
  StepResult result = {0};
  step(&llama, tokens, targets);
  be->step_result(be);
  for (int i = 0; i < STEPS; i++) {
    start = now_ms();
    step(&llama, tokens, targets);
    result = be->step_result(be);
    times[i] = now_ms() - start;
  }
  qsort(times, STEPS, sizeof *times, by_value);
  printf("%s, batch %lld x %lld, %lld chunk%s: %.2f ms a step (%.2f to %.2f), %.0f tokens/s, "
         "set-up %.1f s, loss %.4f\n",
         s->name, (long long)s->B, (long long)s->T, (long long)chunks, chunks == 1 ? "" : "s",
         times[STEPS / 2], times[0], times[STEPS - 1], (double)M / times[STEPS / 2] * 1e3,
         created * 1e-3, result.loss);
  llama_destroy(&llama);
  be->destroy(be);
  free(tokens);
  free(targets);
  free((void *)config.inv_freq);
  return 0;
}
