// A training step in FP8 on the CPU backend, the reference: its gradients against fp32's, its
// scales, and that nothing else depends on how a step is cut.
#include "kernels/math.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"

enum { TRAINED = 40 }; // steps in fp32 before gradients are compared

// ---- Gradients

static void check_gradients(const char *what, SmallShape shape, double error, double ratio) {
  SmallModel *exact = small_open((SmallShape){.tied = shape.tied}), *fp8 = small_open(shape);
  small_train(exact, 0, TRAINED);
  small_copy(exact, fp8);
  small_gradients(exact, TRAINED, 1);
  small_gradients(fp8, TRAINED, 1);
  const Difference d = small_compare(fp8, exact);
  printf("# %s: largest error %.2f %%, bound %.2f; norm ratio %.4f, bound %.4f from 1\n", what,
         100 * d.error, 100 * error, d.ratio, ratio);
  assert_true(d.error <= error && fabs(d.ratio - 1) <= ratio);
}

TEST(gradients_are_near_those_of_fp32) {
  // Most of it is the rounding of weights, which is the same for all tokens, and the noise that
  // dlogits are rounded with, which these few tokens do not average out.
  check_gradients("FP8", (SmallShape){.fp8 = true}, 0.15, 0.07);
  check_gradients("FP8, tied", (SmallShape){.fp8 = true, .tied = true}, 0.15, 0.05);
}

// ---- The arithmetic, exactly: what an operation made of its operands' copies

// c [M, N] = a b^T / (their scales), a [M, K] and b [N, K] with rows of these strides.
static double *product(const SmallModel *s, int64_t M, int64_t N, int64_t K, Operand a,
                       const fp8_t *a_copy, int64_t a_stride, Operand b, const fp8_t *b_copy,
                       int64_t b_stride) {
  ScalingState *scales = small_scalings(s);
  const double inverse = 1 / (double)scales[a.scaling].scale / (double)scales[b.scaling].scale;
  const float *A = (const float *)a_copy, *B = (const float *)b_copy;
  double *c = held(xmalloc((size_t)(M * N) * sizeof *c));
  for (int64_t m = 0; m < M; m++)
    for (int64_t n = 0; n < N; n++) {
      double sum = 0;
      for (int64_t k = 0; k < K; k++)
        sum += (double)A[m * a_stride + k] * (double)B[n * b_stride + k];
      c[m * N + n] = inverse * sum;
    }
  return c;
}

static void check_exact(const char *what, const void *got_, double *want, int64_t count,
                        double bound) {
  const float *got = got_;
  double diff2 = 0, want2 = 0;
  for (int64_t i = 0; i < count; i++) {
    diff2 += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    want2 += want[i] * want[i];
  }
  const double error = sqrt(diff2 / want2);
  printf("# %s: relative error %.1e, bound %.0e\n", what, error, bound);
  assert_true(error <= bound);
}

// Values [rows, cols] and the copies by column that were made of them.
static void check_by_col(const SmallModel *s, const float *values, Operand x, int64_t rows,
                         int64_t cols) {
  ScalingState *scales = small_scalings(s);
  const float *copy = (const float *)x.by_col, *q = (const float *)x.row_scale;
  for (int64_t m = 0; m < rows; m++)
    for (int64_t k = 0; k < cols; k++) {
      const float value = scales[x.scaling].scale * (q ? q[m] : 1) * values[m * cols + k];
      assert_true(copy[k * x.stride + m] == fp8_round(s->kinds[x.scaling].format, value));
    }
}

static float rstd(const float *row, int64_t D) {
  double sum = 0;
  for (int64_t k = 0; k < D; k++) sum += (double)row[k] * (double)row[k];
  return (float)(1 / sqrt(sum / (double)D + 1e-5));
}

// z of a layer before it is rounded, from the copies that it is a product of.
static double *exact_z(const SmallModel *s, int64_t layer) {
  const Spec *n = &s->llama.spec;
  const LayerActs *a = &s->llama.acts.layers[layer];
  const int64_t M = batch_rows(n), D = n->D;
  const float *x1 = (const float *)a->x1.data, *q = (const float *)a->x1.row_scale;
  const float scale = small_scalings(s)[a->x1.scaling].scale;
  const Operand W = s->llama.layers[layer].gate_up->folded;
  float *copies = held(xmalloc((size_t)(M * D) * sizeof *copies));
  for (int64_t i = 0; i < M * D; i++) copies[i] = fp8_round(FP8_E4M3, scale * q[i / D] * x1[i]);
  double *z = product(s, M, 2 * n->F, D, a->x1, (fp8_t *)copies, D, W, W.by_row, D);
  for (int64_t i = 0; i < M * 2 * n->F; i++) {
    const int64_t m = i / (2 * n->F);
    z[i] *= (double)rstd(x1 + m * D, D) / (double)q[m];
  }
  return z;
}

// got is e4m3's number nearest to `value`, but for the last bits of fp32.
static void check_nearest(double got, double value) {
  const double size = fmax(fabs(value), 0x1p-6), half = ldexp(1, (int)floor(log2(size)) - 4);
  assert_true(fp8_round(FP8_E4M3, (float)got) == (float)got);
  assert_true(fabs(got - value) <= half + 1e-5 * size);
}

TEST(z_is_kept_in_e4m3_and_y_is_of_it_before) {
  SmallModel *s = small_open((SmallShape){.fp8 = true});
  small_train(s, 0, 3);
  small_gradients(s, 3, 1);
  const int64_t F = s->llama.spec.F, M = batch_rows(&s->llama.spec);
  const LayerActs *a = &s->llama.acts.layers[0];
  const float *kept = (const float *)a->z, *y = (const float *)a->y.by_col,
              scale = small_scalings(s)[a->y.scaling].scale;
  const double *z = exact_z(s, 0);
  for (int64_t i = 0; i < M * F; i++) {
    const int64_t m = i / F, feature = feature_of_pair(i % F, F);
    const double gate = z[2 * i], up = z[2 * i + 1];
    check_nearest((double)kept[2 * i] / Z_DIVISOR, gate / Z_DIVISOR);
    check_nearest((double)kept[2 * i + 1] / Z_DIVISOR, up / Z_DIVISOR);
    check_nearest((double)y[feature * a->y.stride + m],
                  (double)scale * gate * up / (1 + exp(-gate)));
  }
}

TEST(copies_are_scaled_values) {
  SmallModel *s = small_open((SmallShape){.fp8 = true});
  small_train(s, 0, 3);
  small_gradients(s, 3, 1);
  const Spec *n = &s->llama.spec;
  const int64_t M = batch_rows(n);
  const LayerActs *a = &s->llama.acts.layers[0];
  const float *x = (const float *)a->x.data, *x1 = (const float *)a->x1.data;
  for (int64_t m = 0; m < M; m++) {
    const float r = rstd(x + m * n->D, n->D);
    assert_true(((const float *)a->x.row_scale)[m] == power_of_two_below(r)); // the embedding's own
    assert_true(((const float *)a->x1.row_scale)[m] == power_of_two_below(r));
  }
  check_by_col(s, x, a->x, M, n->D);
  check_by_col(s, x1, a->x1, M, n->D);
  check_by_col(s, (const float *)a->o.data, a->o, M, query_width(n));
  check_by_col(s, (const float *)a->dx1.data, a->dx1, M, n->D);
}

static void check_apart(Operand read, Operand written) {
  assert_non_null(read.by_row);
  assert_ptr_not_equal(read.by_row, written.by_row);
}

// On a GPU an operation still reads rows of one tile while it stores another.
TEST(no_operation_writes_copies_where_it_reads) {
  SmallModel *s = small_open((SmallShape){.fp8 = true});
  for (int64_t l = 0; l < s->llama.spec.L; l++) {
    const LayerActs *a = &s->llama.acts.layers[l];
    check_apart(a->o, a->x1);
    check_apart(a->x1, a->y);
    check_apart(a->y, a[1].x);
    check_apart(a[1].dx, a->dz);
    check_apart(a->dz, a->dx1);
    check_apart(a->dqkv_prime, a->dx);
  }
  check_apart(s->llama.acts.dlogits, s->llama.acts.layers[s->llama.spec.L].dx);
}

// What is still there when a backward ends: that of layer 0's attention.
TEST(products_are_those_of_the_copies) {
  SmallModel *s = small_open((SmallShape){.fp8 = true});
  small_train(s, 0, 3);
  small_gradients(s, 3, 1);
  const Spec *n = &s->llama.spec;
  const int64_t M = batch_rows(n);
  const Acts *acts = &s->llama.acts;
  const LayerActs *a = &acts->layers[0];
  const ParamTensor *out = s->llama.layers[0].out, *qkv = s->llama.layers[0].qkv;
  const Operand dqkv = a->dqkv_prime, dx1 = a->dx1;
  // dW' = dz''^T (q x)
  check_exact("out's weight gradient", out->grad,
              product(s, n->D, query_width(n), M, dx1, dx1.by_col, dx1.stride, a->o, a->o.by_col,
                      a->o.stride),
              n->D * query_width(n), 1e-5);
  check_exact("qkv's weight gradient", qkv->grad_folded,
              product(s, packed_width(n), n->D, M, dqkv, dqkv.by_col, dqkv.stride, a->x,
                      a->x.by_col, a->x.stride),
              packed_width(n) * n->D, 1e-5);
  // dx = dx1 + q (dz'' W') - (r / D) q s x
  double *dx = product(s, M, n->D, packed_width(n), dqkv, dqkv.by_row, packed_width(n), qkv->folded,
                       qkv->folded.by_col, qkv->folded.stride);
  const float *x = (const float *)a->x.data, *sums = (const float *)acts->s.data,
              *q = (const float *)a->x.row_scale, *residual = (const float *)dx1.data;
  for (int64_t m = 0; m < M; m++) {
    const double factor = (double)rstd(x + m * n->D, n->D) / (double)n->D * (double)sums[m];
    for (int64_t k = m * n->D; k < (m + 1) * n->D; k++)
      dx[k] = (double)residual[k] + (double)q[m] * (dx[k] - factor * (double)x[k]);
  }
  check_exact("qkv's dgrad", a->dx.data, dx, M * n->D, 1e-5);
}

// ---- How a step is cut

TEST(recomputing_gives_the_same_bits) {
  SmallModel *kept = small_open((SmallShape){.fp8 = true});
  small_train(kept, 0, 4);
  for (Recompute r = RECOMPUTE_MLP; r <= RECOMPUTE_LAYER; r++) {
    for (int64_t layers = 1; layers <= kept->llama.config.num_hidden_layers; layers++) {
      SmallModel *again =
          small_open((SmallShape){.fp8 = true, .recompute = r, .recompute_layers = layers});
      small_train(again, 0, 4);
      assert_true(small_equal(kept, again));
    }
  }
}

// With the same scales rows do not know which batch they are in. Only the order of sums changes,
// and with it now and then how a value is rounded to FP8; and in the head the noise that a row's
// dlogits are rounded with.
TEST(pieces_add_up) {
  const struct {
    SmallShape shape;
    double bound;
  } cases[] = {{{.fp8 = true, .micro_batches = 2}, 5e-2}, // observed: 3.4e-2
               {{.fp8 = true, .loss_chunks = 4}, 8e-2},
               {{.fp8 = true, .micro_batches = 4, .loss_chunks = 2}, 8e-2}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    SmallModel *whole = small_open((SmallShape){.fp8 = cases[i].shape.fp8}),
               *pieces = small_open(cases[i].shape);
    small_train(whole, 0, 5);
    small_copy(whole, pieces);
    small_gradients(whole, 5, 1);
    small_gradients(pieces, 5, 1);
    const Difference d = small_compare(pieces, whole);
    printf("# pieces %d: error %.1e, norm ratio %.6f; bound %.0e\n", (int)i, d.error, d.ratio,
           cases[i].bound);
    assert_true(d.error <= cases[i].bound);
  }
}

// The scale of final dx, for one, is found chunk by chunk. A chunk's 16 rows have the same noise in
// all chunks, which is most of the difference; a wrong scale gave 29 %.
TEST(the_first_step_may_be_cut_too) {
  SmallModel *trained = small_open((SmallShape){0}), *whole = small_open((SmallShape){.fp8 = true}),
             *chunks = small_open((SmallShape){.fp8 = true, .loss_chunks = 32});
  small_train(trained, 0, TRAINED);
  small_copy(trained, whole);
  small_copy(trained, chunks);
  for (uint64_t batch = 0; batch < 4; batch++) {
    small_gradients(whole, batch, 1);
    small_gradients(chunks, batch, 1);
    const Difference d = small_compare(chunks, whole);
    printf("# calibrating in chunks: error %.1e, bound 0.2\n", d.error);
    assert_true(d.error <= 0.2);
    whole->be->services.scalings_discard(whole->be);
    chunks->be->services.scalings_discard(chunks->be);
  }
}

// ---- Training

TEST(training_loses_nothing) {
  SECOND_TIER_ONLY();
  SmallModel *exact = small_open((SmallShape){0}), *fp8 = small_open((SmallShape){.fp8 = true});
  small_train(exact, 0, 200);
  small_train(fp8, 0, 200);
  const double a = small_validation_loss(exact, 8), b = small_validation_loss(fp8, 8);
  printf("# validation loss after 200 steps: %.4f in fp32, %.4f in FP8: %+.2f %%, bound 1\n", a, b,
         100 * (b / a - 1));
  assert_true(a < 3 && fabs(b / a - 1) < 0.01); // log(509) = 6.2
}
