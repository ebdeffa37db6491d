// Every operation of the unfused and of the fused CUDA backend against the CPU backend, which gets
// the same bf16 inputs widened to fp32. The bound of each error is twice the error of a twin: the
// CPU's result with a rounding to bf16 wherever the operation stores a bf16 value.
#include "tests/gpu/row_stats.h"

#include "kernels/cpu/cpu.h"
#include "kernels/gpu_backends.h"

typedef struct Shape {
  const char *name;
  int64_t D, F, H, KV, d, V, B, T;
} Shape;

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
    {"aligned", 768, 2048, 12, 4, 64, 32000, 3, 64},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef struct Subject {
  Shape s;
  int64_t M, R, Hd;
  Backend *cpu, *bf16, *fp32; // fp32: gradients in fp32
  double *inv_freq;
  bool fused; // then z holds the row scale already
} Subject;

typedef struct Subjects {
  Subject list[SHAPES];
  int count;
} Subjects;

static const float eps = 1e-5f;

static int set_up(void **state, bool fused) {
  Subjects *all = xcalloc(1, sizeof *all);
  for (int i = 0; i < SHAPES; i++) {
    const Shape s = shapes[i];
    if (fused && (s.D % 8 || s.F % 8 || s.d % 8)) continue;
    Subject *t = &all->list[all->count++];
    *t = (Subject){
        .s = s, .M = s.B * s.T, .R = (s.H + 2 * s.KV) * s.d, .Hd = s.H * s.d, .fused = fused};
    t->inv_freq = xmalloc((size_t)s.d / 2 * sizeof *t->inv_freq);
    for (int64_t j = 0; j < s.d / 2; j++)
      t->inv_freq[j] = pow(500000, -2 * (double)j / (double)s.d);
    const OpsConfig config = {.D = s.D,
                              .F = s.F,
                              .H = s.H,
                              .KV = s.KV,
                              .d = s.d,
                              .V = s.V,
                              .max_tokens = t->M + 3,
                              .max_positions = s.T + 5,
                              .rms_norm_eps = eps,
                              .inv_freq = t->inv_freq};
    GpuOptions options = {
        .kernels = fused ? KERNELS_FUSED : KERNELS_UNFUSED, .train = true, .gemm_cache = ""};
    Error err;
    t->cpu = backend_cpu_create(&config);
    t->bf16 = backend_gpu_create(&config, &options, &err);
    if (!t->bf16) fail_msg("%s", err.text);
    options.grads_fp32 = true;
    t->fp32 = backend_gpu_create(&config, &options, &err);
    if (!t->fp32) fail_msg("%s", err.text);
  }
  printf("# %s: %s\n", all->list[0].bf16->name, all->list[0].bf16->description);
  *state = all;
  return 0;
}
static int set_up_unfused(void **state) {
  return set_up(state, false);
}
static int set_up_fused(void **state) {
  return set_up(state, true);
}

static int tear_down(void **state) {
  Subjects *all = *state;
  for (int i = 0; i < all->count; i++) {
    Subject *t = &all->list[i];
    t->cpu->destroy(t->cpu);
    t->bf16->destroy(t->bf16);
    t->fp32->destroy(t->fp32);
    free(t->inv_freq);
  }
  free(all);
  return 0;
}

// ---- Parts of the twins

static float *floats(int64_t n) {
  return xcalloc((size_t)n, sizeof(float));
}

// Sum of squares of a row of x.
static float *row_squares(const float *x, int64_t M, int64_t n) {
  float *sumsq = floats(M);
  for (int64_t m = 0; m < M; m++) {
    double sum = 0;
    for (int64_t k = 0; k < n; k++) sum += (double)x[m * n + k] * (double)x[m * n + k];
    sumsq[m] = (float)sum;
  }
  return sumsq;
}

static int32_t *random_tokens(int64_t M, int64_t V, const char *name) {
  int32_t *tokens = xmalloc((size_t)M * sizeof *tokens);
  for (int64_t m = 0; m < M; m++)
    tokens[m] = (int32_t)(rng_u64(rng_key(7, name), (uint64_t)m) % (uint64_t)V);
  return tokens;
}

// The weight of a GEMM over K inputs.
static float *weight(int64_t N, int64_t K, const char *name) {
  return random_bf16(N * K, 1 / sqrt((double)K), name);
}

static float *product_rounded(int64_t M, int64_t N, int64_t K, const float *x, const float *W) {
  float *z = floats(M * N);
  gemm_nt(M, N, K, 1, x, K, W, K, 0, z, N);
  round_all(z, M * N);
  return z;
}

static const char *label(const Subject *t, const char *what) {
  static char text[80];
  snprintf(text, sizeof text, "%s, %s", what, t->s.name);
  return text;
}

// ---- Forward

static void embed(const Subject *t) {
  const int64_t M = t->M, D = t->s.D, V = t->s.V;
  Bench b = {.be = t->bf16};
  float *E = random_bf16(V * D, 1, "E"), *x = floats(M * D);
  int32_t *tokens = random_tokens(M, V, "tokens");
  tokens[0] = (int32_t)V - 1;
  for (int64_t m = 0; m < M; m++) memcpy(x + m * D, E + tokens[m] * D, (size_t)D * sizeof *x);
  void *tokens_gpu = int32_buffer(&b, M, tokens), *E_gpu = bf16_buffer(&b, V * D, E);
  void *x_gpu = bf16_buffer(&b, M * D, NULL);
  RowStat sumsq_gpu = stat_out(&b, b.be->most_parts.sumsq);
  RUN_TWICE(&b, b.be->embed(b.be, M, tokens_gpu, E_gpu, x_gpu, &sumsq_gpu));
  float *got = bench_read(&b, x_gpu), *sumsq = stat_read(&b, sumsq_gpu, M),
        *expected = row_squares(x, M, D);
  expect_same("x", got, x, M * D);
  expect_near(label(t, "embed sumsq"), sumsq, expected, expected, M, 1e-6);
  free(E), free(x), free(tokens), free(got), free(sumsq), free(expected);
  bench_free(&b);
}

static void qkv(const Subject *t) {
  const int64_t M = t->M, D = t->s.D, R = t->R, T = t->s.T, first = 5;
  Bench b = {.be = t->bf16};
  float *x = random_bf16(M * D, 1, "x"), *W = weight(R, D, "W"), *sumsq = row_squares(x, M, D);
  float *reference = floats(M * R), *twin = product_rounded(M, R, D, x, W);
  t->cpu->qkv(t->cpu, M, T, first, act(x), whole(sumsq, M), act(W), act(reference));
  for (int64_t m = 0; m < M; m++) {
    const float r = rms_rstd(sumsq[m], D, eps);
    for (int64_t c = 0; c < R; c++) twin[m * R + c] *= r;
    for (int64_t c = 0; c < (t->s.H + t->s.KV) * t->s.d; c += 2) {
      const double angle = (double)(first + m % T) * t->inv_freq[c % t->s.d / 2];
      rope_rotate(&twin[m * R + c], &twin[m * R + c + 1], (float)cos(angle), (float)sin(angle));
    }
  }
  round_all(twin, M * R);
  void *x_gpu = bf16_buffer(&b, M * D, x), *W_gpu = bf16_buffer(&b, R * D, W),
       *qkv_gpu = bf16_buffer(&b, M * R, NULL);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, sumsq);
  RUN_TWICE(&b, b.be->qkv(b.be, M, T, first, x_gpu, sumsq_gpu, W_gpu, qkv_gpu));
  float *got = bench_read(&b, qkv_gpu);
  expect_near(label(t, "qkv"), got, twin, reference, M * R, 1e-6);
  free(x), free(W), free(sumsq), free(reference), free(twin), free(got);
  bench_free(&b);
}

static void residual(const Subject *t) {
  const int64_t M = t->M, D = t->s.D, K = t->s.F;
  Bench b = {.be = t->bf16};
  float *a = random_bf16(M * K, 1, "a"), *W = weight(D, K, "W"), *x = random_bf16(M * D, 1, "x");
  float *reference = floats(M * D), *twin = floats(M * D), *unused = floats(M);
  RowStat none = whole(unused, M);
  t->cpu->residual(t->cpu, M, K, act(a), act(W), act(x), act(reference), &none);
  memcpy(twin, reference, (size_t)(M * D) * sizeof *twin);
  round_all(twin, M * D);
  void *a_gpu = bf16_buffer(&b, M * K, a), *W_gpu = bf16_buffer(&b, D * K, W),
       *x_gpu = bf16_buffer(&b, M * D, x), *out_gpu = bf16_buffer(&b, M * D, NULL);
  RowStat sumsq_gpu = stat_out(&b, b.be->most_parts.sumsq);
  RUN_TWICE(&b, b.be->residual(b.be, M, K, a_gpu, W_gpu, x_gpu, out_gpu, &sumsq_gpu));
  float *got = bench_read(&b, out_gpu), *sumsq = stat_read(&b, sumsq_gpu, M),
        *expected = row_squares(got, M, D);
  expect_near(label(t, "residual"), got, twin, reference, M * D, 1e-6);
  expect_near(label(t, "residual sumsq"), sumsq, expected, expected, M, 1e-6);
  free(a), free(W), free(x), free(reference), free(twin), free(unused);
  free(got), free(sumsq), free(expected);
  bench_free(&b);
}

// y of a z that still lacks the row scale, or has it (sumsq = NULL).
static void swiglu_twin(const Subject *t, const float *z, const float *sumsq, float *y) {
  const int64_t F = t->s.F;
  for (int64_t m = 0; m < t->M; m++) {
    const float r = sumsq ? rms_rstd(sumsq[m], t->s.D, eps) : 1;
    for (int64_t p = 0; p < F; p++)
      y[m * F + feature_of_pair(p, F)] =
          rounded(swiglu(r * z[m * 2 * F + 2 * p], r * z[m * 2 * F + 2 * p + 1]));
  }
}
static void scale_rows(const Subject *t, const float *sumsq, int64_t n, float *x) {
  for (int64_t i = 0; i < t->M * n; i++) x[i] *= rms_rstd(sumsq[i / n], t->s.D, eps);
}

static void gate_up(const Subject *t) {
  const int64_t M = t->M, D = t->s.D, F = t->s.F;
  Bench b = {.be = t->bf16};
  float *x = random_bf16(M * D, 1, "x"), *W = weight(2 * F, D, "W"), *sumsq = row_squares(x, M, D);
  float *z = floats(M * 2 * F), *reference = floats(M * F), *twin = floats(M * F),
        *z_twin = product_rounded(M, 2 * F, D, x, W);
  t->cpu->gate_up(t->cpu, M, act(x), whole(sumsq, M), act(W), act(z), act(reference));
  swiglu_twin(t, z_twin, sumsq, twin);
  void *x_gpu = bf16_buffer(&b, M * D, x), *W_gpu = bf16_buffer(&b, 2 * F * D, W),
       *z_gpu = bf16_buffer(&b, M * 2 * F, NULL), *y_gpu = bf16_buffer(&b, M * F, NULL);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, sumsq);
  RUN_TWICE(&b, b.be->gate_up(b.be, M, x_gpu, sumsq_gpu, W_gpu, z_gpu, y_gpu));
  float *got_z = bench_read(&b, z_gpu), *got = bench_read(&b, y_gpu);
  if (t->fused) { // z is rounded once, after the row scale
    gemm_nt(M, 2 * F, D, 1, x, D, W, D, 0, z_twin, 2 * F);
    scale_rows(t, sumsq, 2 * F, z_twin);
    round_all(z_twin, M * 2 * F);
    swiglu_twin(t, z_twin, NULL, twin); // y is of z as stored
  } else {
    gemm_nt(M, 2 * F, D, 1, x, D, W, D, 0, z, 2 * F); // z is stored before the row scale
  }
  expect_near(label(t, "gate_up z"), got_z, z_twin, z, M * 2 * F, 1e-6);
  expect_near(label(t, "gate_up y"), got, twin, reference, M * F, 1e-6);
  free(x), free(W), free(sumsq), free(z), free(reference), free(twin), free(z_twin);
  free(got_z), free(got);
  bench_free(&b);
}

static void decode(const Subject *t) {
  const int64_t T = t->s.T, R = t->R, Hd = t->Hd, rows = T > 3 ? T - 2 : 1;
  Bench b = {.be = t->bf16};
  float *packed = random_bf16(T * R, 1, "qkv"), *reference = floats(rows * Hd),
        *twin = floats(rows * Hd);
  t->cpu->attention_decode(t->cpu, T, rows, act(packed), act(reference));
  memcpy(twin, reference, (size_t)(rows * Hd) * sizeof *twin);
  round_all(twin, rows * Hd);
  void *qkv_gpu = bf16_buffer(&b, T * R, packed), *o_gpu = bf16_buffer(&b, rows * Hd, NULL);
  RUN_TWICE(&b, b.be->attention_decode(b.be, T, rows, qkv_gpu, o_gpu));
  float *got = bench_read(&b, o_gpu);
  expect_near(label(t, "attention_decode"), got, twin, reference, rows * Hd, 1e-6);
  free(packed), free(reference), free(twin), free(got);
  bench_free(&b);
}

// ---- The loss

typedef struct Head {
  float *x, *W, *sumsq, *z, *logits; // z: logits before the row scale, rounded; logits: exact
  int32_t *targets;
} Head;

static Head head_new(const Subject *t) {
  const int64_t M = t->M, D = t->s.D, V = t->s.V;
  Head h = {.x = random_bf16(M * D, 2, "x"), .W = weight(V, D, "W"), .logits = floats(M * V)};
  for (int64_t i = 0; i < V * D; i++) h.W[i] = rounded(h.W[i] * 3); // logits up to about 12
  h.sumsq = row_squares(h.x, M, D);
  h.z = product_rounded(M, V, D, h.x, h.W);
  h.targets = random_tokens(M, V, "targets");
  h.targets[0] = 0;
  h.targets[M - 1] = (int32_t)V - 1;
  t->cpu->lm_head(t->cpu, M, act(h.x), whole(h.sumsq, M), act(h.W), act(h.logits));
  return h;
}
static void head_free(Head *h) {
  free(h->x), free(h->W), free(h->sumsq), free(h->z), free(h->logits), free(h->targets);
}

// In double: the row's loss, and with dlogits also its gradient and s, from logits times
// `scale_of_z`.
static double softmax_row(const float *z, double scale_of_z, int64_t V, int32_t target,
                          double factor, float *dlogits, float *s) {
  double largest = -INFINITY, sum = 0, product = 0;
  for (int64_t v = 0; v < V; v++)
    if (scale_of_z * (double)z[v] > largest) largest = scale_of_z * (double)z[v];
  for (int64_t v = 0; v < V; v++) sum += exp(scale_of_z * (double)z[v] - largest);
  const double lse = largest + log(sum);
  for (int64_t v = 0; v < V && dlogits; v++) {
    const double u = scale_of_z * (double)z[v];
    const double g = factor * (exp(u - lse) - (v == target));
    dlogits[v] = (float)g;
    product += g * u;
  }
  if (s) *s = (float)product;
  return lse - scale_of_z * (double)z[target];
}

static void head_loss(const Subject *t) {
  const int64_t M = t->M, D = t->s.D, V = t->s.V;
  const double scale = 1 / (double)M;
  Bench b = {.be = t->bf16};
  Head h = head_new(t);
  float *reference = floats(M * V), *twin = floats(M * V), *s = floats(M), *s_twin = floats(M);
  double loss = 0, loss_twin = 0;
  for (int64_t m = 0; m < M; m++) {
    const double r = (double)rms_rstd(h.sumsq[m], D, eps);
    loss += scale *
            softmax_row(h.logits + m * V, 1, V, h.targets[m], r * scale, reference + m * V, &s[m]);
    loss_twin +=
        scale * softmax_row(h.z + m * V, r, V, h.targets[m], r * scale, twin + m * V, &s_twin[m]);
  }
  round_all(twin, M * V);
  void *x_gpu = bf16_buffer(&b, M * D, h.x), *W_gpu = bf16_buffer(&b, V * D, h.W),
       *targets_gpu = int32_buffer(&b, M, h.targets), *logits_gpu = bf16_buffer(&b, M * V, NULL);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, h.sumsq);
  RowStat s_gpu = stat_out(&b, b.be->most_parts.s);
  RUN_TWICE(&b, (b.be->step_begin(b.be),
                 b.be->head_loss(b.be, M, x_gpu, sumsq_gpu, W_gpu, targets_gpu, logits_gpu, scale,
                                 &s_gpu),
                 b.be->step_end(b.be)));
  float *got = bench_read(&b, logits_gpu), *got_s = stat_read(&b, s_gpu, M);
  b.be->step_result(b.be); // of the first of the two
  const float got_loss = (float)b.be->step_result(b.be).loss, loss_reference = (float)loss,
              twin_loss = (float)loss_twin;
  // A twin of one number may be lucky; logits of up to 12 are rounded by up to 3e-2 each.
  expect_near(label(t, "loss"), &got_loss, &twin_loss, &loss_reference, 1, 1e-4);
  expect_near(label(t, "dlogits"), got, twin, reference, M * V, 1e-6);
  expect_near(label(t, "loss s"), got_s, s_twin, s, M, 1e-5);

  // Evaluation: the loss alone, the same one.
  b.be->step_begin(b.be);
  b.be->head_loss(b.be, M, x_gpu, sumsq_gpu, W_gpu, targets_gpu, logits_gpu, scale, NULL);
  b.be->step_end(b.be);
  const float evaluated = (float)b.be->step_result(b.be).loss;
  expect_same("loss of an evaluation", &evaluated, &got_loss, 1);
  free(reference), free(twin), free(s), free(s_twin), free(got), free(got_s);
  head_free(&h);
  bench_free(&b);
}

// For generation: the logits as the model has them, after the row scale.
static void lm_head(const Subject *t) {
  const int64_t M = t->M, D = t->s.D, V = t->s.V;
  Bench b = {.be = t->bf16};
  Head h = head_new(t);
  float *twin = floats(M * V);
  for (int64_t m = 0; m < M; m++) {
    const float r = rms_rstd(h.sumsq[m], D, eps);
    for (int64_t v = 0; v < V; v++) twin[m * V + v] = rounded(r * h.z[m * V + v]);
  }
  void *x_gpu = bf16_buffer(&b, M * D, h.x), *W_gpu = bf16_buffer(&b, V * D, h.W),
       *logits_gpu = bf16_buffer(&b, M * V, NULL);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, h.sumsq);
  RUN_TWICE(&b, b.be->lm_head(b.be, M, x_gpu, sumsq_gpu, W_gpu, logits_gpu));
  float *got = bench_read(&b, logits_gpu);
  expect_near(label(t, "logits"), got, twin, h.logits, M * V, 1e-6);
  free(got), free(twin);
  head_free(&h);
  bench_free(&b);
}

// ---- Backward

static void norm_dgrad(const Subject *t, bool with_residual) {
  const int64_t M = t->M, D = t->s.D, N = 2 * t->s.F, parts = 3;
  Bench b = {.be = t->bf16};
  float *dz = random_bf16(M * N, 1, "dz"), *W = weight(N, D, "W"), *x = random_bf16(M * D, 1, "x");
  float *dx = random_bf16(M * D, 1, "dx"), *s = random_bf16(M, 3, "s"),
        *sumsq = row_squares(x, M, D);
  float *reference = floats(M * D), *twin = floats(M * D);
  t->cpu->norm_dgrad(t->cpu, M, N, act(dz), act(W), act(x), whole(sumsq, M), whole(s, M),
                     with_residual ? act(dx) : NULL, act(reference));
  if (with_residual) memcpy(twin, dx, (size_t)(M * D) * sizeof *twin);
  gemm_nn(M, D, N, 1, dz, N, W, D, with_residual ? 1 : 0, twin, D);
  for (int64_t i = 0; i < M * D; i++) {
    const float factor = rms_rstd(sumsq[i / D], D, eps) / (float)D * s[i / D];
    twin[i] = rounded(rounded(twin[i]) - factor * x[i]);
  }
  void *dz_gpu = bf16_buffer(&b, M * N, dz), *W_gpu = bf16_buffer(&b, N * D, W),
       *x_gpu = bf16_buffer(&b, M * D, x),
       *dx_gpu = bf16_buffer(&b, M * D, with_residual ? dx : NULL);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, sumsq),
                s_gpu = stat_in(&b, parts, M, s);
  RUN_TWICE(&b, b.be->norm_dgrad(b.be, M, N, dz_gpu, W_gpu, x_gpu, sumsq_gpu, s_gpu,
                                 with_residual ? dx_gpu : NULL, dx_gpu));
  float *got = bench_read(&b, dx_gpu);
  expect_near(label(t, with_residual ? "norm_dgrad" : "norm_dgrad, no residual"), got, twin,
              reference, M * D, 1e-6);
  free(dz), free(W), free(x), free(dx), free(s), free(sumsq), free(reference), free(twin);
  free(got);
  bench_free(&b);
}

static void down_dgrad(const Subject *t, bool in_place) {
  const int64_t M = t->M, D = t->s.D, F = t->s.F;
  Bench b = {.be = t->bf16};
  float *dx = random_bf16(M * D, 1, "dx"), *W = weight(D, F, "W"), *x = random_bf16(M * D, 1, "x"),
        *z = random_bf16(M * 2 * F, 2, "z"), *sumsq = row_squares(x, M, D);
  float *z_scaled = floats(M * 2 * F), *reference = floats(M * 2 * F), *s = floats(M);
  RowStat s_cpu = whole(s, M);
  memcpy(z_scaled, z, (size_t)(M * 2 * F) * sizeof *z);
  scale_rows(t, sumsq, 2 * F, z_scaled);
  if (t->fused) round_all(z_scaled, M * 2 * F);
  t->cpu->down_dgrad(t->cpu, M, act(dx), act(W), act(z_scaled), whole(sumsq, M), act(reference),
                     &s_cpu);
  float *dy = floats(M * F), *twin = floats(M * 2 * F), *s_twin = floats(M);
  gemm_nn(M, F, D, 1, dx, D, W, F, 0, dy, F);
  for (int64_t m = 0; m < M; m++)
    for (int64_t p = 0; p < F; p++) {
      const int64_t at = m * 2 * F + 2 * p, f = m * F + feature_of_pair(p, F);
      const float r = rms_rstd(sumsq[m], D, eps);
      float dgate, dup;
      swiglu_backward(z_scaled[at], z_scaled[at + 1], rounded(dy[f]), &dgate, &dup);
      twin[at] = rounded(r * dgate);
      twin[at + 1] = rounded(r * dup);
      s_twin[m] += twin[at] * z_scaled[at] + twin[at + 1] * z_scaled[at + 1];
    }
  void *dx_gpu = bf16_buffer(&b, M * D, dx), *W_gpu = bf16_buffer(&b, D * F, W),
       *z_gpu = bf16_buffer(&b, M * 2 * F, t->fused ? z_scaled : z),
       *dz_gpu = in_place ? z_gpu : bf16_buffer(&b, M * 2 * F, NULL);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, sumsq);
  RowStat s_gpu = stat_out(&b, b.be->most_parts.s);
  RUN_TWICE(&b, b.be->down_dgrad(b.be, M, dx_gpu, W_gpu, z_gpu, sumsq_gpu, dz_gpu, &s_gpu));
  float *got = bench_read(&b, dz_gpu), *got_s = stat_read(&b, s_gpu, M);
  expect_near(label(t, in_place ? "down_dgrad in place" : "down_dgrad"), got, twin, reference,
              M * 2 * F, 1e-6);
  expect_near(label(t, "down_dgrad s"), got_s, s_twin, s, M, 1e-5);
  free(dx), free(W), free(x), free(z), free(sumsq), free(z_scaled), free(reference), free(s);
  free(dy), free(twin), free(s_twin), free(got), free(got_s);
  bench_free(&b);
}

static void dgrad(const Subject *t) {
  const int64_t M = t->M, D = t->s.D, K = t->Hd;
  Bench b = {.be = t->bf16};
  float *dy = random_bf16(M * D, 1, "dy"), *W = weight(D, K, "W"), *reference = floats(M * K),
        *twin = floats(M * K);
  t->cpu->dgrad(t->cpu, M, K, act(dy), act(W), act(reference));
  memcpy(twin, reference, (size_t)(M * K) * sizeof *twin);
  round_all(twin, M * K);
  void *dy_gpu = bf16_buffer(&b, M * D, dy), *W_gpu = bf16_buffer(&b, D * K, W),
       *da_gpu = bf16_buffer(&b, M * K, NULL);
  RUN_TWICE(&b, b.be->dgrad(b.be, M, K, dy_gpu, W_gpu, da_gpu));
  float *got = bench_read(&b, da_gpu);
  expect_near(label(t, "dgrad"), got, twin, reference, M * K, 1e-6);
  free(dy), free(W), free(reference), free(twin), free(got);
  bench_free(&b);
}

static void rope_backward(const Subject *t) {
  const int64_t M = t->M, D = t->s.D, R = t->R, T = t->s.T;
  Bench b = {.be = t->bf16};
  float *x = random_bf16(M * D, 1, "x"), *packed = random_bf16(M * R, 1, "qkv"),
        *dqkv = random_bf16(M * R, 1, "dqkv"), *sumsq = row_squares(x, M, D);
  float *reference = floats(M * R), *twin = floats(M * R), *s = floats(M);
  memcpy(reference, dqkv, (size_t)(M * R) * sizeof *reference);
  RowStat s_cpu = whole(s, M);
  t->cpu->rope_backward(t->cpu, M, T, act(reference), act(packed), whole(sumsq, M), &s_cpu);
  memcpy(twin, reference, (size_t)(M * R) * sizeof *twin);
  round_all(twin, M * R);
  void *dqkv_gpu = bf16_buffer(&b, M * R, dqkv), *qkv_gpu = bf16_buffer(&b, M * R, packed);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, sumsq);
  RowStat s_gpu = stat_out(&b, b.be->most_parts.s);
  RUN_TWICE(&b, b.be->rope_backward(b.be, M, T, dqkv_gpu, qkv_gpu, sumsq_gpu, &s_gpu));
  float *got = bench_read(&b, dqkv_gpu), *got_s = stat_read(&b, s_gpu, M);
  expect_near(label(t, "rope_backward"), got, twin, reference, M * R, 1e-6);
  expect_near(label(t, "rope_backward s"), got_s, s, s, M, 1e-5);
  free(x), free(packed), free(dqkv), free(sumsq), free(reference), free(twin), free(s);
  free(got), free(got_s);
  bench_free(&b);
}

// A gradient as the backend holds it.
static void *grad_buffer(Bench *b, int64_t n, const float *values) {
  return b->be->grad_bytes == 2 ? bf16_buffer(b, n, values) : fp32_buffer(b, n, values);
}
static void round_grad(const Backend *be, float *g, int64_t n) {
  if (be->grad_bytes == 2) round_all(g, n);
}

static void wgrad(const Subject *t, Backend *be, bool accumulate) {
  const int64_t M = t->M, N = t->R, K = t->s.D;
  Bench b = {.be = be};
  float *dz = random_bf16(M * N, 1, "dz"), *x = random_bf16(M * K, 1, "x"),
        *before = random_bf16(N * K, 1, "dW");
  float *reference = floats(N * K), *twin = floats(N * K);
  memcpy(reference, before, (size_t)(N * K) * sizeof *reference);
  t->cpu->wgrad(t->cpu, M, N, K, act(dz), act(x), grad(reference), accumulate);
  memcpy(twin, reference, (size_t)(N * K) * sizeof *twin);
  round_grad(be, twin, N * K);
  void *dz_gpu = bf16_buffer(&b, M * N, dz), *x_gpu = bf16_buffer(&b, M * K, x),
       *dW_gpu = grad_buffer(&b, N * K, accumulate ? before : NULL);
  RUN_TWICE(&b, be->wgrad(be, M, N, K, dz_gpu, x_gpu, dW_gpu, accumulate));
  float *got = bench_read(&b, dW_gpu);
  expect_near(label(t, accumulate ? "wgrad, added" : "wgrad"), got, twin, reference, N * K, 2e-6);
  free(dz), free(x), free(before), free(reference), free(twin), free(got);
  bench_free(&b);
}

// Tokens with runs of one value, so that buckets of one, of several and of many pieces occur.
static void embed_backward(const Subject *t, Backend *be, bool accumulate) {
  const int64_t M = t->M, D = t->s.D, V = t->s.V;
  Bench b = {.be = be};
  int32_t *tokens = random_tokens(M, V, "tokens");
  for (int64_t m = 0; m < M; m++)
    if (m % 3 != 0) tokens[m] = m % 5 < 3 ? 1 : 2;
  float *dx = random_bf16(M * D, 1, "dx"), *before = random_bf16(V * D, 1, "dE");
  float *reference = floats(V * D), *twin = floats(V * D);
  if (accumulate) memcpy(reference, before, (size_t)(V * D) * sizeof *reference);
  t->cpu->embed_backward(t->cpu, M, tokens, act(dx), grad(reference), accumulate);
  memcpy(twin, reference, (size_t)(V * D) * sizeof *twin);
  round_grad(be, twin, V * D);
  void *tokens_gpu = int32_buffer(&b, M, tokens), *dx_gpu = bf16_buffer(&b, M * D, dx),
       *dE_gpu = grad_buffer(&b, V * D, accumulate ? before : NULL);
  RUN_TWICE(&b, be->embed_backward(be, M, tokens_gpu, dx_gpu, dE_gpu, accumulate));
  float *got = bench_read(&b, dE_gpu);
  expect_near(label(t, "embed_backward"), got, twin, reference, V * D, 1e-6);
  free(tokens), free(dx), free(before), free(reference), free(twin), free(got);
  bench_free(&b);
}

// ---- The runner: one cmocka test an operation, over all shapes

#define OVER_ALL_SHAPES(name, ...)                                                                 \
  static void test_##name(void **state) {                                                          \
    const Subjects *all = *state;                                                                  \
    for (int i = 0; i < all->count; i++) {                                                         \
      const Subject *t = &all->list[i];                                                            \
      __VA_ARGS__;                                                                                 \
    }                                                                                              \
  }
OVER_ALL_SHAPES(embed, embed(t))
OVER_ALL_SHAPES(qkv, qkv(t))
OVER_ALL_SHAPES(residual, residual(t))
OVER_ALL_SHAPES(gate_up, gate_up(t))
OVER_ALL_SHAPES(decode, decode(t))
OVER_ALL_SHAPES(head_loss, head_loss(t))
OVER_ALL_SHAPES(lm_head, lm_head(t))
OVER_ALL_SHAPES(norm_dgrad, norm_dgrad(t, true); norm_dgrad(t, false))
OVER_ALL_SHAPES(down_dgrad, down_dgrad(t, true); down_dgrad(t, false))
OVER_ALL_SHAPES(dgrad, dgrad(t))
OVER_ALL_SHAPES(rope_backward, rope_backward(t))
OVER_ALL_SHAPES(wgrad, wgrad(t, t->bf16, false); wgrad(t, t->bf16, true); wgrad(t, t->fp32, false);
                wgrad(t, t->fp32, true))
OVER_ALL_SHAPES(embed_backward, embed_backward(t, t->bf16, false); embed_backward(t, t->bf16, true);
                embed_backward(t, t->fp32, false); embed_backward(t, t->fp32, true))

int main(void) {
  const struct CMUnitTest tests[] = {
      {"embed_gathers_rows_and_their_sums_of_squares", test_embed, NULL, NULL, NULL},
      {"qkv_is_scaled_and_rotated", test_qkv, NULL, NULL, NULL},
      {"residual_adds_and_takes_the_sum_of_squares_as_stored", test_residual, NULL, NULL, NULL},
      {"gate_up_multiplies_in_natural_order", test_gate_up, NULL, NULL, NULL},
      {"attention_decode_matches_the_reference", test_decode, NULL, NULL, NULL},
      {"head_loss_leaves_loss_gradient_and_row_sums", test_head_loss, NULL, NULL, NULL},
      {"lm_head_scales_the_logits", test_lm_head, NULL, NULL, NULL},
      {"norm_dgrad_subtracts_the_norm_term", test_norm_dgrad, NULL, NULL, NULL},
      {"down_dgrad_matches_in_place_and_apart", test_down_dgrad, NULL, NULL, NULL},
      {"dgrad_matches_the_reference", test_dgrad, NULL, NULL, NULL},
      {"rope_backward_rotates_back", test_rope_backward, NULL, NULL, NULL},
      {"weight_gradients_in_bf16_and_fp32_and_added", test_wgrad, NULL, NULL, NULL},
      {"embed_backward_sums_in_a_fixed_order", test_embed_backward, NULL, NULL, NULL},
  };
  const int unfused = cmocka_run_group_tests_name("unfused", tests, set_up_unfused, tear_down);
  Error err;
  const OpsConfig aligned = {.D = 8, .F = 8, .d = 8};
  if (backend_fused_supported(&aligned, &err) != 0) {
    printf("# %s\n", err.text);
    return unfused;
  }
  return unfused + cmocka_run_group_tests_name("fused", tests, set_up_fused, tear_down);
}
