// The kernels that leave FP8 copies: bit for bit as kernels/formats.h has them, or, where the GPU's
// arithmetic differs in the last bits, rounded to the nearest but for that.
#include "kernels/unfused/unfused.h"
#include "tests/gpu/copies_rig.h"
#include "tests/gpu/fp8_here.h"

static void cast(Subject *t) {
  const int64_t M = t->M, N = t->s.D;
  float *x = random_bf16(M * N, 2, "x"), *q = row_scales(M), *qx = times_rows(x, q, M, N);
  Operand plain = copies_out(t, M, N, DELAYED), rows = copies_out(t, M, N, FIXED);
  plain.data = rows.data = bf16_buffer(&t->b, M * N, x);
  rows.row_scale = fp32_buffer(&t->b, M, q);
  RUN_TWICE(&t->b, (t->be->repack(t->be, M, N, plain), t->be->repack(t->be, M, N, rows)));
  expect_copies(t, "cast", plain, M, N, x, 0);
  expect_copies(t, "cast of scaled rows", rows, M, N, qx, 0);
  free(x), free(q), free(qx);
}

// One orientation alone, as generation has it; and a NaN, which lowers the scale.
static void cast_partly(Subject *t) {
  const int64_t M = t->M, N = t->s.D;
  float *x = random_bf16(M * N, 2, "x");
  x[M * N - 1] = NAN;
  Operand out = copies_out(t, M, N, DELAYED);
  out.by_col = NULL;
  out.data = bf16_buffer(&t->b, M * N, x);
  RUN_TWICE(&t->b, t->be->repack(t->be, M, N, out));
  uint8_t *by_row = bytes_of(t, out.by_row, M * N);
  for (int64_t i = 0; i < M * N; i++)
    assert_int_equal(by_row[i / N * N + fp8_column_place(i % N)],
                     fp8_bits(FP8_E4M3, scales[DELAYED] * x[i]));
  ScalingState states[SCALINGS];
  update_scalings(t);
  t->be->services.scalings_read(t->be, states);
  assert_true(states[DELAYED].history[0] == 16 * 448 / scales[DELAYED]);
  assert_true(states[DELAYED].scale == scales[DELAYED] / 16);
  free(x), free(by_row);
}

// To the host's bits: with values of the least sizes, of both signs, beyond the scale, and a NaN.
static void cast_dlogits(Subject *t) {
  const int64_t M = t->M, N = t->s.V;
  const double grad_scale = 1.0 / 64;
  const float scale = fp8_dlogits_scale(FP8_E4M3, grad_scale);
  float *P = random_bf16(M * N, 2, "P"), *u = random_bf16(M, 3, "u");
  for (int64_t i = 0; i < M * N; i++) P[i] = ldexpf(P[i], -(int)(i * 7 % 29));
  P[M * N - 1] = NAN;
  Operand out = copies_out(t, M, N, FIXED);
  void *P_gpu = bf16_buffer(&t->b, M * N, P), *u_gpu = fp32_buffer(&t->b, M, u);
  RUN_TWICE(&t->b, cuda_cast_dlogits(t->c, M, out, P_gpu, u_gpu, grad_scale));
  uint8_t *by_row = bytes_of(t, out.by_row, M * N),
          *by_col = bytes_of(t, out.by_col, N * out.stride);
  int64_t nearest = 0;
  for (int64_t i = 0; i < M * N; i++) {
    const int64_t m = i / N, n = i % N;
    const float value = scale * (P[i] * u[m]);
    const float expected = fp8_round_stochastic(value, noise_mix((uint32_t)m), (uint32_t)n);
    const uint8_t got = by_row[m * N + fp8_column_place(n)];
    assert_int_equal(by_col[n * out.stride + fp8_row_place(m)], got);
    if (isnan(expected))
      assert_int_equal(got & 0x7f, 0x7f);
    else if (got != fp8_bits(FP8_E4M3, expected))
      fail_msg("dlogits[%lld, %lld] is %02x for %a, not %a", (long long)m, (long long)n, got,
               (double)value, (double)expected);
    nearest += expected == fp8_round(FP8_E4M3, value);
  }
  printf("# cast of dlogits: %.2f of %lld to the nearest\n", (double)nearest / (double)(M * N),
         (long long)(M * N));
  free(P), free(u), free(by_row), free(by_col);
}

static void embed(Subject *t) {
  const int64_t M = t->M, D = t->s.D, V = t->s.V;
  float *E = random_bf16(V * D, 3, "E"), *x = xmalloc((size_t)(M * D) * sizeof *x);
  int32_t *tokens = xmalloc((size_t)M * sizeof *tokens);
  for (int64_t m = 0; m < M; m++) {
    tokens[m] = (int32_t)(m * 31 % V);
    memcpy(x + m * D, E + tokens[m] * D, (size_t)D * sizeof *x);
  }
  void *tokens_gpu = int32_buffer(&t->b, M, tokens), *E_gpu = bf16_buffer(&t->b, V * D, E);
  Operand out = copies_out(t, M, D, FIXED);
  out.data = bf16_buffer(&t->b, M * D, NULL);
  out.row_scale = fp32_buffer(&t->b, M, NULL);
  RowStat sumsq = stat_out(&t->b, 1);
  RUN_TWICE(&t->b, t->be->embed(t->be, M, tokens_gpu, E_gpu, out, &sumsq));
  float *sums = stat_read(&t->b, sumsq, M), *q = bench_read(&t->b, out.row_scale),
        *expected = xmalloc((size_t)M * sizeof *expected);
  for (int64_t m = 0; m < M; m++) expected[m] = power_of_two_below(rms_rstd(sums[m], D, eps));
  expect_same("row scales", q, expected, M);
  float *qx = times_rows(x, expected, M, D);
  expect_copies(t, "embed", out, M, D, qx, 0);
  free(E), free(x), free(tokens), free(sums), free(q), free(expected), free(qx);
}

static void rope_backward(Subject *t) {
  const int64_t M = t->M, R = t->R, d = t->s.d;
  Rows x = rows_new(t);
  float *packed = random_bf16(M * R, 1, "qkv"), *dqkv = random_bf16(M * R, 1, "dqkv");
  float *expected = times_rows(dqkv, x.factor, M, R), *s = xcalloc((size_t)M, sizeof *s);
  for (int64_t i = 0; i < M * R; i += 2) {
    const int64_t c = i % R;
    s[i / R] += expected[i] * packed[i] + expected[i + 1] * packed[i + 1];
    const double angle = (double)(i / R % t->s.T) / (1 + (double)(c % d / 2));
    if (c < (t->s.H + t->s.KV) * d)
      rope_rotate(&expected[i], &expected[i + 1], (float)cos(angle), -(float)sin(angle));
  }
  void *qkv_gpu = bf16_buffer(&t->b, M * R, packed), *dqkv_gpu = bf16_buffer(&t->b, M * R, dqkv);
  const Operand out = copies_out(t, M, R, DELAYED);
  RowStat s_gpu = stat_out(&t->b, t->be->most_parts.s);
  RUN_TWICE(&t->b, t->be->rope_backward(t->be, M, t->s.T, dqkv_gpu, qkv_gpu, x.on_gpu, x.sumsq_gpu,
                                        out, &s_gpu));
  float *got_s = stat_read(&t->b, s_gpu, M);
  expect_copies(t, "rope_backward", out, M, R, expected, 1e-6);
  expect_near("rope_backward s", got_s, s, s, M, 1e-5);
  free(packed), free(dqkv), free(expected), free(s), free(got_s);
  rows_free(&x);
}

static RowScale scale_of(const Subject *t, const Rows *x) {
  return row_scale_of(t->c, x->on_gpu, x->sumsq_gpu);
}

static void swiglu_forward(Subject *t) {
  const int64_t M = t->M, F = t->s.F;
  Rows x = rows_new(t);
  float *z = random_bf16(M * 2 * F, 2, "z"), *y = xmalloc((size_t)(M * F) * sizeof *y);
  for (int64_t i = 0; i < M * F; i++) {
    const int64_t m = i / F;
    const float r = x.factor[m];
    y[m * F + feature_of_pair(i % F, F)] = swiglu(r * z[2 * i], r * z[2 * i + 1]);
  }
  void *z_gpu = bf16_buffer(&t->b, M * 2 * F, z);
  const Operand out = copies_out(t, M, F, DELAYED);
  RUN_TWICE(&t->b, launch_swiglu_fp8(M, F, scale_of(t, &x), z_gpu, out, t->c->scalings + DELAYED,
                                     t->c->gpu.stream));
  expect_copies(t, "swiglu", out, M, F, y, 1e-6);
  free(z), free(y);
  rows_free(&x);
}

static void swiglu_back(Subject *t) {
  const int64_t M = t->M, F = t->s.F;
  Rows x = rows_new(t);
  float *z = random_bf16(M * 2 * F, 2, "z"), *dy = random_bf16(M * F, 1, "dy"),
        *dz = xmalloc((size_t)(M * 2 * F) * sizeof *dz), *s = xcalloc((size_t)M, sizeof *s);
  for (int64_t i = 0; i < M * F; i++) {
    const int64_t m = i / F;
    const float r = x.factor[m], gate = r * z[2 * i], up = r * z[2 * i + 1];
    swiglu_backward(gate, up, r * dy[m * F + feature_of_pair(i % F, F)], &dz[2 * i],
                    &dz[2 * i + 1]);
    s[m] += dz[2 * i] * gate + dz[2 * i + 1] * up;
  }
  void *z_gpu = bf16_buffer(&t->b, M * 2 * F, z), *dy_gpu = bf16_buffer(&t->b, M * F, dy);
  const Operand out = copies_out(t, M, 2 * F, DELAYED);
  RowStat s_gpu = stat_out(&t->b, t->be->most_parts.s);
  RUN_TWICE(&t->b, launch_swiglu_backward_fp8(M, F, scale_of(t, &x), z_gpu, dy_gpu, out,
                                              t->c->scalings + DELAYED, &s_gpu, t->c->gpu.stream));
  float *got_s = stat_read(&t->b, s_gpu, M);
  expect_copies(t, "swiglu_backward", out, M, 2 * F, dz, 1e-6);
  expect_near("swiglu_backward s", got_s, s, s, M, 1e-5);
  free(z), free(dy), free(dz), free(s), free(got_s);
  rows_free(&x);
}

static void norm_backward(Subject *t) {
  const int64_t M = t->M, D = t->s.D;
  Rows x = rows_new(t);
  float *product = random_bf16(M * D, 1, "product"), *residual = random_bf16(M * D, 1, "residual"),
        *s = random_bf16(M, 3, "s");
  float *reference = xmalloc((size_t)(M * D) * sizeof *reference),
        *twin = xmalloc((size_t)(M * D) * sizeof *twin);
  for (int64_t i = 0; i < M * D; i++) {
    const int64_t m = i / D;
    const double q = (double)x.q[m], r = (double)(x.factor[m] * x.q[m]);
    reference[i] = (float)(q * (double)product[i] -
                           r / (double)D * q * (double)s[m] * (double)x.x[i] + (double)residual[i]);
    twin[i] = rounded(reference[i]);
  }
  void *product_gpu = bf16_buffer(&t->b, M * D, product),
       *residual_gpu = bf16_buffer(&t->b, M * D, residual);
  const RowStat s_gpu = stat_in(&t->b, 2, M, s);
  Operand out = copies_out(t, M, D, DELAYED);
  out.data = bf16_buffer(&t->b, M * D, NULL);
  RUN_TWICE(&t->b,
            launch_norm_backward_fp8(M, row_scale(t->c, x.sumsq_gpu), x.on_gpu, s_gpu, residual_gpu,
                                     product_gpu, out, t->c->scalings + DELAYED, t->c->gpu.stream));
  float *dx = bench_read(&t->b, out.data);
  expect_near("norm_backward", dx, twin, reference, M * D, 1e-6);
  expect_copies(t, "norm_backward", out, M, D, dx, 0);
  free(product), free(residual), free(s), free(reference), free(twin), free(dx);
  rows_free(&x);
}

OVER_SHAPES(a_cast_leaves_both_copies, cast)
OVER_SHAPES(a_cast_leaves_one_copy_and_counts_nan, cast_partly)
OVER_SHAPES(dlogits_are_rounded_as_the_host_does, cast_dlogits)
OVER_SHAPES(embed_scales_rows_by_their_own_rms, embed)
OVER_SHAPES(rope_backward_leaves_copies, rope_backward)
OVER_SHAPES(swiglu_leaves_copies, swiglu_forward)
OVER_SHAPES(swiglu_backward_leaves_copies, swiglu_back)
OVER_SHAPES(norm_backward_leaves_copies, norm_backward)

TEST_GROUP(needs_fp8, NULL);
