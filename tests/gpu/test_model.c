// The whole model on the CUDA backends against the CPU: the same weights, the same batches,
// 30 steps of AdamW.
#include "tests/gpu/gpu_test.h"

#include "base/os.h"
#include "model/llama.h"
#include "tests/support/shapes.h"

enum { STEPS = 30 };

typedef struct Case {
  const char *name; // of the test: its losses follow the CPU's
  const ModelConfig *model;
  int64_t B, T, chunks; // chunks, micro_batches 0: 1
  int micro_batches;
  int64_t documents;  // usual_documents; 0: whole windows
  bool biased;        // Spec.biases_documents
  bool deterministic; // a second training has the same bits
  MasterType masters;
  GradientType gradients;
} Case;

// Documents of up to a third of a window, to the end of the last; in every fourth step of two rows
// each, which are many more than usual. Returns their number.
static int64_t make_documents(const Case *c, int64_t step, int32_t *lengths) {
  int64_t count = 0;
  for (int64_t b = 0; b < c->B; b++)
    for (int64_t left = c->T; left > 0; left -= lengths[count++]) {
      const uint64_t draw = rng_u64(13, (uint64_t)(step * 1000 + count)) % ((uint64_t)c->T / 3);
      const int64_t rows = step % 4 == 3 ? 2 : (int64_t)draw + 1;
      lengths[count] = (int32_t)(rows < left ? rows : left);
    }
  return count;
}

// A text with structure: a token follows from the one before it, with some noise.
static void make_batch(const Case *c, int64_t step, int32_t *tokens, int32_t *targets) {
  const uint64_t V = (uint64_t)c->model->vocab_size;
  for (int64_t b = 0; b < c->B; b++) {
    uint64_t one = rng_u64(9, (uint64_t)(step * c->B + b)) % V;
    for (int64_t t = 0; t <= c->T; t++) {
      const uint64_t noise = rng_u64(11, (uint64_t)((step * c->B + b) * (c->T + 1) + t));
      const uint64_t next = noise % 8 == 0 ? noise / 8 % V : (5 * one + 1) % V;
      if (t < c->T) tokens[b * c->T + t] = (int32_t)next;
      if (t > 0) targets[b * c->T + t - 1] = (int32_t)next;
      one = next;
    }
  }
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

// Steps that were queued together and read together have times of their own, of which the sum is no
// more than what passed. The first one makes plans.
static void check_step_times(double *ms, double passed) {
  double sum = 0;
  for (int step = 0; step < STEPS; step++) sum += ms[step];
  assert_true(sum <= passed);
  qsort(ms + 1, STEPS - 1, sizeof *ms, by_value);
  if (!(ms[1] > 0.1 * ms[STEPS / 2]))
    fail_msg("steps take %g ms, and %g ms in the median", ms[1], ms[STEPS / 2]);
}

static void train(const Case *c, Backend *be, double *losses) {
  double ms[STEPS];
  int read = 0;
  int32_t *lengths = xcalloc((size_t)(c->B * c->T), sizeof *lengths);
  const AdamW hyper = {.learning_rate = 3e-3, .weight_decay = 0.1, .clip_norm = 1, USUAL_ADAMW};
  const size_t M = (size_t)(c->B * c->T);
  int32_t *tokens = xmalloc(M * sizeof *tokens), *targets = xmalloc(M * sizeof *targets);
  Llama llama;
  Error err;
  must(llama_create(&llama, c->model, be, &err), &err);
  llama_init_weights(&llama, 1);
  be->services.set_updates(be, 0);
  const double began = now_ms();
  for (int step = 0; step < STEPS; step++) {
    be->services.clock_start(be);
    be->services.step_begin(be);
    for (int i = 0; i < c->micro_batches; i++) {
      make_batch(c, step * c->micro_batches + i, tokens, targets);
      const int64_t documents = c->documents > 0 ? make_documents(c, step, lengths) : 0;
      llama_load_batch(&llama, &(Batch){.tokens = tokens,
                                        .targets = targets,
                                        .lengths = lengths,
                                        .documents = documents});
      llama_forward(&llama);
      llama_backward(&llama, 1.0 / c->micro_batches, i > 0);
    }
    be->grads_finish(be, llama.tensors, llama.param_count);
    be->services.set_hyper(be, &hyper);
    be->adamw(be, llama.tensors, llama.param_count);
    be->services.step_end(be);
    if ((step + 1) % MAX_RESULTS != 0 && step + 1 < STEPS) continue;
    for (; read <= step; read++) {
      const StepResult result = be->services.step_result(be);
      assert_true(result.applied);
      losses[read] = result.loss;
      ms[read] = result.ms;
    }
  }
  check_step_times(ms, now_ms() - began);
  llama_destroy(&llama);
  free(tokens);
  free(targets);
  free(lengths);
}

static void compare_losses(const Case *c, const char *name, const double *cpu, const double *gpu) {
  double worst = 0;
  for (int step = 0; step < STEPS; step++) {
    const double difference = fabs(cpu[step] - gpu[step]);
    if (!(difference <= worst)) worst = difference;
    if (step % 5 == 0 || step == STEPS - 1)
      printf("# %s, step %2d: cpu %.5f, %s %.5f\n", c->name, step, cpu[step], name, gpu[step]);
  }
  const double bound = 0.05; // bf16 rounding, over 30 updates that take the loss from 5.5 to 1.2
  printf("# %s: largest difference %.5f (bound %.5f)\n", c->name, worst, bound);
  fflush(stdout);
  if (!(worst <= bound)) fail_msg("the losses of cpu and %s differ by %g", name, worst);
}

static void compare(const Case *c) {
  double cpu[STEPS], gpu[STEPS], again[STEPS];
  const Spec asked = {TRAINS(c->B, c->T, c->chunks),
                      .usual_documents = c->documents,
                      .longest_document = c->T,
                      .masters = c->masters,
                      .grads_fp32 = c->micro_batches > 1 && c->gradients == GRADIENTS_AUTO,
                      .graphs = c->documents > 0,
                      .deterministic = c->deterministic};
  Spec spec = model_spec(c->model, asked);
  Backend *be = backend_cpu_create(&spec);
  train(c, be, cpu);
  be->services.destroy(be);
  spec.biases_documents = c->biased;
  assert_true(cpu[STEPS - 1] < cpu[0] - 0.3); // it learned something, so the update was tested too
  for (int mode = 0; mode < KERNEL_MODES; mode++) {
    spec.kernels = kernel_modes[mode].kernels;
    spec.mainloop = kernel_modes[mode].mainloop;
    be = gpu_backend(spec);
    train(c, be, gpu);
    compare_losses(c, be->name, cpu, gpu);
    if (c->deterministic) {
      train(c, be, again);
      assert_memory_equal(gpu, again, sizeof gpu);
    }
    be->services.destroy(be);
  }
}

static const ModelConfig untied = {MODEL_SHAPE(192, 512, 3, 6, 2, 32, 203, 128),
                                   .initializer_range = 0.05};
static const ModelConfig tied = {MODEL_SHAPE(128, 344, 2, 2, 2, 64, 256, 128),
                                 .tie_word_embeddings = true, .initializer_range = 0.05};

static const Case cases[] = {
    {"plain", &untied, .B = 4, .T = 96},
    {"with_bf16_masters", &untied, .B = 4, .T = 96, .masters = MASTERS_BF16},
    {"with_micro_batches_that_add_up_in_bf16", &untied, .B = 2, .T = 96, .chunks = 2,
     .micro_batches = 4, .gradients = GRADIENTS_BF16},
    // Recorded steps of the usual documents, between others of more.
    {"of_documents", &untied, .B = 4, .T = 96, .micro_batches = 2, .documents = 64},
    // Attention takes three documents at a time, and some of the recorded calls have none.
    {"of_documents_with_equal_bits", &untied, .B = 4, .T = 96, .micro_batches = 2, .documents = 64,
     .deterministic = true},
    {"of_biased_documents", &untied, .B = 4, .T = 96, .micro_batches = 2, .documents = 64,
     .biased = true},
    {"of_biased_documents_with_equal_bits", &untied, .B = 4, .T = 96, .micro_batches = 2,
     .documents = 64, .biased = true, .deterministic = true},
    {"tied_in_chunks_and_micro_batches", &tied, .B = 4, .T = 77, .chunks = 2, .micro_batches = 2},
    {"tied_in_chunks", &tied, .B = 4, .T = 77, .chunks = 2}, // which add up apart
};
enum { CASES = sizeof cases / sizeof *cases };

static void losses_follow_the_cpu(void **state) {
  Case c = *(const Case *)*state;
  if (c.chunks == 0) c.chunks = 1;
  if (c.micro_batches == 0) c.micro_batches = 1;
  compare(&c);
}

int main(void) {
  struct CMUnitTest tests[CASES];
  for (int i = 0; i < CASES; i++)
    tests[i] = (struct CMUnitTest){cases[i].name, losses_follow_the_cpu, NULL, NULL,
                                   (void *)(uintptr_t)&cases[i]};
  cmocka_set_test_filter(getenv("TEST_FILTER"));
  return _cmocka_run_group_tests("losses follow the CPU", tests, CASES, NULL, NULL);
}
