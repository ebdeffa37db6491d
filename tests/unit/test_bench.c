// ./train --bench from end to end without a GPU: the CPU backend stands in for both kinds of
// kernels, and for the GPU's clock one that only what is timed moves on, so that every figure is
// known. The Makefile has the linker put the functions below in place of those that need a GPU.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cmocka_all.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "kernels/program_math.h"
#include "model/run/backend.h"
#include "model/bench/bench.h"
#include "model/bench/report.h"
#include "model/llama.h"

enum { MOST_MARKS = 4096, NO_ROOM = 77, NOT_FINITE = 78 /* seeds */ };

// Milliseconds that things take: to a time stamp of each kind, and the rest besides.
static const double kind_ms[BENCH_KINDS] = {1, 3}, gate_up_ms[BENCH_KINDS] = {10, 20},
                    product_ms = 0.5, peak_ms = 4, copy_ms = 2;

struct BenchGpu {
  Backend *fused;
  double marks[MOST_MARKS];
  int count, products;
};

static double clock_ms;
static void (*cpu_gate_up)(Backend *be, int64_t M, const act_t *x, const stat_t *sumsq,
                           const act_t *W, act_t *z, act_t *y);

static void slow_gate_up(Backend *be, int64_t M, const act_t *x, const stat_t *sumsq,
                         const act_t *W, act_t *z, act_t *y) {
  cpu_gate_up(be, M, x, sumsq, W, z, y);
  clock_ms += gate_up_ms[be->kinds[OP_GATE_UP] == KERNEL_FUSED ? BENCH_FUSED : BENCH_UNFUSED];
}

static StepResult result_not_finite(Backend *be) {
  (void)be;
  return (StepResult){.loss = NAN, .grad_norm = NAN};
}

int __wrap_gpu_usable(size_t *memory_bytes, Error *err);
int __wrap_gpu_usable(size_t *memory_bytes, Error *err) {
  (void)err;
  *memory_bytes = (size_t)1 << 30;
  return 0;
}

Backend *__wrap_backend_create(const Config *c, RunShape *shape, int64_t positions, Error *err);
Backend *__wrap_backend_create(const Config *c, RunShape *shape, int64_t positions, Error *err) {
  (void)err;
  assert_int_equal(c->backend.device, DEVICE_CUDA);
  if (shape->loss_chunks == 0) shape->loss_chunks = 1;
  const OpsConfig ops = llama_ops_config(&c->model, shape, positions, (int)c->backend.threads);
  Backend *be = backend_cpu_create(&ops);
  free((void *)(uintptr_t)ops.inv_freq);
  if (c->train.seed == NO_ROOM) { // for a step, but not for the bench beside it
    MemoryPlan plan;
    memory_plan(&plan, &c->model, shape, be);
    be->memory_bytes = plan.total_bytes;
  }
  if (c->train.seed == NOT_FINITE) be->step_result = result_not_finite;
  cpu_gate_up = be->gate_up;
  be->gate_up = slow_gate_up;
  const bool fused = c->backend.kernels == KERNELS_FUSED;
  for (int i = 0; i < OPERATION_COUNT; i++)
    be->kinds[i] = fused && i == OP_GATE_UP ? KERNEL_FUSED : KERNEL_UNFUSED;
  return be;
}

BenchGpu *__wrap_bench_gpu_open(Backend *fused, Backend *unfused, size_t scratch, Error *err);
BenchGpu *__wrap_bench_gpu_open(Backend *fused, Backend *unfused, size_t scratch, Error *err) {
  (void)err;
  assert_ptr_not_equal(fused, unfused);
  assert_true(scratch > 0);
  BenchGpu *g = xcalloc(1, sizeof *g);
  g->fused = fused;
  return g;
}

void __wrap_bench_gpu_close(BenchGpu *g);
void __wrap_bench_gpu_close(BenchGpu *g) {
  free(g);
}

GpuSample __wrap_bench_gpu_sample(const BenchGpu *g);
GpuSample __wrap_bench_gpu_sample(const BenchGpu *g) {
  (void)g;
  return (GpuSample){1500, 600, NAN};
}

int __wrap_bench_gpu_prepare(BenchGpu *g, const BareProduct *p, Error *err);
int __wrap_bench_gpu_prepare(BenchGpu *g, const BareProduct *p, Error *err) {
  (void)err;
  assert_true(p->M > 0 && p->N > 0 && p->K > 0);
  g->products++;
  return 0;
}

void __wrap_bench_gpu_product(BenchGpu *g, const BareProduct *p, const void *A, const void *B,
                              void *D);
void __wrap_bench_gpu_product(BenchGpu *g, const BareProduct *p, const void *A, const void *B,
                              void *D) {
  (void)D;
  assert_true(p->M > 0 && g->products > 0);
  assert_non_null(A);
  assert_non_null(B);
  volatile const real *a = A, *b = B; // every element of both is there
  (void)(a[p->M * p->K - 1] + b[p->K * p->N - 1]);
  clock_ms += product_ms;
}

BareProduct __wrap_bench_gpu_peak(BenchGpu *g);
BareProduct __wrap_bench_gpu_peak(BenchGpu *g) {
  (void)g;
  clock_ms += peak_ms;
  return (BareProduct){.M = 8, .N = 8, .K = 8};
}

double __wrap_bench_gpu_copy(BenchGpu *g);
double __wrap_bench_gpu_copy(BenchGpu *g) {
  (void)g;
  clock_ms += copy_ms;
  return 1000;
}

void __wrap_bench_gpu_fill(BenchGpu *g, Backend *be, void *to, size_t bytes);
void __wrap_bench_gpu_fill(BenchGpu *g, Backend *be, void *to, size_t bytes) {
  (void)g;
  (void)be;
  real *values = to;
  for (size_t i = 0; i < bytes / sizeof *values; i++) values[i] = (real)rng_normal(3, i);
}

int __wrap_bench_gpu_mark(BenchGpu *g, Backend *be);
int __wrap_bench_gpu_mark(BenchGpu *g, Backend *be) {
  assert_true(g->count < MOST_MARKS);
  clock_ms += kind_ms[be == g->fused ? BENCH_FUSED : BENCH_UNFUSED];
  g->marks[g->count] = clock_ms;
  return g->count++;
}

double __wrap_bench_gpu_ms(const BenchGpu *g, int from, int to);
double __wrap_bench_gpu_ms(const BenchGpu *g, int from, int to) {
  assert_true(from < to && to < g->count);
  return g->marks[to] - g->marks[from];
}

void __wrap_bench_gpu_forget(BenchGpu *g);
void __wrap_bench_gpu_forget(BenchGpu *g) {
  g->count = 0;
}

// ---- The tests

static const char config[] =
    "{\"model\": {\"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 3,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 90,"
    " \"max_position_embeddings\": 32},"
    " \"data\": {\"train\": \"absent.bin\"},"
    " \"train\": {\"steps\": 20, \"batch_size\": 2, \"sequence_length\": 32},"
    " \"optimizer\": {\"learning_rate\": 0.001}, \"output\": {\"dir\": \"absent\"}}";

typedef struct Files {
  char folder[64];
  char *config, *json;
} Files;

static Files files_new(void) {
  Files f = {.folder = "/tmp/test_bench.XXXXXX"};
  Error err;
  assert_non_null(mkdtemp(f.folder));
  f.config = xasprintf("%s/config.json", f.folder);
  f.json = xasprintf("%s/bench.json", f.folder);
  assert_int_equal(file_write_atomic(f.config, config, strlen(config), &err), 0);
  return f;
}

static void files_free(Files *f) {
  Error err;
  directory_remove(f->folder, &err);
  free(f->config);
  free(f->json);
}

static cJSON *bench(Files *f, const char *const *more, int count) {
  char *argv[16] = {f->config, (char *)"--json", f->json, (char *)"--seconds", (char *)"0.2"};
  for (int i = 0; i < count; i++) argv[5 + i] = (char *)(uintptr_t)more[i];
  BenchArgs args;
  Error err;
  if (bench_parse(&args, 5 + count, argv, &err) != 0 || bench_run(&args, &err) != 0)
    fail_msg("%s", err.text);
  char *text;
  size_t bytes;
  if (file_read(f->json, 1 << 20, &text, &bytes, &err) != 0) fail_msg("%s", err.text);
  cJSON *json = cJSON_Parse(text);
  assert_non_null(json);
  free(text);
  return json;
}

static double at(const cJSON *object, const char *a, const char *b) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, a);
  if (b) item = cJSON_GetObjectItemCaseSensitive(item, b);
  if (!cJSON_IsNumber(item)) fail_msg("%s %s is no number", a, b ? b : "");
  return item->valuedouble;
}

static void near(double a, double b) {
  if (!(fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)))) fail_msg("%.17g is not %.17g", a, b);
}

static double calls_of(const cJSON *json, const char *operation) {
  const cJSON *ops = cJSON_GetObjectItemCaseSensitive(json, "operations");
  for (int i = 0; i < cJSON_GetArraySize(ops); i++) {
    const cJSON *op = cJSON_GetArrayItem(ops, i);
    if (strcmp(cJSON_GetObjectItemCaseSensitive(op, "name")->valuestring, operation) == 0)
      return at(op, "calls", NULL);
  }
  fail_msg("there is no %s", operation);
  return NAN;
}

static const char *const kind_names[BENCH_KINDS] = {"fused", "unfused"};

// Every operation takes its kind's time, and gate_up more; bare products are timed on the unfused
// kind's stream. Returns the calls of all.
static double check_operations(const cJSON *json, int expected) {
  const cJSON *ops = cJSON_GetObjectItemCaseSensitive(json, "operations"), *op;
  double calls = 0;
  assert_int_equal(cJSON_GetArraySize(ops), expected);
  cJSON_ArrayForEach(op, ops) {
    const bool gate_up =
        strcmp(cJSON_GetObjectItemCaseSensitive(op, "name")->valuestring, "gate_up") == 0;
    for (int kind = 0; kind < BENCH_KINDS; kind++)
      near(at(op, kind_names[kind], "median"), kind_ms[kind] + (gate_up ? gate_up_ms[kind] : 0));
    assert_true(at(op, "fused", "count") >= 8); // at least twice in each of at least four rounds
    assert_true(at(op, "largest_difference", "fused_reference") == 0); // they are one backend
    calls += at(op, "calls", NULL);
    if (strcmp(cJSON_GetObjectItemCaseSensitive(op, "class")->valuestring, "product") != 0) {
      assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(op, "fused_over_bare")));
      continue;
    }
    near(at(op, "bare", "median"), kind_ms[BENCH_UNFUSED] + product_ms);
    near(at(op, "bare_back_to_back", NULL), kind_ms[BENCH_UNFUSED] / 3 + product_ms); // 3 calls
  }
  near(at(json, "measured", "copy_gigabytes_per_s"),
       1000 / (kind_ms[BENCH_UNFUSED] + copy_ms) * 1e-6);
  near(at(json, "measured", "tflops_of_8192"), 1024 / (kind_ms[BENCH_UNFUSED] + peak_ms) * 1e-9);
  return calls;
}

// What takes a time beside its kind's is gate_up: once in each layer's forward, and again where it
// is recomputed.
static void check_whole(const cJSON *json, double calls, bool recompute) {
  const cJSON *layer = cJSON_GetObjectItemCaseSensitive(json, "layer"),
              *sums = cJSON_GetObjectItemCaseSensitive(json, "sum_of_operations");
  double step[BENCH_KINDS];
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    const char *name = kind_names[kind];
    const double gate_ups = calls_of(json, "gate_up") * gate_up_ms[kind];
    step[kind] = kind_ms[kind] + gate_ups;
    near(at(cJSON_GetObjectItemCaseSensitive(json, "step"), name, "median"), step[kind]);
    near(at(sums, name, "ms"), calls * kind_ms[kind] + gate_ups);
    near(at(cJSON_GetObjectItemCaseSensitive(layer, "forward"), name, "median"),
         kind_ms[kind] + gate_up_ms[kind]);
    near(at(cJSON_GetObjectItemCaseSensitive(layer, "backward"), name, "median"),
         kind_ms[kind] + (recompute ? gate_up_ms[kind] : 0));
    near(at(cJSON_GetObjectItemCaseSensitive(layer, "both"), name, "median"),
         kind_ms[kind] + (recompute ? 2 : 1) * gate_up_ms[kind]);
  }
  const double steps = fmin(fmax(floor(200 / step[BENCH_FUSED]), 2), 16); // 200 ms, 2 to 16
  near(at(cJSON_GetObjectItemCaseSensitive(json, "step"), "unfused", "count"),
       steps * at(json, "measured", "rounds"));
  near(at(json, "gain_by_rounds", "median"), step[BENCH_UNFUSED] / step[BENCH_FUSED]);
}

static void everything_is_measured(void **state) {
  (void)state;
  static const struct {
    const char *overrides[2];
    bool recompute;
    double gate_ups; // in a step
  } variants[] = {
      {{"train.loss_chunks=4", "model.tie_word_embeddings=true"}, false, 3},
      {{"train.gradient_accumulation=2", "train.recompute=mlp"}, true, 2 * (3 + 2)},
      {{"train.recompute=layer", "model.num_hidden_layers=1"}, true, 1},
  };
  for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    Files f = files_new();
    cJSON *json = bench(&f, variants[i].overrides, 2);
    const double calls = check_operations(json, OPERATION_COUNT - 1);
    near(calls_of(json, "gate_up"), variants[i].gate_ups);
    check_whole(json, calls, variants[i].recompute);
    assert_true(at(json, "measured", "rounds") >= 4);
    cJSON_Delete(json);
    files_free(&f);
  }
}

static void one_operation_is_measured_alone(void **state) {
  (void)state;
  Files f = files_new();
  cJSON *json = bench(&f, (const char *const[]){"--op", "down_dgrad"}, 2);
  check_operations(json, 1);
  assert_null(cJSON_GetObjectItemCaseSensitive(json, "step"));
  cJSON_Delete(json);
  files_free(&f);
}

static void refused(char *const *more, int count, const char *words) {
  Files f = files_new();
  char *argv[8] = {f.config, (char *)"--json", f.json};
  for (int i = 0; i < count; i++) argv[3 + i] = more[i];
  BenchArgs args;
  Error err = {""};
  assert_int_equal(bench_parse(&args, 3 + count, argv, &err), 0);
  assert_int_equal(bench_run(&args, &err), -1);
  if (!strstr(err.text, words)) fail_msg("%s", err.text);
  assert_false(path_exists(f.json));
  files_free(&f);
}

static void what_does_not_fit_is_refused(void **state) {
  (void)state;
  refused((char *[]){(char *)"model.num_hidden_layers=2000", (char *)"model.hidden_size=8192",
                     (char *)"model.num_attention_heads=64",
                     (char *)"model.num_key_value_heads=64"},
          4, "not enough memory: the run needs");
  refused((char *[]){(char *)"train.seed=77"}, 1, "the bench needs");
}

static void a_step_that_is_not_finite_is_refused(void **state) {
  (void)state;
  refused((char *[]){(char *)"train.seed=78"}, 1,
          "of fused kernels on random weights is not finite");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(everything_is_measured),
      cmocka_unit_test(one_operation_is_measured_alone),
      cmocka_unit_test(what_does_not_fit_is_refused),
      cmocka_unit_test(a_step_that_is_not_finite_is_refused),
  };
  return cmocka_run_group_tests_name("test_bench", tests, NULL, NULL);
}
