// The model against Hugging Face transformers, on the fixtures that scripts/make_fixtures.py wrote
// (expected values computed in fp64): logits, loss, every gradient, and the weights after 5 steps
// of AdamW, and of torch.optim.Muon. Every comparison prints its worst observed error beside its
// bound.
//
// With COMPARE_DIR set it writes instead: per fixture a checkpoint of the trained model and its
// logits, for scripts/check_transformers.py to load into transformers.
#include "model/run/checkpoint/checkpoint.h"
#include "data/safetensors.h"
#include "tests/support/fixtures.h"
#include "tests/support/test.h"

// Largest accepted errors (see Worst), and what fp32 on the CPU was observed to give: the
// worst over all fixtures and over oneDNN's code for AVX-512, AVX2, AVX and SSE4.1. What remains is
// rounding: the same code in fp64 gives 6e-8 at most, 6e-6 for updates.
static const double logits_bound = 5e-6;     // observed 7.0e-7
static const double scalar_bound = 1.5e-6;   // losses and gradient norms: observed 6.9e-7
static const double gradient_bound = 1.5e-5; // observed 1.6e-6
static const double update_bound = 4e-4;     // observed 6.8e-5, with Muon 1.1e-4

// ---- Tests, one of each for every fixture

static void test_logits(void **state) {
  Rig rig;
  double value;
  rig_open(&rig, *state, 1, 1, rig_cpu);
  float *got = held(rig_logits(&rig, &value));
  Worst logits = WORST_OF_NOTHING, loss = WORST_OF_NOTHING;
  worst_logits(&rig, got, &logits);
  worst_scalar(&rig, "loss", 0, value, &loss);
  check_worst(rig.fixture, "logits", logits, logits_bound);
  check_worst(rig.fixture, "loss", loss, scalar_bound);
  rig_close(&rig);
}

// micro_batches and loss_chunks change the order of sums only.
static void gradients_with(const char *fixture, int64_t micro_batches, int64_t loss_chunks,
                           const char *what) {
  Rig rig;
  rig_open(&rig, fixture, micro_batches, loss_chunks, rig_cpu);
  rig_backward(&rig);
  Worst gradients = WORST_OF_NOTHING, loss = WORST_OF_NOTHING;
  worst_gradient(&rig, &gradients);
  check_worst(rig.fixture, what, gradients, gradient_bound);
  worst_scalar(&rig, "loss", 0, rig_update(&rig).loss, &loss);
  check_worst(rig.fixture, "loss", loss, scalar_bound);
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

static void five_steps(const char *fixture, int64_t micro_batches, RigUpdate update) {
  Rig opened, *const rig = &opened;
  rig_open_update(rig, fixture, micro_batches, 1, update, rig_cpu);
  Worst losses = WORST_OF_NOTHING, updates = WORST_OF_NOTHING;
  for (int64_t step = 0; step < FIXTURE_STEPS; step++) {
    rig_backward(rig);
    const StepResult result = rig_update(rig);
    assert_true(result.applied);
    assert_int_equal(result.updates, step + 1);
    worst_scalar(rig, "losses5", step, result.loss, &losses);
    worst_scalar(rig, "grad_norms5", step, result.grad_norm, &losses);
  }
  worst_update(rig, &updates);
  check_worst(rig->fixture, "losses and gradient norms of 5 steps", losses, scalar_bound);
  check_worst(rig->fixture, "weight updates of 5 steps", updates, update_bound);
  rig_close(rig);
}

static void test_adamw(void **state) {
  five_steps(*state, 1, BY_ADAMW);
}

static void test_muon(void **state) {
  for (int64_t micro_batches = 1; micro_batches <= 2; micro_batches++)
    five_steps(*state, micro_batches, BY_MUON);
}

static void test_adamw_at_rates(void **state) {
  five_steps(*state, 1, BY_ADAMW_AT_RATES);
}

// ---- The other way: what transformers makes of a checkpoint of ours

static void write_logits(const Rig *rig, const char *path, const float *logits) {
  Error err = {0};
  const SafeTensor *ids = rig_expected(rig, "input_ids", "");
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
  must(safetensors_create(&writer, path, -1, 2, tensors, &err), &err);
  must(safetensors_append(&writer, rig->input_ids, ids_bytes, &err), &err);
  must(safetensors_append(&writer, logits, logits_bytes, &err), &err);
  must(safetensors_finish(&writer, &err), &err);
}

// COMPARE_DIR/FIXTURE/latest and COMPARE_DIR/FIXTURE/logits.safetensors
static void write_checkpoint(void **state) {
  Error err = {0};
  Rig rig;
  rig_open(&rig, *state, 1, 1, rig_cpu);
  for (int step = 0; step < FIXTURE_STEPS; step++) {
    rig_backward(&rig);
    rig_update(&rig);
  }
  Config config;
  char *json = held_text("{\"model\": \"%s/config.json\", \"data\": {\"train\": \"unused.bin\"}, "
                         "\"train\": {\"steps\": %d, \"sequence_length\": %lld}, "
                         "\"output\": {\"dir\": \"unused\"}}",
                         rig.folder, FIXTURE_STEPS, (long long)rig.llama.spec.seq);
  must(config_parse(&config, "config of the test", json, 0, NULL, &err), &err);

  char *run_dir = held_text("%s/%s", getenv("COMPARE_DIR"), rig.fixture);
  char *logits_path = held_text("%s/logits.safetensors", run_dir);
  const TrainState done = {.step = FIXTURE_STEPS, .updates = FIXTURE_STEPS, .best_val_loss = NAN};
  must(directory_create(run_dir, &err), &err);
  const Export export = {.shard_bytes = 20000}; // transformers must find all shards
  const StateSource source = state_source(&rig.llama);
  must(checkpoint_save(run_dir, &source, &config, &export, &done, &err), &err);
  double loss;
  float *logits = held(rig_logits(&rig, &loss));
  write_logits(&rig, logits_path, logits);
  rig_close(&rig);
}

typedef struct Kind {
  const char *sentence; // %s: the fixture
  CMUnitTestFunction run;
  const char *const *fixtures;
  size_t fixture_count;
} Kind;

static const Kind comparisons[] = {
    {"logits_and_loss_of_%s_match_transformers", test_logits, fixtures, FIXTURES},
    {"gradients_of_%s_match_transformers", test_gradients, fixtures, FIXTURES},
    {"gradients_of_%s_match_over_two_micro_batches", test_gradients_accumulated, fixtures,
     FIXTURES},
    {"gradients_of_%s_match_with_the_loss_in_chunks", test_gradients_chunked, fixtures, FIXTURES},
    {"five_adamw_steps_of_%s_match_transformers", test_adamw, fixtures, FIXTURES},
    {"five_muon_steps_of_%s_match_torch", test_muon, muon_fixtures, MUON_FIXTURES},
    {"five_adamw_steps_of_%s_at_other_rates_match_torch", test_adamw_at_rates,
     (const char *const[]){"gqa_untied"}, 1},
};
static const Kind writing[] = {
    {"a_checkpoint_of_%s_is_written", write_checkpoint, fixtures, FIXTURES}};

enum { KINDS = sizeof comparisons / sizeof *comparisons };

int main(void) {
  const bool write = getenv("COMPARE_DIR") != NULL;
  const Kind *kinds = write ? writing : comparisons, *end = kinds + (write ? 1 : KINDS);
  struct CMUnitTest tests[KINDS * FIXTURES] = {0};
  char names[KINDS * FIXTURES][96];
  size_t count = 0;
  for (const Kind *kind = kinds; kind < end; kind++)
    for (size_t f = 0; f < kind->fixture_count; f++, count++) {
      snprintf(names[count], sizeof names[count], kind->sentence, kind->fixtures[f]);
      tests[count] = (struct CMUnitTest){names[count], kind->run, NULL, NULL,
                                         (void *)(uintptr_t)kind->fixtures[f]};
    }
  return _cmocka_run_group_tests("transformers", tests, count, NULL, NULL);
}
