#include "tests/gpu/ops_rig.h"

#include "kernels/gpu_backends.h"

// Tails everywhere: rows that start at any 2-byte boundary, clusters of 1, 2, 4 and 8 blocks a row
// of logits, and a row too long for all of them.
static const Shape shapes[] = {
    {"odd", 200, 136, 3, 1, 48, 1003, 2, 77},
    {"one token", 64, 100, 4, 4, 64, 256, 3, 1},
    {"unaligned", 36, 44, 2, 1, 32, 65, 5, 7},
    {"many tokens", 48, 40, 1, 1, 16, 70, 10, 300},
    {"wide heads", 512, 1408, 8, 2, 80, 50257, 1, 333},
    {"llama-3 vocabulary", 256, 768, 12, 4, 128, 128256, 1, 100},
    {"odd large vocabulary", 64, 64, 8, 1, 16, 151937, 1, 9},
    {"larger than a cluster", 16, 16, 1, 1, 16, 262155, 1, 5},
    {"widest heads", 64, 64, 6, 2, 256, 72, 1, 200},
    {"aligned", 768, 2048, 12, 4, 64, 32000, 3, 64},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

double inv_freq(const Shape *s, int64_t j) {
  return pow(500000, -2 * (double)j / (double)s->d);
}

static int set_up(void **state, const KernelMode *mode) {
  const bool fused = mode->kernels == KERNELS_FUSED;
  Subjects *all = xcalloc(1, sizeof *all);
  assert_true(SHAPES <= sizeof all->list / sizeof *all->list);
  for (int i = 0; i < SHAPES; i++) {
    const Shape s = shapes[i];
    if (fused && (s.D % 8 || s.F % 8 || s.d % 8)) continue;
    Subject *t = &all->list[all->count++];
    *t = (Subject){
        .s = s, .M = s.B * s.T, .R = (s.H + 2 * s.KV) * s.d, .Hd = s.H * s.d, .fused = fused};
    OpsConfig config = {.D = s.D,
                        .F = s.F,
                        .H = s.H,
                        .KV = s.KV,
                        .d = s.d,
                        .V = s.V,
                        .max_tokens = t->M + 3,
                        .max_positions = s.T + 5,
                        .rms_norm_eps = eps};
    for (int64_t j = 0; j < s.d / 2; j++) config.inv_freq[j] = inv_freq(&s, j);
    GpuOptions options = {
        .kernels = mode->kernels, .mainloop = mode->mainloop, .train = true, .gemm_cache = ""};
    Error err;
    t->cpu = backend_cpu_create(&config);
    t->bf16 = backend_gpu_create(&config, &options, &err);
    if (!t->bf16) fail_msg("%s", err.text);
    options.grads_fp32 = true;
    t->fp32 = backend_gpu_create(&config, &options, &err);
    if (!t->fp32) fail_msg("%s", err.text);
    options.train = options.grads_fp32 = false;
    options.graphs = true;
    t->writer = backend_gpu_create(&config, &options, &err);
    if (!t->writer) fail_msg("%s", err.text);
  }
  printf("# %s: %s\n", all->list[0].bf16->name, all->list[0].bf16->description);
  *state = all;
  return 0;
}
static int set_up_unfused(void **state) {
  return set_up(state, &kernel_modes[0]);
}
static int set_up_fused(void **state) {
  return set_up(state, &kernel_modes[1]);
}
static int set_up_mma_sync(void **state) {
  return set_up(state, &kernel_modes[2]);
}

static int tear_down(void **state) {
  Subjects *all = *state;
  for (int i = 0; i < all->count; i++) {
    Subject *t = &all->list[i];
    t->cpu->services.destroy(t->cpu);
    t->bf16->services.destroy(t->bf16);
    t->fp32->services.destroy(t->fp32);
    t->writer->services.destroy(t->writer);
  }
  free(all);
  return 0;
}

float *floats(int64_t n) {
  return xcalloc((size_t)n, sizeof(float));
}

float *row_squares(const float *x, int64_t M, int64_t n) {
  float *sumsq = floats(M);
  for (int64_t m = 0; m < M; m++) {
    double sum = 0;
    for (int64_t k = 0; k < n; k++) sum += (double)x[m * n + k] * (double)x[m * n + k];
    sumsq[m] = (float)sum;
  }
  return sumsq;
}

int32_t *random_tokens(int64_t M, int64_t V, const char *name) {
  int32_t *tokens = xmalloc((size_t)M * sizeof *tokens);
  for (int64_t m = 0; m < M; m++)
    tokens[m] = (int32_t)(rng_u64(rng_key(7, name), (uint64_t)m) % (uint64_t)V);
  return tokens;
}

float *weight(int64_t N, int64_t K, const char *name) {
  return random_bf16(N * K, 1 / sqrt((double)K), name);
}

float *product_rounded(int64_t M, int64_t N, int64_t K, const float *x, const float *W) {
  float *z = floats(M * N);
  gemm(GEMM_NT, M, N, K, x, W, 0, z);
  round_all(z, M * N);
  return z;
}

const char *label(const Subject *t, const char *what) {
  static char text[80];
  snprintf(text, sizeof text, "%s, %s", what, t->s.name);
  return text;
}

void scale_rows(const Subject *t, const float *sumsq, int64_t n, float *x) {
  for (int64_t i = 0; i < t->M * n; i++) x[i] *= rms_rstd(sumsq[i / n], t->s.D, eps);
}

int run_over_backends(const struct CMUnitTest *tests, size_t count) {
  const CMFixtureFunction set_ups[KERNEL_MODES] = {set_up_unfused, set_up_fused, set_up_mma_sync};
  int failed = 0;
  for (int i = 0; i < KERNEL_MODES; i++)
    failed += _cmocka_run_group_tests(kernel_modes[i].name, tests, count, set_ups[i], tear_down);
  return failed;
}
