// What backend.offload names lies in the host's memory, and a run has the same bits: in bf16 and in
// FP8, with moments and masters of either type, by AdamW and Muon, one micro-batch or two, beside
// recorded steps and launched ones.
#include <cuda_runtime_api.h>

#include "base/rng.h"
#include "kernels/cuda/gpu.h"
#include "kernels/gpu.h"
#include "model/llama.h"
#include "model/optimizer.h"
#include "model/run/backend.h"
#include "tests/gpu/fp8_here.h"
#include "tests/support/test.h"

enum { STEPS = 6, TOKENS = 128, PARTS = 3 };

static const char tiny[] =
    "{\"model\": {\"hidden_size\": 144, \"intermediate_size\": 272, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, \"vocab_size\": %d,"
    " \"tie_word_embeddings\": %s, \"initializer_range\": 0.1},"
    " \"data\": {\"train\": \"none\"}, \"output\": {\"dir\": \"none\"},"
    " \"train\": {\"steps\": 6, \"sequence_length\": 64, \"batch_size\": 2,"
    " \"gradient_accumulation\": %d, \"sample_interval\": -1, \"loss_chunks\": 1},"
    " \"optimizer\": {\"learning_rate\": 0.01, \"schedule\": \"constant\", \"kind\": \"%s\"},"
    " \"backend\": {\"device\": \"cuda\", \"deterministic\": true, \"graphs\": %s,"
    " \"kernels\": \"%s\", \"precision\": \"%s\", \"moments\": \"%s\", \"masters\": \"%s\","
    " \"gradients\": \"%s\", \"offload\": \"%s\"%s}}";

typedef struct Case {
  const char *kernels, *precision, *moments, *masters, *kind, *gradients;
  int micro_batches, vocab;
  bool tied, graphs;
} Case;

// Everything that an update leaves, as floats.
typedef struct Result {
  double losses[STEPS];
  float *state;
  int64_t count;
} Result;

// What is offloaded, of how many layers; 0: of all.
typedef struct Place {
  const char *offload;
  int layers;
} Place;

static Config config_of(const Case *c, Place place) {
  Config config;
  Error err = {""};
  const char *layers = place.layers == 1 ? ", \"offload_layers\": 1" : "";
  char *json = xasprintf(tiny, c->vocab, c->tied ? "true" : "false", c->micro_batches, c->kind,
                         c->graphs ? "true" : "false", c->kernels, c->precision, c->moments,
                         c->masters, c->gradients, place.offload, layers);
  must(config_parse(&config, "test", json, 0, NULL, &err), &err);
  free(json);
  return config;
}

static bool on_host(const void *pointer) {
  struct cudaPointerAttributes place;
  CUDA_CHECK(cudaPointerGetAttributes(&place, pointer));
  return place.type == cudaMemoryTypeHost;
}

static void check_places(const Llama *llama, Offload offload, bool one_layer) {
  const int end = param_index(&llama->config, PARAM_ATTN_NORM, 1);
  int borrow = 0;
  for (int i = 0; i < llama->param_count; i++) {
    const ParamTensor *t = &llama->tensors[i];
    const bool of_first = i > 0 && i < end, of_layer = t != llama->embed && t != llama->lm_head,
               there = !t->vector && (of_first || !one_layer);
    assert_int_equal(on_host(t->m), there && offload >= OFFLOAD_MOMENTS);
    if (t->v) assert_int_equal(on_host(t->v), there && offload >= OFFLOAD_MOMENTS);
    if (t->m_near) assert_true(!on_host(t->m_near) && there);
    if (t->v_near) assert_false(on_host(t->v_near));
    borrow += t->m_near != NULL;
    assert_int_equal(on_host(t->master), there && offload >= OFFLOAD_MASTERS);
    grad_t *const grads[] = {t->grad, t->grad_folded};
    for (int k = 0; k < 2; k++)
      if (grads[k])
        assert_int_equal(on_host(grads[k]), there && of_layer && offload >= OFFLOAD_GRADIENTS);
    assert_int_equal(t->offloaded, !there                                    ? OFFLOAD_NONE
                                   : of_layer || offload < OFFLOAD_GRADIENTS ? offload
                                                                             : OFFLOAD_MASTERS);
    assert_true(!t->compute.data || !on_host(t->compute.data));
    assert_true(!t->folded.data || !on_host(t->folded.data));
  }
  assert_int_equal(borrow > 0, offload >= OFFLOAD_MOMENTS);
}

static size_t part_bytes(const Llama *llama, const ParamTensor *t, int part) {
  const Backend *be = llama->be;
  if (part == 2 && !t->v) return 0; // Muon's
  return (size_t)(t->rows * t->cols) *
         (part == 0 ? master_bytes(&be->spec, t) : moment_bytes(&be->spec));
}

static const void *part_of(const ParamTensor *t, int part) {
  return part == 0 ? (const void *)t->master : part == 1 ? (const void *)t->m : (const void *)t->v;
}

// A copy beside the next step's gradients is of the moment that it was asked for, not of the update
// after it.
static void check_snapshot(Llama *llama, int32_t *ids) {
  Backend *be = llama->be;
  const int most = PARTS * llama->param_count;
  SnapshotPiece *list = xcalloc((size_t)most, sizeof *list);
  char **before = xcalloc((size_t)most, sizeof *before);
  int count = 0;
  for (int i = 0; i < most; i++) {
    const ParamTensor *t = &llama->tensors[i / PARTS];
    const size_t bytes = part_bytes(llama, t, i % PARTS);
    if (bytes == 0) continue;
    const void *from = part_of(t, i % PARTS);
    list[count] = (SnapshotPiece){xmalloc(bytes), from, bytes, on_host(from)};
    before[count] = xmalloc(bytes);
    be->services.read(be, before[count], list[count].from, bytes);
    count++;
  }
  be->services.snapshot_begin(be, list, count);
  llama_load_batch(llama, &(Batch){.tokens = ids, .targets = ids + TOKENS});
  llama_forward(llama);
  be->services.snapshot_wait(be);
  for (int i = 0; i < count; i++) {
    assert_memory_equal(list[i].to_host, before[i], list[i].bytes);
    free(list[i].to_host);
    free(before[i]);
  }
  free(list);
  free(before);
}

static void read_state(const Llama *llama, Result *r) {
  Backend *be = llama->be;
  r->count = 0;
  for (int i = 0; i < llama->param_count; i++)
    r->count += PARTS * llama->tensors[i].rows * llama->tensors[i].cols;
  float *at = r->state = xcalloc((size_t)r->count, sizeof *at);
  for (int i = 0; i < llama->param_count; i++) {
    const ParamTensor *t = &llama->tensors[i];
    const int64_t n = t->rows * t->cols;
    be->services.read_master(be, at, t, 0, n);
    be->services.read_moments(be, at + n, t->m, n);
    if (t->v) be->services.read_moments(be, at + 2 * n, t->v, n);
    at += PARTS * n;
  }
}

static Result train(const Case *c, Place place) {
  Error err = {""};
  const Config config = config_of(c, place);
  Hardware hardware;
  must(hardware_find(&hardware, &config, &err), &err);
  const Spec spec = spec_resolve(&config, run_spec(&config), &hardware);
  Backend *be = backend_open(&config, &spec, &hardware, &err);
  if (!be) fail_msg("%s", err.text);
  assert_int_equal(be->spec.offload, config.backend.offload);
  Llama llama;
  must(llama_create(&llama, &config.model, be, &err), &err);
  must(be->services.snapshot_open(be, &err), &err);
  assert_int_equal(grad_bytes(&be->spec),
                   c->micro_batches > 1 && strcmp(c->gradients, "bf16") != 0 ? 4 : 2);
  check_places(&llama, config.backend.offload, place.layers == 1);
  llama_init_weights(&llama, 1);
  Result r = {.count = 0};
  for (int step = 0; step < STEPS; step++) {
    const AdamW hyper = adamw_at(&config.optimizer, step, STEPS);
    int32_t ids[2 * TOKENS];
    for (int k = 0; k < c->micro_batches; k++) {
      for (int i = 0; i < 2 * TOKENS; i++)
        ids[i] = (int32_t)(rng_u64((uint64_t)(step * 10 + k), (uint64_t)i) % (uint64_t)c->vocab);
      if (step == 4 && k == 0) check_snapshot(&llama, ids);
      llama_load_batch(&llama, &(Batch){.tokens = ids, .targets = ids + TOKENS});
      llama_forward(&llama);
      llama_backward(&llama, 1.0 / c->micro_batches, k > 0);
    }
    llama_update(&llama, &hyper);
    const StepResult result = be->services.step_result(be);
    assert_true(result.applied);
    r.losses[step] = result.loss;
  }
  read_state(&llama, &r);
  llama_destroy(&llama);
  be->services.destroy(be);
  return r;
}

static void check_case(const Case *c) {
  const Result plain = train(c, (Place){"none", 0});
  assert_true(plain.losses[STEPS - 1] != plain.losses[0]);
  static const Place places[] = {
      {"moments", 0}, {"masters", 0}, {"gradients", 0}, {"moments", 1}, {"gradients", 1}};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    const Result got = train(c, places[i]);
    assert_int_equal(got.count, plain.count);
    assert_memory_equal(got.losses, plain.losses, sizeof got.losses);
    for (int64_t k = 0; k < got.count; k++)
      if (memcmp(&got.state[k], &plain.state[k], sizeof(float)) != 0)
        fail_msg("%s, %s, %s, moments %s, masters %s, %d micro-batches: value %lld is %.9g with "
                 "offload=%s, offload_layers=%d, %.9g without",
                 c->kernels, c->precision, c->kind, c->moments, c->masters, c->micro_batches,
                 (long long)k, (double)got.state[k], places[i].offload, places[i].layers,
                 (double)plain.state[k]);
    free(got.state);
  }
  free(plain.state);
}

static void check_cases(const char *kernels, const char *precision) {
  static const char *const types[] = {"fp32", "bf16"}, *const kinds[] = {"adamw", "muon"};
  for (int i = 0; i < 16; i++) {
    if (first_tier() && i % 3 != 0) continue;
    check_case(&(Case){.kernels = kernels,
                       .precision = precision,
                       .moments = types[i & 1],
                       .masters = types[(i >> 1 ^ i >> 2) & 1],
                       .kind = kinds[(i >> 1 ^ i >> 3) & 1],
                       .gradients = (i ^ i >> 3) & 1 ? "bf16" : "auto",
                       .micro_batches = i & 2 ? 2 : 1,
                       .vocab = 387,
                       .tied = i & 4,
                       .graphs = !(i & 8)});
  }
}

TEST(offloaded_runs_have_the_bits_of_plain_ones) {
  check_cases("unfused", "bf16");
}

TEST(offloaded_runs_in_fp8_have_the_bits_of_plain_ones) {
  if (!fp8_here()) skip();
  check_cases("unfused", "fp8");
}

TEST(offloaded_runs_of_fused_kernels_have_the_bits_of_plain_ones) {
  const Spec any_that_fits = {.D = 8, .F = 8, .d = 8};
  Gpu gpu;
  must(gpu_find(&gpu, &err), &err);
  if (backend_fused_supported(&any_that_fits, &err) != 0) skip();
  check_cases("fused", "bf16");
  if (fp8_here()) check_cases("fused", "fp8");
}

// Of the card's memory no more is given than the limit leaves, by the plan and by allocations.
TEST(a_limit_holds_for_plans_and_allocations) {
  enum { MIB = 1 << 20 };
  Gpu whole, limited;
  must(gpu_find(&whole, &err), &err);
  const size_t taken = whole.memory_bytes - whole.free_bytes, limit = taken + ((size_t)2048 << 20);
  char *text = xasprintf("%zuMiB", limit / MIB);
  assert_int_equal(setenv("CODA_MEMORY_LIMIT", text, 1), 0);
  must(gpu_find(&limited, &err), &err);
  printf("# a limit of %s: %s of %s are free\n", text, size_text(limited.free_bytes).text,
         size_text(limited.memory_bytes).text);
  assert_int_equal(limited.memory_bytes, limit / MIB * MIB);
  assert_in_range(limited.free_bytes, (size_t)1900 * MIB, (size_t)2048 * MIB);
  void *small = gpu_alloc((size_t)1024 * MIB);
  assert_non_null(small);
  assert_null(gpu_alloc((size_t)1100 * MIB)); // more than is left
  assert_int_equal(setenv("CODA_MEMORY_LIMIT", "24", 1), 0);
  expect_error(gpu_find(&limited, &err), &err, "CODA_MEMORY_LIMIT is '24'");
  assert_int_equal(unsetenv("CODA_MEMORY_LIMIT"), 0);
  void *large = gpu_alloc((size_t)1100 * MIB);
  assert_non_null(large);
  CUDA_CHECK(cudaFree(small));
  CUDA_CHECK(cudaFree(large));
  free(text);
}
