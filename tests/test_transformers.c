// The model against Hugging Face transformers, on the fixtures that scripts/make_fixtures.py wrote
// (expected values computed in fp64): logits, loss, every gradient, and the weights after 5 steps
// of AdamW. Every comparison prints its worst observed error beside its bound.
//
// With COMPARE_DIR set it writes instead: per fixture a checkpoint of the trained model and its
// logits, for scripts/check_transformers.py to load into transformers.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/memory.h"
#include "model/checkpoint.h"
#include "model/layout.h"
#include "model/llama.h"
#include "model/safetensors.h"

// Largest accepted errors (see `difference`), and what fp32 on the CPU was observed to give: the
// worst over all fixtures and over OpenBLAS' kernels for five kinds of processor. What remains is
// rounding: the same code in fp64 gives 6e-8 at most, 6e-6 for updates.
static const double logits_bound = 5e-6;     // observed 7.4e-7
static const double scalar_bound = 1.5e-6;   // losses and gradient norms: observed 2.5e-7
static const double gradient_bound = 1.5e-5; // observed 2.9e-6
static const double update_bound = 4e-4;     // observed 6.8e-5

static const char *const fixtures[] = {"gqa_untied", "mha_tied", "llama3_rope", "wide_heads"};
enum { FIXTURES = sizeof fixtures / sizeof *fixtures, STEPS = 5 };

// What make_fixtures.py trains with.
static const AdamW adamw = {.learning_rate = 1e-3,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-4,
                            .weight_decay = 0.1,
                            .clip_norm = 1};

// A fixture loaded into our model, `micro_batches` of equal size to a step.
typedef struct Rig {
  const char *fixture;
  char *folder;
  ModelConfig model;
  SafeFile initial, expected;
  int hf_count;
  HfTensor *hf;
  int64_t tokens_count;               // B T
  const int32_t *input_ids, *targets; // [B, T], in the mapped file
  int64_t micro_batches;
  Backend *be;
  Llama llama;
} Rig;

static void must(int status, const Error *err) {
  if (status != 0) fail_msg("%s", err->text);
}

static const SafeTensor *find(const SafeFile *file, const char *prefix, const char *name) {
  char *full = xasprintf("%s%s", prefix, name);
  const SafeTensor *t = safetensors_find(file, full);
  if (!t) fail_msg("the fixture lacks %s", full);
  free(full);
  return t;
}

static int64_t elements(const SafeTensor *t) {
  int64_t count = 1;
  for (int i = 0; i < t->rank; i++) count *= t->shape[i];
  return count;
}

// The whole tensor in fresh memory.
static float *read_floats(const SafeFile *file, const SafeTensor *t) {
  Error err = {0};
  float *values = xmalloc((size_t)elements(t) * sizeof *values);
  must(safetensors_read_f32(file, t, 0, elements(t), values, &err), &err);
  return values;
}

static const int32_t *read_ids(const SafeFile *file, const char *name) {
  const SafeTensor *t = find(file, name, "");
  assert_int_equal(t->dtype, SAFE_I32);
  return (const int32_t *)(const void *)(file->data + t->begin);
}

static char *fixture_file(const Rig *rig, const char *name) {
  return xasprintf("%s/%s", rig->folder, name);
}

static void rig_open(Rig *rig, const char *fixture, int64_t micro_batches, int64_t loss_chunks) {
  Error err = {0};
  *rig = (Rig){.fixture = fixture, .micro_batches = micro_batches};
  rig->folder = xasprintf("tests/fixtures/%s", fixture);

  char *path = fixture_file(rig, "config.json"), *json = NULL;
  size_t bytes = 0;
  must(file_read(path, 1 << 20, &json, &bytes, &err), &err);
  must(model_config_parse(&rig->model, path, json, &err), &err);
  free(json);
  free(path);
  path = fixture_file(rig, "model.safetensors");
  must(safetensors_open(&rig->initial, path, &err), &err);
  free(path);
  path = fixture_file(rig, "expected.safetensors");
  must(safetensors_open(&rig->expected, path, &err), &err);
  free(path);

  rig->hf_count = hf_tensor_count(&rig->model);
  rig->hf = xcalloc((size_t)rig->hf_count, sizeof *rig->hf);
  hf_tensor_list(&rig->model, rig->hf);
  const SafeTensor *ids = find(&rig->expected, "input_ids", "");
  rig->tokens_count = elements(ids);
  rig->input_ids = read_ids(&rig->expected, "input_ids");
  rig->targets = read_ids(&rig->expected, "targets");

  const RunShape shape = {.batch = ids->shape[0] / micro_batches,
                          .seq = ids->shape[1],
                          .loss_chunks = loss_chunks,
                          .train = true};
  const OpsConfig ops = llama_ops_config(&rig->model, &shape, shape.seq, 2);
  rig->be = backend_cpu_create(&ops);
  free((void *)ops.inv_freq);
  must(llama_create(&rig->llama, &rig->model, &shape, rig->be, &err), &err);
  llama_init_weights(&rig->llama, 0); // the moments; the load overwrites the weights
  must(checkpoint_load(rig->folder, &rig->llama, false, &err), &err);
}

static void rig_close(Rig *rig) {
  llama_destroy(&rig->llama);
  rig->be->destroy(rig->be);
  safetensors_close(&rig->initial);
  safetensors_close(&rig->expected);
  free(rig->hf);
  free(rig->folder);
}

// ---- Running

// Loss and gradients of the whole batch, ready for AdamW.
static void step_backward(Rig *rig) {
  const int64_t size = rig->tokens_count / rig->micro_batches;
  rig->be->step_begin(rig->be);
  for (int64_t i = 0; i < rig->micro_batches; i++) {
    llama_load_batch(&rig->llama, rig->input_ids + i * size, rig->targets + i * size);
    llama_forward(&rig->llama);
    llama_loss_backward(&rig->llama, 1.0 / (double)rig->micro_batches, i > 0);
  }
  rig->be->grads_finish(rig->be, rig->llama.tensors, rig->llama.param_count);
}

static StepResult step_update(Rig *rig) {
  rig->be->set_hyper(rig->be, &adamw);
  rig->be->adamw(rig->be, rig->llama.tensors, rig->llama.param_count);
  rig->be->step_end(rig->be);
  return rig->be->step_result(rig->be);
}

// Logits [B, T, V] of the whole batch, in fresh memory. One micro-batch, one chunk only.
static float *batch_logits(Rig *rig) {
  const int64_t count = rig->tokens_count * rig->model.vocab_size;
  float *logits = xmalloc((size_t)count * sizeof *logits);
  rig->be->step_begin(rig->be);
  llama_load_batch(&rig->llama, rig->input_ids, rig->targets);
  llama_forward(&rig->llama);
  llama_loss(&rig->llama, 1.0);
  rig->be->step_end(rig->be);
  const Acts *a =
      &rig->llama
           .acts; // the loss may leave anything in the logits' place: make them as generation does
  rig->be->lm_head(rig->be, rig->tokens_count, a->x_final, a->final_sumsq,
                   rig->llama.tensors[param_index(&rig->model, PARAM_LM_HEAD, -1)].folded,
                   a->logits);
  rig->be->read_act(rig->be, logits, rig->llama.acts.logits, count);
  return logits;
}

// A Hugging Face tensor out of the packed one, whose values are in `packed`.
static float *unpack(const Rig *rig, const HfTensor *t, float *packed) {
  float *values = xmalloc((size_t)(t->rows * t->cols) * sizeof *values);
  for (int64_t row = 0; row < t->rows; row++)
    memcpy(values + row * t->cols, packed + layout_packed_row(&rig->model, t, row) * t->cols,
           (size_t)t->cols * sizeof *values);
  free(packed);
  return values;
}

static float *packed_buffer(const ParamTensor *p) {
  return xmalloc((size_t)(p->rows * p->cols) * sizeof(float));
}

static float *read_gradient(const Rig *rig, const HfTensor *t) {
  const ParamTensor *p = &rig->llama.tensors[t->param];
  float *packed = packed_buffer(p);
  rig->be->read_grad(rig->be, packed, p->grad, p->rows * p->cols);
  return unpack(rig, t, packed);
}

static float *read_weight(const Rig *rig, const HfTensor *t) {
  const ParamTensor *p = &rig->llama.tensors[t->param];
  float *packed = packed_buffer(p);
  rig->be->read_master(rig->be, packed, p->master, p->rows * p->cols);
  return unpack(rig, t, packed);
}

// ---- Comparing

// The worse of |got - want| / |want| over the whole tensor (L2) and of the largest element's
// difference over the largest element. Infinite where it is not a number.
static double difference(const float *got, const float *want, int64_t count) {
  double diff2 = 0, want2 = 0, diff_max = 0, want_max = 0;
  for (int64_t i = 0; i < count; i++) {
    const double diff = fabs((double)got[i] - (double)want[i]), size = fabs((double)want[i]);
    diff2 += diff * diff;
    want2 += size * size;
    if (diff > diff_max) diff_max = diff;
    if (size > want_max) want_max = size;
  }
  const double l2 = sqrt(diff2 / want2), max = diff_max / want_max;
  return isnan(l2) || isnan(max) ? INFINITY : fmax(l2, max);
}

typedef struct Worst {
  double error;
  const char *name;
} Worst;

static const Worst nothing = {-1, "nothing"};

static void worst_of(Worst *worst, double error, const char *name) {
  if (error > worst->error) *worst = (Worst){error, name};
}

static void check_worst(const Rig *rig, const char *what, Worst worst, double bound) {
  printf("# %s, %s: worst is %s, observed %.1e, bound %.1e\n", rig->fixture, what, worst.name,
         worst.error, bound);
  if (!(worst.error >= 0 && worst.error <= bound))
    fail_msg("%s of %s differs by %.2e (bound %.2e)", what, worst.name, worst.error, bound);
}

static void worst_scalar(const Rig *rig, const char *name, int64_t index, double got,
                         Worst *worst) {
  float *want = read_floats(&rig->expected, find(&rig->expected, name, ""));
  const double error = fabs(got - want[index]) / fabs(want[index]);
  worst_of(worst, isnan(error) ? INFINITY : error, name);
  free(want);
}

static void check_gradients(const Rig *rig, const char *what) {
  Worst worst = nothing;
  for (int i = 0; i < rig->hf_count; i++) {
    const HfTensor *t = &rig->hf[i];
    const SafeTensor *expected = find(&rig->expected, "grad.", t->name);
    assert_int_equal(elements(expected), t->rows * t->cols);
    float *got = read_gradient(rig, t), *want = read_floats(&rig->expected, expected);
    worst_of(&worst, difference(got, want, t->rows * t->cols), t->name);
    free(got);
    free(want);
  }
  check_worst(rig, what, worst, gradient_bound);
}

// ---- Tests, one of each for every fixture

static void test_logits(void **state) {
  Rig rig;
  rig_open(&rig, *state, 1, 1);
  float *got = batch_logits(&rig);
  const SafeTensor *t = find(&rig.expected, "logits", "");
  float *want = read_floats(&rig.expected, t);
  assert_int_equal(elements(t), rig.tokens_count * rig.model.vocab_size);
  Worst logits = nothing, loss = nothing;
  worst_of(&logits, difference(got, want, elements(t)), "logits");
  worst_scalar(&rig, "loss", 0, rig.be->step_result(rig.be).loss, &loss);
  check_worst(&rig, "logits", logits, logits_bound);
  check_worst(&rig, "loss", loss, scalar_bound);
  free(got);
  free(want);
  rig_close(&rig);
}

// micro_batches and loss_chunks change the order of sums only.
static void gradients_with(const char *fixture, int64_t micro_batches, int64_t loss_chunks,
                           const char *what) {
  Rig rig;
  rig_open(&rig, fixture, micro_batches, loss_chunks);
  step_backward(&rig);
  check_gradients(&rig, what);
  Worst loss = nothing;
  worst_scalar(&rig, "loss", 0, step_update(&rig).loss, &loss);
  check_worst(&rig, "loss", loss, scalar_bound);
  rig_close(&rig);
}

static void test_gradients(void **state) {
  gradients_with(*state, 1, 1, "gradients");
}

static void test_gradients_accumulated(void **state) {
  gradients_with(*state, 2, 1, "gradients of 2 micro-batches");
}

static void test_gradients_chunked(void **state) {
  gradients_with(*state, 1, 2, "gradients with the loss in 2 chunks");
}

// The error of a weight is measured against the way it has gone: its size would hide it.
static double update_difference(const Rig *rig, const HfTensor *t) {
  const int64_t count = t->rows * t->cols;
  float *got = read_weight(rig, t);
  float *want = read_floats(&rig->expected, find(&rig->expected, "step5.", t->name));
  float *start = read_floats(&rig->initial, find(&rig->initial, "", t->name));
  for (int64_t i = 0; i < count; i++) {
    got[i] -= start[i];
    want[i] -= start[i];
  }
  const double error = difference(got, want, count);
  free(got);
  free(want);
  free(start);
  return error;
}

static void test_adamw(void **state) {
  Rig rig;
  rig_open(&rig, *state, 1, 1);
  Worst losses = nothing, updates = nothing;
  for (int64_t step = 0; step < STEPS; step++) {
    step_backward(&rig);
    const StepResult result = step_update(&rig);
    assert_true(result.applied);
    assert_int_equal(result.updates, step + 1);
    worst_scalar(&rig, "losses5", step, result.loss, &losses);
    worst_scalar(&rig, "grad_norms5", step, result.grad_norm, &losses);
  }
  for (int i = 0; i < rig.hf_count; i++)
    worst_of(&updates, update_difference(&rig, &rig.hf[i]), rig.hf[i].name);
  check_worst(&rig, "losses and gradient norms of 5 steps", losses, scalar_bound);
  check_worst(&rig, "weight updates of 5 steps", updates, update_bound);
  rig_close(&rig);
}

// ---- The other way: what transformers makes of a checkpoint of ours

static void write_logits(const Rig *rig, const char *path, const float *logits) {
  Error err = {0};
  const SafeTensor *ids = find(&rig->expected, "input_ids", "");
  const size_t ids_bytes = (size_t)rig->tokens_count * sizeof(int32_t);
  const size_t logits_bytes = (size_t)(rig->tokens_count * rig->model.vocab_size) * sizeof(float);
  char ids_name[] = "input_ids", logits_name[] = "logits";
  const SafeTensor tensors[] = {
      {ids_name, SAFE_I32, 2, {ids->shape[0], ids->shape[1]}, 0, ids_bytes},
      {logits_name,
       SAFE_F32,
       3,
       {ids->shape[0], ids->shape[1], rig->model.vocab_size},
       ids_bytes,
       ids_bytes + logits_bytes},
  };
  SafeWriter writer;
  must(safetensors_create(&writer, path, 2, tensors, &err), &err);
  must(safetensors_append(&writer, rig->input_ids, ids_bytes, &err), &err);
  must(safetensors_append(&writer, logits, logits_bytes, &err), &err);
  must(safetensors_finish(&writer, &err), &err);
}

// COMPARE_DIR/FIXTURE/latest and COMPARE_DIR/FIXTURE/logits.safetensors
static void write_checkpoint(void **state) {
  Error err = {0};
  Rig rig;
  rig_open(&rig, *state, 1, 1);
  for (int step = 0; step < STEPS; step++) {
    step_backward(&rig);
    step_update(&rig);
  }
  Config config;
  char *json = xasprintf("{\"model\": \"%s/config.json\", \"data\": {\"train\": \"unused.bin\"}, "
                         "\"train\": {\"steps\": %d, \"sequence_length\": %lld}, "
                         "\"output\": {\"dir\": \"unused\"}}",
                         rig.folder, STEPS, (long long)rig.llama.shape.seq);
  must(config_parse(&config, "config of the test", json, 0, NULL, &err), &err);
  free(json);

  char *run_dir = xasprintf("%s/%s", getenv("COMPARE_DIR"), rig.fixture);
  char *logits_path = xasprintf("%s/logits.safetensors", run_dir);
  const TrainState done = {.step = STEPS, .updates = STEPS, .best_val_loss = NAN};
  must(directory_create(run_dir, &err), &err);
  must(checkpoint_save(run_dir, &rig.llama, &config, &done, 1, &err), &err);
  float *logits = batch_logits(&rig);
  write_logits(&rig, logits_path, logits);
  free(logits);
  free(logits_path);
  free(run_dir);
  rig_close(&rig);
}

typedef struct Kind {
  const char *sentence; // %s: the fixture
  CMUnitTestFunction run;
} Kind;

static const Kind comparisons[] = {
    {"logits_and_loss_of_%s_match_transformers", test_logits},
    {"gradients_of_%s_match_transformers", test_gradients},
    {"gradients_of_%s_match_over_two_micro_batches", test_gradients_accumulated},
    {"gradients_of_%s_match_with_the_loss_in_chunks", test_gradients_chunked},
    {"five_adamw_steps_of_%s_match_transformers", test_adamw},
};
static const Kind writing[] = {{"a_checkpoint_of_%s_is_written", write_checkpoint}};

enum { KINDS = sizeof comparisons / sizeof *comparisons };

int main(void) {
  const bool write = getenv("COMPARE_DIR") != NULL;
  const Kind *kinds = write ? writing : comparisons;
  const size_t kind_count = write ? 1 : KINDS;
  struct CMUnitTest tests[KINDS * FIXTURES] = {0};
  char names[KINDS * FIXTURES][96];
  size_t count = 0;
  for (size_t f = 0; f < FIXTURES; f++)
    for (size_t k = 0; k < kind_count; k++, count++) {
      snprintf(names[count], sizeof names[count], kinds[k].sentence, fixtures[f]);
      tests[count] = (struct CMUnitTest){names[count], kinds[k].run, NULL, NULL,
                                         (void *)(uintptr_t)fixtures[f]};
    }
  return _cmocka_run_group_tests("transformers", tests, count, NULL, NULL);
}
