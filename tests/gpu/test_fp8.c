// Operations that multiply FP8 copies, and the scales that follow from a run's largest values.
#include "tests/gpu/copies_rig.h"
#include "tests/gpu/fp8_here.h"

// ---- Products of copies

// The copies of [rows, cols] as an operation finds them, and the values that they stand for.
static Operand copies_in(Subject *t, int64_t rows, int64_t cols, bool weight, const char *name,
                         float **values) {
  const int scaling = weight ? WEIGHT : DELAYED;
  Operand x = {.stride = fp8_padded(rows) + FP8_GROUP, .scaling = scaling, .fp8 = true};
  *values = random_bf16(rows * cols, weight ? 1 / sqrt((double)cols) : 0.5, name);
  const int64_t all_rows = fp8_padded(rows);
  uint8_t *by_row = xcalloc((size_t)(all_rows * cols), 1),
          *by_col = xcalloc((size_t)(cols * x.stride), 1);
  for (int64_t i = 0; i < rows * cols; i++) {
    const int64_t m = i / cols, n = i % cols,
                  place = weight ? fp8_column_place(m) : fp8_row_place(m);
    const uint8_t b = fp8_bits(FP8_E4M3, scales[scaling] * (*values)[i]);
    by_row[m * cols + fp8_column_place(n)] = by_col[n * x.stride + place] = b;
    (*values)[i] = fp8_value(FP8_E4M3, b) / scales[scaling];
  }
  x.by_row = buffer_new(&t->b, all_rows * cols, 1, by_row)->data;
  x.by_col = buffer_new(&t->b, cols * x.stride, 1, by_col)->data;
  free(by_row), free(by_col);
  return x;
}

// Sums of products of fp32 values; a twin rounds to bf16. 1e-3 for fast sums: 1e-3 was observed.
static void expect_sums(const char *what, const float *got, const float *reference, int64_t n) {
  float *twin = xmalloc((size_t)n * sizeof *twin);
  memcpy(twin, reference, (size_t)n * sizeof *twin);
  round_all(twin, n);
  expect_near(what, got, twin, reference, n, 1e-3);
  free(twin);
}

// out = x + a W^T, then copies by the rms of x.
static void residual(Subject *t) {
  const int64_t M = t->M, D = t->s.D, K = t->s.F;
  Rows rows = rows_new(t);
  float *a, *W, *reference = xmalloc((size_t)(M * D) * sizeof *reference);
  const Operand a_gpu = copies_in(t, M, K, false, "a", &a),
                W_gpu = copies_in(t, D, K, true, "W", &W);
  Operand out = copies_out(t, M, D, FIXED);
  out.data = bf16_buffer(&t->b, M * D, NULL);
  out.row_scale = fp32_buffer(&t->b, M, NULL);
  RowStat sumsq = stat_out(&t->b, t->be->most_parts.sumsq);
  memcpy(reference, rows.x, (size_t)(M * D) * sizeof *reference);
  gemm(GEMM_NT, M, D, K, a, W, 1, reference);
  RUN_TWICE(&t->b, t->be->residual(t->be, M, K, a_gpu, W_gpu, rows.on_gpu.data, rows.sumsq_gpu, out,
                                   &sumsq));
  float *got = bench_read(&t->b, out.data), *q = bench_read(&t->b, out.row_scale);
  float *sums = stat_read(&t->b, sumsq, M), *squares = squares_of(got, M, D);
  expect_sums("residual", got, reference, M * D);
  expect_near("residual sumsq", sums, squares, squares, M, 1e-5);
  for (int64_t m = 0; m < M; m++)
    assert_true(q[m] == power_of_two_below(rms_rstd(rows.sumsq[m], D, eps)));
  float *qx = times_rows(got, q, M, D);
  expect_copies(t, "residual", out, M, D, qx, 0);
  free(a), free(W), free(reference), free(got), free(q), free(sums), free(squares), free(qx);
  rows_free(&rows);
}

static void dgrad(Subject *t) {
  const int64_t M = t->M, D = t->s.D, K = t->s.H * t->s.d;
  float *dy, *W, *reference = xcalloc((size_t)(M * K), sizeof *reference);
  const Operand dy_gpu = copies_in(t, M, D, false, "dy", &dy),
                W_gpu = copies_in(t, D, K, true, "W", &W);
  void *da = bf16_buffer(&t->b, M * K, NULL);
  gemm(GEMM_NN, M, K, D, dy, W, 0, reference);
  RUN_TWICE(&t->b, t->be->dgrad(t->be, M, K, dy_gpu, W_gpu, da));
  float *got = bench_read(&t->b, da);
  expect_sums("dgrad", got, reference, M * K);
  free(dy), free(W), free(reference), free(got);
}

static void wgrad(Subject *t) {
  const int64_t M = t->M, N = t->R, K = t->s.D;
  float *dz, *x, *reference = xcalloc((size_t)(N * K), sizeof *reference);
  const Operand dz_gpu = copies_in(t, M, N, false, "dz", &dz),
                x_gpu = copies_in(t, M, K, false, "x", &x);
  void *dW =
      t->c->options.grads_fp32 ? fp32_buffer(&t->b, N * K, NULL) : bf16_buffer(&t->b, N * K, NULL);
  gemm(GEMM_TN, N, K, M, dz, x, 0, reference);
  for (int64_t i = 0; i < N * K; i++) reference[i] *= 2;
  RUN_TWICE(&t->b, (t->be->wgrad(t->be, M, N, K, dz_gpu, x_gpu, dW, false),
                    t->be->wgrad(t->be, M, N, K, dz_gpu, x_gpu, dW, true)));
  float *got = bench_read(&t->b, dW);
  expect_sums("wgrad, twice", got, reference, N * K);
  free(dz), free(x), free(reference), free(got);
}

// One row is a walk over the weights: a backend that only writes, by cuda_gemv.
static void one_row(Subject *t) {
  const int64_t N = t->R, K = t->s.D;
  float *a, *W, *reference = xcalloc((size_t)N, sizeof *reference);
  const Operand a_gpu = copies_in(t, 1, K, false, "a", &a),
                W_gpu = copies_in(t, N, K, true, "W", &W);
  void *out = bf16_buffer(&t->b, N, NULL);
  gemm(GEMM_NT, 1, N, K, a, W, 0, reference);
  RUN_TWICE(&t->b, cuda_gemv(t->c, N, K, a_gpu, W_gpu, NULL, NULL, out));
  float *got = bench_read(&t->b, out);
  expect_sums("one row", got, reference, N);
  free(a), free(W), free(reference), free(got);
}

OVER_SHAPES(one_row_walks_over_fp8_weights, one_row)

static void products(Subject *t) {
  if (!has_fp8(t)) {
    printf("# this GPU has no FP8\n");
    return;
  }
  residual(t);
  dgrad(t);
  wgrad(t);
}
OVER_SHAPES(operations_multiply_copies, products)

TEST(weight_gradients_in_fp32_add_up) {
  Subject t = open_subject(&shapes[0], true);
  if (has_fp8(&t)) wgrad(&t);
  close_subject(&t);
}

// ---- Scales

// Casts a tensor whose largest value this is.
static Operand cast_of(Subject *t, float largest, Operand out) {
  const int64_t M = t->M, N = t->s.D;
  float *x = xcalloc((size_t)(M * N), sizeof *x);
  x[M * N / 2] = -largest;
  if (!out.data) {
    out = copies_out(t, M, N, DELAYED);
    out.data = bf16_buffer(&t->b, M * N, x);
  }
  uint16_t *bits = xmalloc((size_t)(M * N) * sizeof *bits);
  for (int64_t i = 0; i < M * N; i++) bits[i] = to_bf16(x[i]);
  t->be->services.write(t->be, out.data, bits, (size_t)(M * N) * sizeof *bits);
  t->be->repack(t->be, M, N, out);
  free(x), free(bits);
  return out;
}

static void expect_scaling(Subject *t, float scale, float newest) {
  ScalingState states[SCALINGS];
  t->be->services.scalings_read(t->be, states);
  assert_true(states[DELAYED].scale == scale);
  assert_true(states[DELAYED].history[0] == newest);
  assert_true(states[FIXED].scale == 1);
}

// The scale follows from the largest value of 16 steps; what it does not reach is told of.
static void scales_follow(Subject *t) {
  Operand out = cast_of(t, 2, (Operand){.data = NULL}); // by 128: 256
  assert_int_equal(update_scalings(t).saturated, 0);
  expect_scaling(t, 128, 2);
  cast_of(t, 100, out); // by 128: beyond
  const StepState state = update_scalings(t);
  assert_int_equal(state.saturated, 1);
  assert_int_equal(state.saturated_first, DELAYED);
  expect_scaling(t, 4, 100);
  for (int step = 1; step <= SCALE_HISTORY; step++) {
    cast_of(t, 3, out);
    assert_int_equal(update_scalings(t).saturated, 0);
    expect_scaling(t, step < SCALE_HISTORY ? 4 : 128, 3);
  }
  assert_int_equal(update_scalings(t).saturated, 0); // of a step without copies
  expect_scaling(t, 128, 3);
  cast_of(t, 200, out);
  t->be->services.scalings_discard(t->be);
  assert_int_equal(update_scalings(t).saturated, 0);
  expect_scaling(t, 128, 3);
}
OVER_SHAPES(scales_follow_from_sixteen_steps, scales_follow)

// While a run calibrates the copies have the scale of their own largest value, kept through a
// checkpoint.
static void calibrated(Subject *t) {
  const int64_t M = t->M, N = t->s.D, middle = M * N / 2;
  ScalingState states[SCALINGS] = {{0}};
  t->be->services.scalings_write(t->be, states);
  expect_scaling(t, 0, 0);
  t->be->calibrating = true;
  const Operand out = cast_of(t, 100, (Operand){.data = NULL});
  t->be->calibrating = false;
  uint8_t *by_row = bytes_of(t, out.by_row, M * N);
  assert_int_equal(by_row[middle / N * N + fp8_column_place(middle % N)], fp8_bits(FP8_E4M3, -400));
  expect_scaling(t, 4, 0);
  update_scalings(t);
  expect_scaling(t, 4, 100);
  t->be->services.scalings_read(t->be, states);
  Subject other = open_subject(&t->s, false);
  other.be->services.scalings_write(other.be, states);
  expect_scaling(&other, 4, 100);
  close_subject(&other);
  free(by_row);
}
OVER_SHAPES(a_run_calibrates_and_remembers, calibrated)

TEST_GROUP(needs_fp8, NULL);
