#include "tests/support/fixtures.h"

#include "tests/support/gradient.h"
#include "tests/support/safe_values.h"
#include "tests/support/shapes.h"
#include "tests/support/test.h"
#include "tests/support/tiny_run.h"

const char *const fixtures[FIXTURES] = {"gqa_untied",  "mha_tied",   "llama3_rope",
                                        "linear_rope", "wide_heads", "documents"};
const char *const muon_fixtures[MUON_FIXTURES] = {"gqa_untied", "mha_tied", "wide_heads"};

// What make_fixtures.py trains with.
static AdamW adamw_of(RigUpdate update, double gradient_scale) {
  return (AdamW){.learning_rate = 1e-3,
                 .norm_rate = update == BY_ADAMW_AT_RATES ? 3 : 1,
                 .beta1 = 0.9,
                 .beta2 = 0.95,
                 .eps = 1e-4,
                 .weight_decay = 0.1,
                 .momentum = 0.95,
                 .clip_norm = 1,
                 .gradient_scale = gradient_scale};
}
static const char *const steps_files[] = {
    [BY_MUON] = "muon.safetensors",
    [BY_ADAMW_AT_RATES] = "rates.safetensors",
};

static const SafeTensor *find(const SafeFile *file, const char *prefix, const char *name) {
  char *full = xasprintf("%s%s", prefix, name);
  const SafeTensor *t = safetensors_find(file, full);
  if (!t) fail_msg("the fixture lacks %s", full);
  free(full);
  return t;
}

const SafeTensor *rig_expected(const Rig *rig, const char *prefix, const char *name) {
  return find(&rig->expected, prefix, name);
}

// The file whose values of this name are the rig's own.
static const SafeFile *expected_in(const Rig *rig, const char *name) {
  return safetensors_find(&rig->steps, name) ? &rig->steps : &rig->expected;
}

static int64_t elements(const SafeTensor *t) {
  int64_t count = 1;
  for (int i = 0; i < t->rank; i++) count *= t->shape[i];
  return count;
}

// The whole tensor in fresh memory.
static float *read_floats(const SafeFile *file, const SafeTensor *t) {
  float *values = xmalloc((size_t)elements(t) * sizeof *values);
  safe_floats(file, t, 0, elements(t), values);
  return values;
}

static int32_t *read_ids(const SafeFile *file, const char *name) {
  const SafeTensor *t = find(file, name, "");
  assert_int_equal(t->dtype, SAFE_I32);
  return (int32_t *)(void *)(uintptr_t)safe_data(file, t);
}

// Whole windows where the fixture has no lengths.
static void read_documents(Rig *rig) {
  const SafeTensor *t = safetensors_find(&rig->expected, "lengths");
  if (!t) return;
  rig->documents = elements(t);
  rig->lengths = read_ids(&rig->expected, "lengths");
}

static char *fixture_file(const Rig *rig, const char *name) {
  return xasprintf("%s/%s", rig->folder, name);
}

Backend *rig_cpu(const Spec *spec, int64_t micro_batches) {
  (void)micro_batches;
  return backend_cpu_create(spec);
}

static void open_tensors(const Rig *rig, SafeFile *file, const char *name) {
  char *path = fixture_file(rig, name);
  safe_open(file, path);
  free(path);
}

void rig_open_update(Rig *rig, const char *fixture, int64_t micro_batches, int64_t loss_chunks,
                     RigUpdate update, RigBackend *create) {
  const bool muon = update == BY_MUON;
  Error err = {0};
  *rig = (Rig){.fixture = fixture, .micro_batches = micro_batches};
  rig->folder = xasprintf("tests/fixtures/%s", fixture);

  char *path = fixture_file(rig, "config.json"), *json = NULL;
  size_t bytes = 0;
  must(file_read(path, 1 << 20, &json, &bytes, &err), &err);
  must(model_config_parse(&rig->model, path, json, &err), &err);
  free(json);
  free(path);
  open_tensors(rig, &rig->initial, "model.safetensors");
  open_tensors(rig, &rig->expected, "expected.safetensors");
  if (steps_files[update]) open_tensors(rig, &rig->steps, steps_files[update]);

  rig->hf = hf_tensor_list(&rig->model, &rig->hf_count);
  const SafeTensor *ids = find(&rig->expected, "input_ids", "");
  rig->tokens_count = elements(ids);
  rig->input_ids = read_ids(&rig->expected, "input_ids");
  rig->targets = read_ids(&rig->expected, "targets");
  for (int64_t i = 0; i < rig->tokens_count; i++) rig->counted += rig->targets[i] != NO_TARGET;
  rig->hyper = adamw_of(update, (double)rig->tokens_count / (double)rig->counted);
  read_documents(rig);

  const Spec asked = {TRAINS(ids->shape[0] / micro_batches, ids->shape[1], loss_chunks),
                      .muon = muon, .usual_documents = rig->documents,
                      .longest_document = ids->shape[1], .threads = 2};
  const Spec spec = model_spec(&rig->model, asked);
  rig->be = create(&spec, micro_batches);
  must(llama_create(&rig->llama, &rig->model, rig->be, &err), &err);
  llama_init_weights(&rig->llama, 0); // the moments; the load overwrites the weights
  must(tiny_load(rig->folder, &rig->llama, false, &err), &err);
}

void rig_open(Rig *rig, const char *fixture, int64_t micro_batches, int64_t loss_chunks,
              RigBackend *create) {
  rig_open_update(rig, fixture, micro_batches, loss_chunks, BY_ADAMW, create);
}

void rig_close(Rig *rig) {
  safetensors_close(&rig->steps);
  llama_destroy(&rig->llama);
  rig->be->services.destroy(rig->be);
  safetensors_close(&rig->initial);
  safetensors_close(&rig->expected);
  free(rig->hf);
  free(rig->folder);
}

// ---- Running

static float gradient_scale(const Rig *rig) {
  return (float)rig->tokens_count / (float)rig->counted;
}

// Rows [first, first + rows), where documents begin and end.
static void load_rows(Rig *rig, int64_t first, int64_t rows) {
  int64_t at = 0, document = 0, count = 0;
  while (document < rig->documents && at < first) at += rig->lengths[document++];
  while (document + count < rig->documents && at < first + rows)
    at += rig->lengths[document + count++];
  llama_load_batch(&rig->llama, &(Batch){.tokens = rig->input_ids + first,
                                         .targets = rig->targets + first,
                                         .lengths = rig->lengths + document,
                                         .documents = count});
}

void rig_backward(Rig *rig) {
  const int64_t size = rig->tokens_count / rig->micro_batches;
  rig->be->services.step_begin(rig->be);
  for (int64_t i = 0; i < rig->micro_batches; i++) {
    load_rows(rig, i * size, size);
    llama_forward(&rig->llama);
    llama_backward(&rig->llama, 1.0 / (double)rig->micro_batches, i > 0);
  }
  rig->be->grads_finish(rig->be, rig->llama.tensors, rig->llama.param_count);
}

StepResult rig_update(Rig *rig) {
  rig->be->services.set_hyper(rig->be, &rig->hyper);
  if (rig->llama.spec.muon) rig->be->muon(rig->be, rig->llama.tensors, rig->llama.param_count);
  rig->be->adamw(rig->be, rig->llama.tensors, rig->llama.param_count);
  rig->be->services.step_end(rig->be);
  return rig->be->services.step_result(rig->be);
}

float *rig_logits(Rig *rig, double *loss) {
  const int64_t count = rig->tokens_count * rig->model.vocab_size;
  float *logits = xmalloc((size_t)count * sizeof *logits);
  rig->be->services.step_begin(rig->be);
  load_rows(rig, 0, rig->tokens_count);
  llama_forward(&rig->llama);
  llama_loss(&rig->llama, 1.0);
  rig->be->services.step_end(rig->be);
  *loss = rig->be->services.step_result(rig->be).loss * (double)rig->tokens_count /
          (double)rig->counted;
  // The loss may write anything in the logits' place: compute them as generation does.
  const int64_t V = rig->model.vocab_size;
  for (int64_t m = 0; m < rig->tokens_count; m++) {
    row_logits(&rig->llama, m);
    rig->be->services.read_act(rig->be, logits + m * V, rig->llama.acts.logits, V);
  }
  return logits;
}

// A Hugging Face tensor out of the packed one, whose values are in `packed`.
static float *unpack(const Rig *rig, const HfTensor *t, float *packed) {
  float *values = xmalloc((size_t)(t->rows * t->cols) * sizeof *values);
  for (int64_t row = 0; row < t->rows; row++)
    memcpy(values + row * t->cols, packed + packed_row(&rig->model, t, row) * t->cols,
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
  double *gradient = true_gradient(rig->be, rig->llama.tensors, t->param);
  for (int64_t i = 0; i < p->rows * p->cols; i++) packed[i] = (float)gradient[i];
  free(gradient);
  return unpack(rig, t, packed);
}

static float *read_weight(const Rig *rig, const HfTensor *t) {
  const ParamTensor *p = &rig->llama.tensors[t->param];
  float *packed = packed_buffer(p);
  rig->be->services.read_master(rig->be, packed, p, 0, p->rows * p->cols);
  return unpack(rig, t, packed);
}

// ---- Comparing

static double difference(const Rig *rig, const float *got, const float *want, int64_t count) {
  double diff2 = 0, want2 = 0, diff_max = 0, want_max = 0;
  for (int64_t i = 0; i < count; i++) {
    const double diff = fabs((double)got[i] - (double)want[i]), size = fabs((double)want[i]);
    diff2 += diff * diff;
    want2 += size * size;
    if (diff > diff_max) diff_max = diff;
    if (size > want_max) want_max = size;
  }
  const double l2 = sqrt(diff2 / want2), max = rig->l2_alone ? 0 : diff_max / want_max;
  return isnan(l2) || isnan(max) ? INFINITY : fmax(l2, max);
}

static void worst_of(Worst *worst, double error, const char *name) {
  if (error > worst->error) *worst = (Worst){error, name};
}

void check_worst(const char *fixture, const char *what, Worst worst, double bound) {
  printf("# %s, %s: worst is %s, observed %.1e, bound %.1e\n", fixture, what, worst.name,
         worst.error, bound);
  if (!(worst.error >= 0 && worst.error <= bound))
    fail_msg("%s of %s differs by %.2e (bound %.2e)", what, worst.name, worst.error, bound);
}

void worst_scalar(const Rig *rig, const char *name, int64_t index, double got, Worst *worst) {
  float *want = read_floats(expected_in(rig, name), find(expected_in(rig, name), name, ""));
  const double error = fabs(got - want[index]) / fabs(want[index]);
  worst_of(worst, isnan(error) ? INFINITY : error, name);
  free(want);
}

void worst_logits(const Rig *rig, const float *logits, Worst *worst) {
  const SafeTensor *t = find(&rig->expected, "logits", "");
  float *want = read_floats(&rig->expected, t);
  assert_int_equal(elements(t), rig->tokens_count * rig->model.vocab_size);
  worst_of(worst, difference(rig, logits, want, elements(t)), "logits");
  free(want);
}

void worst_gradient(const Rig *rig, Worst *worst) {
  for (int i = 0; i < rig->hf_count; i++) {
    const HfTensor *t = &rig->hf[i];
    const SafeTensor *expected = find(&rig->expected, "grad.", t->name);
    assert_int_equal(elements(expected), t->rows * t->cols);
    float *got = read_gradient(rig, t), *want = read_floats(&rig->expected, expected);
    for (int64_t k = 0; k < t->rows * t->cols; k++) got[k] *= gradient_scale(rig);
    worst_of(worst, difference(rig, got, want, t->rows * t->cols), t->name);
    free(got);
    free(want);
  }
}

static double update_difference(const Rig *rig, const HfTensor *t) {
  const int64_t count = t->rows * t->cols;
  float *got = read_weight(rig, t);
  float *want = read_floats(expected_in(rig, "losses5"),
                            find(expected_in(rig, "losses5"), "step5.", t->name));
  float *start = read_floats(&rig->initial, find(&rig->initial, "", t->name));
  for (int64_t i = 0; i < count; i++) {
    got[i] -= start[i];
    want[i] -= start[i];
  }
  const double error = difference(rig, got, want, count);
  free(got);
  free(want);
  free(start);
  return error;
}

void worst_update(const Rig *rig, Worst *worst) {
  for (int i = 0; i < rig->hf_count; i++)
    worst_of(worst, update_difference(rig, &rig->hf[i]), rig->hf[i].name);
}
