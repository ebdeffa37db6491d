// Gradients that their products finish: the fused backend's wgrad and grads_finish against the
// twin's, both against the CPU.
#include "tests/gpu/program_rig.h"

#include "kernels/fused/backend_fused.h"
#include "kernels/unfused/backend_unfused.h"
#include "tests/gpu/norm_weights.h"

// A norm weight, the matrix that it is folded into, and one that is used plain

enum { NORM, FOLDED, PLAIN, TENSORS, D = 264, ROWS = 520, TOKENS = 512 };

typedef struct Gradients {
  float *of[TENSORS]; // dwn, dW, dW
  double norm;
} Gradients;

static const int64_t tensor_rows[TENSORS] = {1, ROWS, D};
static const int64_t tensor_cols[TENSORS] = {D, D, ROWS};

static Backend *open_backend(bool fused) {
  static const double inv_freq[8] = {1};
  const OpsConfig config = {.D = D,
                            .F = 16,
                            .H = 1,
                            .KV = 1,
                            .d = 16,
                            .V = 1024,
                            .max_tokens = TOKENS,
                            .max_positions = 64,
                            .rms_norm_eps = 1e-5f,
                            .inv_freq = inv_freq};
  const UnfusedOptions options = {.train = true,
                                  .gemm_cache = "",
                                  .batch = TOKENS / 64,
                                  .seq = 64,
                                  .loss_tokens = TOKENS,
                                  .every_program = true,
                                  .finish_gradients = true};
  Error err;
  Backend *be = fused ? backend_fused_create(&config, &options, &err)
                      : backend_unfused_create(&config, &options, &err);
  if (!be) fail_msg("%s", err.text);
  return be;
}

// One step's gradients, as a backend computes them.
static Gradients gradients_of(Backend *be, const float *norm, float *const master[TENSORS],
                              const float *dz, const float *x, const float *dy, const float *a) {
  Bench b = {.be = be};
  ParamTensor list[TENSORS];
  for (int i = 0; i < TENSORS; i++) {
    const int64_t n = tensor_rows[i] * tensor_cols[i];
    list[i] = (ParamTensor){.rows = tensor_rows[i],
                            .cols = tensor_cols[i],
                            .norm = i == FOLDED ? NORM : -1,
                            .decay = i != NORM,
                            .one_wgrad = i != NORM,
                            .master = fp32_buffer(&b, n, i == NORM ? norm : master[i]),
                            .m = fp32_buffer(&b, n, NULL),
                            .v = fp32_buffer(&b, n, NULL),
                            .grad = bf16_buffer(&b, n, NULL)};
    if (i == FOLDED) list[i].folded = bf16_buffer(&b, n, NULL), list[i].grad_folded = list[i].grad;
    if (i == PLAIN) list[i].compute = bf16_buffer(&b, n, NULL);
  }
  void *dz_in = bf16_buffer(&b, TOKENS * ROWS, dz), *x_in = bf16_buffer(&b, TOKENS * D, x),
       *dy_in = bf16_buffer(&b, TOKENS * D, dy), *a_in = bf16_buffer(&b, TOKENS * ROWS, a);
  StepResult result = {0};
  RUN_TWICE(&b,
            (be->refresh(be, list, TENSORS), be->step_begin(be),
             be->wgrad(be, TOKENS, ROWS, D, dz_in, x_in, list[FOLDED].grad_folded, false),
             be->wgrad(be, TOKENS, D, ROWS, dy_in, a_in, list[PLAIN].grad, false),
             be->grads_finish(be, list, TENSORS), be->step_end(be), result = be->step_result(be)));
  Gradients g = {.norm = result.grad_norm};
  for (int i = 0; i < TENSORS; i++) g.of[i] = bench_read(&b, list[i].grad);
  bench_free(&b);
  return g;
}

// The same in fp32 on the CPU, from the same bf16 inputs.
static Gradients reference(const float *norm, float *const master[TENSORS], const float *dz,
                           const float *x, const float *dy, const float *a) {
  Gradients g = {.of = {floats(D), floats(ROWS * D), floats(D * ROWS)}};
  gemm_tn(ROWS, D, TOKENS, 1, dz, ROWS, x, D, 0, g.of[FOLDED], D);
  gemm_tn(D, ROWS, TOKENS, 1, dy, D, a, ROWS, 0, g.of[PLAIN], ROWS);
  double sum = 0;
  for (int64_t k = 0; k < D; k++) {
    double dwn = 0;
    for (int64_t n = 0; n < ROWS; n++) {
      float *dW = &g.of[FOLDED][n * D + k];
      dwn += (double)*dW * (double)master[FOLDED][n * D + k];
      *dW *= norm[k];
    }
    g.of[NORM][k] = (float)dwn;
  }
  for (int i = 0; i < TENSORS; i++)
    for (int64_t j = 0; j < tensor_rows[i] * tensor_cols[i]; j++)
      sum += (double)g.of[i][j] * (double)g.of[i][j];
  g.norm = sqrt(sum);
  return g;
}

static void test_backend(void **state) {
  (void)machine(state);
  float *norm = norm_weights(D), *dz = random_bf16(TOKENS * ROWS, 0.1, "dz"),
        *x = random_bf16(TOKENS * D, 1, "x"), *dy = random_bf16(TOKENS * D, 0.1, "dy"),
        *a = random_bf16(TOKENS * ROWS, 1, "a"),
        *master[TENSORS] = {NULL, random_bf16(ROWS * D, 1, "W"), random_bf16(D * ROWS, 1, "V")};
  const Gradients cpu = reference(norm, master, dz, x, dy, a);
  Gradients got[2];
  for (int fused = 0; fused < 2; fused++) {
    Backend *be = open_backend(fused);
    got[fused] = gradients_of(be, norm, master, dz, x, dy, a);
    be->destroy(be);
  }
  static const char *const names[TENSORS] = {"dwn", "dW, folded", "dW, plain"};
  for (int i = 0; i < TENSORS; i++)
    expect_near(names[i], got[1].of[i], got[0].of[i], cpu.of[i], tensor_rows[i] * tensor_cols[i],
                1e-6);
  const double off = fabs(got[1].norm / cpu.norm - 1), twin_off = fabs(got[0].norm / cpu.norm - 1);
  printf("# norm of the gradients: relative error %.1e, the twin's %.1e (bound 1e-4)\n", off,
         twin_off);
  assert_true(off <= 1e-4 && twin_off <= 1e-4);
  // A column whose norm weight is 0 has a gradient of 0, and its norm weight one that is not.
  assert_true(norm[3] == 0 && cpu.of[NORM][3] != 0);
  for (int64_t n = 0; n < ROWS; n++) assert_true(got[1].of[FOLDED][n * D + 3] == 0);
  for (int i = 0; i < TENSORS; i++)
    free(master[i]), free(cpu.of[i]), free(got[0].of[i]), free(got[1].of[i]);
  free(norm), free(dz), free(x), free(dy), free(a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      {"the_backends_gradients_need_no_pass", test_backend, NULL, NULL, NULL},
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
