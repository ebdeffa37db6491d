// Weights that are drawn on the GPU: the bits of those that the host draws.
#include "tests/gpu/gpu_test.h"

#include "model/llama.h"
#include "tests/support/shapes.h"

static const ModelConfig base = {MODEL_SHAPE(192, 520, 2, 6, 2, 32, 203, 64),
                                 .initializer_range = 0.02};

static Spec spec_with(MasterType masters) {
  return model_spec(&base,
                    (Spec){TRAINS(2, 64, 1), .masters = masters, .kernels = KERNELS_UNFUSED});
}

static float *master_of(const Llama *llama, int i, int64_t *count) {
  const ParamTensor *p = &llama->tensors[i];
  *count = p->rows * p->cols;
  float *values = xmalloc((size_t)*count * sizeof *values);
  llama->be->services.read_master(llama->be, values, p, 0, *count);
  return values;
}

static void check_weights(MasterType masters, bool zero_init) {
  ModelConfig model = base;
  model.zero_init = zero_init;
  Llama on_gpu, on_cpu;
  Error err;
  const Spec spec = spec_with(masters);
  Backend *gpu = gpu_backend(spec), *cpu = backend_cpu_create(&spec);
  must(llama_create(&on_gpu, &model, gpu, &err), &err);
  must(llama_create(&on_cpu, &model, cpu, &err), &err);
  llama_init_weights(&on_gpu, 5);
  llama_init_weights(&on_cpu, 5);
  for (int i = 0; i < on_gpu.param_count; i++) {
    int64_t count;
    float *a = master_of(&on_gpu, i, &count), *b = master_of(&on_cpu, i, &count);
    int64_t wrong = 0;
    for (int64_t k = 0; k < count; k++) wrong += memcmp(&a[k], &b[k], sizeof *a) != 0;
    if (wrong)
      fail_msg("%lld of %lld values of tensor %d differ", (long long)wrong, (long long)count, i);
    free(a);
    free(b);
  }
  llama_destroy(&on_gpu);
  llama_destroy(&on_cpu);
  gpu->services.destroy(gpu);
  cpu->services.destroy(cpu);
}

TEST(a_models_weights_are_those_of_the_host) {
  check_weights(MASTERS_FP32, false);
  check_weights(MASTERS_FP32, true);
  check_weights(MASTERS_BF16, true);
}

// More rows than their places fit into one stage, and than a launch has blocks.
static void check_pieces(MasterType masters) {
  enum { ROWS = (1 << 18) + 37, COLS = 3 };
  const uint64_t key = rng_key(9, "pieces");
  Backend *be = gpu_backend(spec_with(masters));
  ParamTensor to = {.rows = ROWS, .cols = COLS};
  to.master = be->services.alloc(be, (size_t)ROWS * COLS * master_bytes(&be->spec, &to));
  assert_non_null(to.master);
  int32_t *places = xmalloc(ROWS * sizeof *places);
  for (int n = 0; n < ROWS; n++) places[n] = ROWS - 1 - n;
  be->services.draw_master(be, &to, places, ROWS, key, 0.5);
  memset(places, 0, ROWS * sizeof *places); // they were taken over
  float *drawn = xmalloc((size_t)ROWS * COLS * sizeof *drawn);
  be->services.read_master(be, drawn, &to, 0, (int64_t)ROWS * COLS);
  int64_t wrong = 0;
  for (int64_t i = 0; i < (int64_t)ROWS * COLS; i++) {
    float expected = (float)(0.5 * rng_normal(key, (uint64_t)i));
    if (masters == MASTERS_BF16) expected = moment_round(expected, MOMENT_NEAREST);
    wrong +=
        memcmp(&drawn[(ROWS - 1 - i / COLS) * COLS + i % COLS], &expected, sizeof expected) != 0;
  }
  if (wrong) fail_msg("%lld values differ", (long long)wrong);
  be->services.release(be, to.master);
  be->services.destroy(be);
  free(drawn);
  free(places);
}

TEST(many_rows_come_in_pieces) {
  check_pieces(MASTERS_FP32);
  check_pieces(MASTERS_BF16);
}
