// Every operation of the backward, of the unfused and of the fused backend against the CPU backend.
// Bounds: see ops_rig.h.
#include "tests/gpu/ops_rig.h"

static void norm_dgrad(const Subject *t) {
  const int64_t M = t->M, D = t->s.D, N = 2 * t->s.F, parts = 3;
  Bench b = {.be = t->bf16};
  float *dz = random_bf16(M * N, 1, "dz"), *W = weight(N, D, "W"), *x = random_bf16(M * D, 1, "x");
  float *dx = random_bf16(M * D, 1, "dx"), *s = random_bf16(M, 3, "s"),
        *sumsq = row_squares(x, M, D);
  float *reference = floats(M * D), *twin = floats(M * D);
  t->cpu->norm_dgrad(t->cpu, M, N, operand_of(act(dz)), operand_of(act(W)), operand_of(act(x)),
                     whole(sumsq, M), whole(s, M), act(dx), operand_of(act(reference)));
  memcpy(twin, dx, (size_t)(M * D) * sizeof *twin);
  gemm(GEMM_NN, M, D, N, dz, W, 1, twin);
  for (int64_t i = 0; i < M * D; i++) {
    const float factor = rms_rstd(sumsq[i / D], D, eps) / (float)D * s[i / D];
    twin[i] = rounded(rounded(twin[i]) - factor * x[i]);
  }
  void *dz_gpu = bf16_buffer(&b, M * N, dz), *W_gpu = bf16_buffer(&b, N * D, W),
       *x_gpu = bf16_buffer(&b, M * D, x), *dx_gpu = bf16_buffer(&b, M * D, dx);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, sumsq),
                s_gpu = stat_in(&b, parts, M, s);
  b.be->operation = OP_GATE_UP_DGRAD;
  RUN_TWICE(&b, b.be->norm_dgrad(b.be, M, N, operand_of(dz_gpu), operand_of(W_gpu),
                                 operand_of(x_gpu), sumsq_gpu, s_gpu, dx_gpu, operand_of(dx_gpu)));
  float *got = bench_read(&b, dx_gpu);
  expect_near(label(t, "norm_dgrad"), got, twin, reference, M * D, 1e-6);
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
  t->cpu->down_dgrad(t->cpu, M, operand_of(act(dx)), operand_of(act(W)), act(z_scaled),
                     operand_of(NULL), whole(sumsq, M), operand_of(act(reference)), &s_cpu);
  float *dy = floats(M * F), *twin = floats(M * 2 * F), *s_twin = floats(M);
  gemm(GEMM_NN, M, F, D, dx, W, 0, dy);
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
  RUN_TWICE(&b, b.be->down_dgrad(b.be, M, operand_of(dx_gpu), operand_of(W_gpu), z_gpu,
                                 operand_of(NULL), sumsq_gpu, operand_of(dz_gpu), &s_gpu));
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
  t->cpu->dgrad(t->cpu, M, K, operand_of(act(dy)), operand_of(act(W)), act(reference));
  memcpy(twin, reference, (size_t)(M * K) * sizeof *twin);
  round_all(twin, M * K);
  void *dy_gpu = bf16_buffer(&b, M * D, dy), *W_gpu = bf16_buffer(&b, D * K, W),
       *da_gpu = bf16_buffer(&b, M * K, NULL);
  RUN_TWICE(&b, b.be->dgrad(b.be, M, K, operand_of(dy_gpu), operand_of(W_gpu), da_gpu));
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
  t->cpu->rope_backward(t->cpu, M, T, act(reference), act(packed), operand_of(NULL),
                        whole(sumsq, M), operand_of(act(reference)), &s_cpu);
  memcpy(twin, reference, (size_t)(M * R) * sizeof *twin);
  round_all(twin, M * R);
  void *dqkv_gpu = bf16_buffer(&b, M * R, dqkv), *qkv_gpu = bf16_buffer(&b, M * R, packed);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, sumsq);
  RowStat s_gpu = stat_out(&b, b.be->most_parts.s);
  RUN_TWICE(&b, b.be->rope_backward(b.be, M, T, dqkv_gpu, qkv_gpu, operand_of(NULL), sumsq_gpu,
                                    operand_of(dqkv_gpu), &s_gpu));
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
  t->cpu->wgrad(t->cpu, M, N, K, operand_of(act(dz)), operand_of(act(x)), grad(reference),
                accumulate);
  memcpy(twin, reference, (size_t)(N * K) * sizeof *twin);
  round_grad(be, twin, N * K);
  void *dz_gpu = bf16_buffer(&b, M * N, dz), *x_gpu = bf16_buffer(&b, M * K, x),
       *dW_gpu = grad_buffer(&b, N * K, accumulate ? before : NULL);
  RUN_TWICE(&b, be->wgrad(be, M, N, K, operand_of(dz_gpu), operand_of(x_gpu), dW_gpu, accumulate));
  float *got = bench_read(&b, dW_gpu);
  expect_near(label(t, accumulate ? "wgrad, added" : "wgrad"), got, twin, reference, N * K, 2e-6);
  free(dz), free(x), free(before), free(reference), free(twin), free(got);
  bench_free(&b);
}

static void in_parts(Backend *be, int64_t M, int64_t N, int64_t K, int64_t rows, act_t *dz,
                     act_t *x, stat_t *sum, grad_t *dW) {
  for (int64_t m = 0; m < M; m += rows)
    be->wgrad_part(be, m + rows < M ? rows : M - m, N, K, operand_of(act_at(be, dz, m * N)),
                   operand_of(act_at(be, x, m * K)), sum, m > 0, m + rows < M ? NULL : dW);
}

// In eight parts the gradient is as good as in one: it is rounded once.
static void wgrad_parts(const Subject *t) {
  enum { PARTS = 8 };
  Backend *be = t->bf16;
  const int64_t M = t->M, N = t->R, K = t->s.D, rows = (M + PARTS - 1) / PARTS;
  Bench b = {.be = be};
  float *dz = random_bf16(M * N, 1, "dz"), *x = random_bf16(M * K, 1, "x");
  float *reference = floats(N * K);
  t->cpu->wgrad(t->cpu, M, N, K, operand_of(act(dz)), operand_of(act(x)), grad(reference), false);
  act_t *dz_gpu = bf16_buffer(&b, M * N, dz), *x_gpu = bf16_buffer(&b, M * K, x);
  grad_t *whole_gpu = bf16_buffer(&b, N * K, NULL), *parts_gpu = bf16_buffer(&b, N * K, NULL);
  stat_t *sum_gpu = fp32_buffer(&b, N * K, NULL);
  RUN_TWICE(&b, (be->wgrad(be, M, N, K, operand_of(dz_gpu), operand_of(x_gpu), whole_gpu, false),
                 in_parts(be, M, N, K, rows, dz_gpu, x_gpu, sum_gpu, parts_gpu)));
  float *whole = bench_read(&b, whole_gpu), *summed = bench_read(&b, parts_gpu);
  const double one = deviation(whole, reference, N * K).l2,
               parts = deviation(summed, reference, N * K).l2;
  printf("# %-34s L2 %.2e in one, %.2e in parts\n", label(t, "wgrad"), one, parts);
  if (!(parts <= 1.1 * one + 1e-6)) fail_msg("parts of a weight gradient cost accuracy");
  free(dz), free(x), free(reference), free(whole), free(summed);
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

OVER_ALL_SHAPES(norm_dgrad, norm_dgrad(t))
OVER_ALL_SHAPES(down_dgrad, down_dgrad(t, true); down_dgrad(t, false))
OVER_ALL_SHAPES(dgrad, dgrad(t))
OVER_ALL_SHAPES(rope_backward, rope_backward(t))
OVER_ALL_SHAPES(wgrad, wgrad(t, t->bf16, false); wgrad(t, t->bf16, true); wgrad(t, t->fp32, false);
                wgrad(t, t->fp32, true))
OVER_ALL_SHAPES(wgrad_parts, wgrad_parts(t))
OVER_ALL_SHAPES(embed_backward, embed_backward(t, t->bf16, false); embed_backward(t, t->bf16, true);
                embed_backward(t, t->fp32, false); embed_backward(t, t->fp32, true))

int main(void) {
  const struct CMUnitTest tests[] = {
      {"norm_dgrad_subtracts_the_norm_term", test_norm_dgrad, NULL, NULL, NULL},
      {"down_dgrad_matches_in_place_and_apart", test_down_dgrad, NULL, NULL, NULL},
      {"dgrad_matches_the_reference", test_dgrad, NULL, NULL, NULL},
      {"rope_backward_rotates_back", test_rope_backward, NULL, NULL, NULL},
      {"weight_gradients_in_bf16_and_fp32_and_added", test_wgrad, NULL, NULL, NULL},
      {"a_weight_gradient_in_parts_is_rounded_once", test_wgrad_parts, NULL, NULL, NULL},
      {"embed_backward_sums_in_a_fixed_order", test_embed_backward, NULL, NULL, NULL},
  };
  return run_over_backends(tests, sizeof tests / sizeof *tests);
}
