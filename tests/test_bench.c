// ./train --bench from end to end without a GPU: the CPU backend stands in for both kinds of
// kernels, and the host's clock for the GPU's. The Makefile has the linker put the functions below
// in place of those that need a GPU.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cmocka_all.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "kernels/program_math.h"
#include "model/backend.h"
#include "model/bench.h"
#include "model/bench_report.h"
#include "model/llama.h"

enum { MOST_MARKS = 4096 };

struct BenchGpu {
  double marks[MOST_MARKS];
  int count, products;
};

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
  return xcalloc(1, sizeof(BenchGpu));
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
}

BareProduct __wrap_bench_gpu_peak(BenchGpu *g);
BareProduct __wrap_bench_gpu_peak(BenchGpu *g) {
  (void)g;
  return (BareProduct){.M = 8, .N = 8, .K = 8};
}

double __wrap_bench_gpu_copy(BenchGpu *g);
double __wrap_bench_gpu_copy(BenchGpu *g) {
  (void)g;
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
  (void)be;
  assert_true(g->count < MOST_MARKS);
  g->marks[g->count] = now_ms();
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

static void check_operations(const cJSON *json, int expected) {
  const cJSON *ops = cJSON_GetObjectItemCaseSensitive(json, "operations"), *op;
  assert_int_equal(cJSON_GetArraySize(ops), expected);
  cJSON_ArrayForEach(op, ops) {
    assert_true(at(op, "fused", "median") > 0);
    assert_true(at(op, "unfused", "median") > 0);
    assert_true(at(op, "fused", "count") >= 8); // at least twice in each of at least four rounds
    assert_true(at(op, "largest_difference", "fused_reference") == 0); // they are one backend
    const bool product =
        strcmp(cJSON_GetObjectItemCaseSensitive(op, "class")->valuestring, "product") == 0;
    assert_true(product == !cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(op, "fused_over_bare")));
  }
}

static void everything_is_measured(void **state) {
  (void)state;
  static const char *const variants[][2] = {
      {"train.loss_chunks=4", "model.tie_word_embeddings=true"},
      {"train.gradient_accumulation=2", "train.recompute=mlp"},
      {"train.recompute=layer", "model.num_hidden_layers=1"},
  };
  for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    Files f = files_new();
    cJSON *json = bench(&f, variants[i], 2);
    check_operations(json, OPERATION_COUNT - 1);
    assert_true(at(json, "step", "floor") > 0);
    // Of the CPU, on a machine with other work: only that they are of one kind at all.
    const cJSON *sums = cJSON_GetObjectItemCaseSensitive(json, "sum_of_operations");
    assert_true(at(sums, "fused", "of_step") > 0.1 && at(sums, "fused", "of_step") < 10);
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

static void what_does_not_fit_is_refused(void **state) {
  (void)state;
  Files f = files_new();
  char *argv[] = {f.config, (char *)"model.num_hidden_layers=2000",
                  (char *)"model.hidden_size=8192", (char *)"model.num_attention_heads=64",
                  (char *)"model.num_key_value_heads=64"};
  BenchArgs args;
  Error err;
  assert_int_equal(bench_parse(&args, 5, argv, &err), 0);
  assert_int_equal(bench_run(&args, &err), -1);
  if (!strstr(err.text, "memory")) fail_msg("%s", err.text);
  files_free(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(everything_is_measured),
      cmocka_unit_test(one_operation_is_measured_alone),
      cmocka_unit_test(what_does_not_fit_is_refused),
  };
  return cmocka_run_group_tests_name("test_bench", tests, NULL, NULL);
}
