// Every operation of the forward and of the backward, of the unfused and of the fused backend, and
// those that multiply or leave FP8 copies, against the CPU backend. Bounds: see ops_rig.h.
#include "kernels/unfused/unfused.h"
#include "tests/gpu/fp8_here.h"
#include "tests/gpu/ops_rig.h"

// ---- Calls. Their tensors are those of the table, in its order.

static void call_embed(Backend *be, const Subject *t, Arg *a) {
  be->embed(be, t->M, a[0].data, a[1].data, a[2].x, &a[3].stat);
}

enum { FIRST = 5 }; // position of qkv's row 0

static void call_qkv(Backend *be, const Subject *t, Arg *a) {
  be->qkv(be, t->M, t->s.T, FIRST, a[0].x, a[2].stat, a[1].x, a[3].data);
}

static void call_residual(Backend *be, const Subject *t, Arg *a) {
  be->down(be, t->M, t->s.F, a[0].x, a[1].x, a[2].data, a[3].stat, a[4].x, &a[5].stat);
}

static void call_gate_up(Backend *be, const Subject *t, Arg *a) {
  be->gate_up(be, t->M, a[0].x, a[2].stat, a[1].x, a[3].data, a[4].x);
}

static void call_decode(Backend *be, const Subject *t, Arg *a) {
  be->attention_decode(be, a[0].data, t->s.T > 3 ? t->s.T - 2 : 1, a[1].data, a[2].x);
}

// The second half of each sequence continues its first quarter.
static void call_branches(Backend *be, const Subject *t, Arg *a) {
  const int32_t T = (int32_t)t->s.T;
  const int64_t count = t->M / T;
  const size_t bytes = (size_t)count * sizeof(Branch);
  Branch *list = xmalloc(bytes), *there = be->services.alloc(be, bytes);
  for (int32_t b = 0; b < (int32_t)count; b++)
    list[b] = (Branch){b * T, T / 4, b * T + T / 2, T - T / 2};
  assert_non_null(there);
  be->services.write(be, there, list, bytes);
  be->attention_branches(be, t->M, count, there, a[0].data, a[1].x);
  be->services.read(be, list, there, bytes); // waits
  be->services.release(be, there);
  free(list);
}

static int64_t padded(int64_t V) {
  return padded_vocab(&(Spec){.V = V});
}

// The losses, and 1 where the target is the likeliest token.
static void call_score_rows(Backend *be, const Subject *t, Arg *a) {
  const size_t M = (size_t)t->M, bytes = M * sizeof(RowScore);
  RowScore *scores = xmalloc(bytes), *there = be->services.alloc(be, bytes);
  act_t *logits = be->services.alloc(be, M * (size_t)padded(t->s.V) * act_bytes(&be->spec));
  float *values = xmalloc(2 * M * sizeof *values);
  assert_true(there && logits);
  be->score_rows(be, t->M, a[0].x, a[2].stat, a[1].x, a[3].data, logits, there);
  be->services.read(be, scores, there, bytes);
  for (size_t m = 0; m < M; m++) {
    values[m] = scores[m].loss;
    values[M + m] = (float)scores[m].likeliest;
  }
  be->services.write(be, a[4].data, values, M * sizeof *values);
  be->services.write(be, a[5].data, values + M, M * sizeof *values);
  be->services.release(be, there);
  be->services.release(be, logits);
  free(scores), free(values);
}

// For generation: the logits of each row, one at a time.
static void call_row_logits(Backend *be, const Subject *t, Arg *a) {
  for (int64_t m = 0; m < t->M; m++)
    be->row_logits(be, operand_from(be, a[0].x, m, t->s.D), row_stat_from(be, a[2].stat, m), a[1].x,
                   act_at(be, a[3].data, m * padded(t->s.V)));
}

// Its loss twice: alone, as a validation has it, and with the gradient.
static void call_head_loss(Backend *be, const Subject *t, Arg *a) {
  HeadGradient g = {.p = a[4].x, .s = a[5].stat};
  g.p.row_stride = padded(t->s.V);
  if (be->spec.folds_softmax) g.u = a[8].data, g.ux = a[9].x;
  for (int trains = 0; trains < 2; trains++) {
    be->services.step_begin(be);
    HeadLossOp *loss_of = trains ? be->head_loss : be->validation_loss;
    loss_of(be, t->M, a[0].x, a[2].stat, a[1].x, a[3].data, a[4].data, 1 / (double)t->M,
            trains ? &g : NULL);
    be->services.step_end(be);
    const float loss = (float)be->services.step_result(be).loss;
    be->services.write(be, a[trains ? 6 : 7].data, &loss, sizeof loss);
  }
  a[5].stat = g.s;
}

static void call_norm_dgrad(Backend *be, const Subject *t, Arg *a) {
  be->gate_up_dgrad(be, t->M, 2 * t->s.F, a[0].x, a[1].x, a[2].x, a[3].stat, a[4].stat, a[5].data,
                    a[5].x);
}

// Apart from z where there is a tensor for dz, else in its place.
static void call_down_dgrad(Backend *be, const Subject *t, Arg *a) {
  be->down_dgrad(be, t->M, a[0].x, a[1].x, a[2].data, operand_of(NULL), a[4].stat,
                 a[6].data ? a[6].x : a[2].x, &a[5].stat);
}

static void call_dgrad(Backend *be, const Subject *t, Arg *a) {
  be->out_dgrad(be, t->M, t->Hd, a[0].x, a[1].x, a[2].data);
}

static void call_rope_backward(Backend *be, const Subject *t, Arg *a) {
  be->rope_backward(be, t->M, t->s.T, a[0].data, a[1].data, a[2].x, a[3].stat,
                    a[5].x.fp8 ? a[5].x : a[0].x, &a[4].stat);
}

static void call_wgrad(Backend *be, const Subject *t, Arg *a) {
  be->qkv_wgrad(be, t->M, t->R, t->s.D, a[0].x, a[1].x, a[2].data, false);
}
static void call_wgrad_added(Backend *be, const Subject *t, Arg *a) {
  be->qkv_wgrad(be, t->M, t->R, t->s.D, a[0].x, a[1].x, a[2].data, true);
}
static void call_wgrad_twice(Backend *be, const Subject *t, Arg *a) {
  call_wgrad(be, t, a);
  call_wgrad_added(be, t, a);
}

static void call_embed_backward(Backend *be, const Subject *t, Arg *a) {
  be->embed_backward(be, t->M, a[0].data, a[1].data, a[2].data, false);
}
static void call_embed_backward_added(Backend *be, const Subject *t, Arg *a) {
  be->embed_backward(be, t->M, a[0].data, a[1].data, a[2].data, true);
}

// ---- Twins, where the GPU rounds more than what is stored

static void qkv_twin(const Subject *t, const Values *v) {
  const int64_t M = t->M, R = t->R;
  float *z = product_rounded(M, R, t->s.D, v->in[0], v->in[1]);
  scale_rows(t, v->in[2], R, z);
  rotate_rows(t, M, t->s.T, FIRST, z);
  round_all(z, M * R);
  memcpy(v->twin[3], z, (size_t)(M * R) * sizeof *z);
  free(z);
}

// Unfused, z is stored before the row scale, and y is of that.
static void gate_up_twin(const Subject *t, const Values *v) {
  const int64_t M = t->M, D = t->s.D, F = t->s.F;
  float *z = v->twin[3];
  if (t->fused) return;
  gemm(GEMM_NT, M, 2 * F, D, v->in[0], v->in[1], 0, v->reference[3]);
  memcpy(z, v->reference[3], (size_t)(M * 2 * F) * sizeof *z);
  round_all(z, M * 2 * F);
  for (int64_t i = 0; i < M * F; i++) {
    const float r = rms_rstd(v->in[2][i / F], D, eps);
    v->twin[4][i / F * F + feature_of_pair(i % F, F)] =
        rounded(swiglu(r * z[2 * i], r * z[2 * i + 1]));
  }
}

static void row_logits_twin(const Subject *t, const Values *v) {
  const int64_t M = t->M, V = t->s.V;
  float *z = product_rounded(M, V, t->s.D, v->in[0], v->in[1]);
  scale_rows(t, v->in[2], V, z);
  round_all(z, M * V);
  memcpy(v->twin[3], z, (size_t)(M * V) * sizeof *z);
  free(z);
}

// The twin's logits are rounded before the row scale. Where the softmax's normaliser is folded,
// dlogits are u times what is stored.
static void head_loss_twin(const Subject *t, const Values *v) {
  const int64_t M = t->M, V = t->s.V, stride = padded(V);
  float *z = product_rounded(M, V, t->s.D, v->in[0], v->in[1]), *logits = floats(M * stride);
  int32_t *targets = xmalloc((size_t)M * sizeof *targets);
  RowStat s = whole(v->twin[5], M);
  scale_rows(t, v->in[2], V, z);
  for (int64_t m = 0; m < M; m++) {
    memcpy(logits + m * stride, z + m * V, (size_t)V * sizeof *z);
    targets[m] = (int32_t)v->in[3][m];
  }
  t->cpu->services.step_begin(t->cpu);
  cpu_loss(t->cpu, M, operand_of(act(v->in[0])), whole(v->in[2], M), targets, act(logits),
           1 / (double)M, &s);
  t->cpu->services.step_end(t->cpu);
  v->twin[6][0] = (float)t->cpu->services.step_result(t->cpu).loss;
  for (int64_t i = 0; i < M * V; i++) {
    v->twin[4][i] = rounded(logits[i / V * stride + i % V]);
    if (t->bf16->spec.folds_softmax) v->got[4][i] *= v->got[8][i / V];
  }
  expect_same("loss alone", v->got[7], v->got[6], 1);
  free(z), free(logits), free(targets);
}

// The likeliest of logits that are rounded may be another one.
static void score_rows_twin(const Subject *t, const Values *v) {
  const int64_t M = t->M, V = t->s.V;
  float *z = product_rounded(M, V, t->s.D, v->in[0], v->in[1]);
  for (int64_t m = 0; m < M; m++) {
    const float *row = z + m * V, r = rms_rstd(v->in[2][m], t->s.D, eps);
    const int64_t target = (int64_t)v->in[3][m];
    int64_t best = 0;
    double sum = 0;
    for (int64_t i = 1; i < V; i++)
      if (row[i] > row[best]) best = i;
    for (int64_t i = 0; i < V; i++) sum += exp((double)r * (double)(row[i] - row[best]));
    v->twin[4][m] = (float)(log(sum) + (double)r * (double)(row[best] - row[target]));
    v->reference[5][m] = v->twin[5][m] = best == target;
  }
  free(z);
}

// Fused kernels have stored z after the row scale, as the CPU has it.
static void scale_z(const Subject *t, float *const *in) {
  if (!t->fused) scale_rows(t, in[4], 2 * t->s.F, in[2]);
}

static void down_dgrad_twin(const Subject *t, const Values *v) {
  const int64_t M = t->M, F = t->s.F;
  float *dy = floats(M * F), *z = copy_of(v->in[2], M * 2 * F), *s = v->twin[5],
        *dz = v->twin[6] ? v->twin[6] : v->twin[2];
  gemm(GEMM_NN, M, F, t->s.D, v->in[0], v->in[1], 0, dy);
  if (!t->fused) scale_rows(t, v->in[4], 2 * F, z);
  memset(s, 0, (size_t)M * sizeof *s);
  for (int64_t i = 0; i < M * F; i++) {
    const int64_t m = i / F;
    const float r = rms_rstd(v->in[4][m], t->s.D, eps);
    float dgate, dup;
    swiglu_backward(z[2 * i], z[2 * i + 1], rounded(dy[m * F + feature_of_pair(i % F, F)]), &dgate,
                    &dup);
    dz[2 * i] = rounded(r * dgate);
    dz[2 * i + 1] = rounded(r * dup);
    s[m] += dz[2 * i] * z[2 * i] + dz[2 * i + 1] * z[2 * i + 1];
  }
  free(dy), free(z);
}

// ---- FP8. Of kernels that no operation of ops.h is alone, the formula of what they leave.

static void call_requantize(Backend *be, const Subject *t, Arg *a) {
  be->requantize(be, t->M, t->s.D, a[0].x);
  be->requantize(be, t->M, t->s.D, a[1].x);
}

// r / q of a row of x with scaled_rows, whose sum of squares this is.
static float factor_at(const Subject *t, float sumsq, int64_t m) {
  return rms_rstd(sumsq, t->s.D, eps) / row_scale_at(m);
}
static RowScale scale_of(Backend *be, Arg *x, Arg *sumsq) {
  return row_scale_of(cuda_of(be), x->x, sumsq->stat);
}
static Scaling *delayed(Backend *be) {
  return cuda_of(be)->scalings + DELAYED;
}

// z [M, 2F] in e4m3, as FP8 keeps it, of values in bf16, or the other way round.
static float kept_z(float value) {
  return Z_DIVISOR * fp8_round(FP8_E4M3, value / Z_DIVISOR);
}
static act_t *z_keep(Backend *be, const Subject *t, const act_t *values) {
  const int64_t cols = 2 * t->s.F, count = t->M * cols;
  float *z = floats(count);
  act_t *kept = be->services.alloc(be, (size_t)count);
  assert_non_null(kept);
  be->services.read_act(be, z, values, count);
  uint8_t *bytes = z_bytes(t->M, cols, z);
  be->services.write(be, kept, bytes, (size_t)count);
  free(z), free(bytes);
  return kept;
}
static void z_release(Backend *be, const Subject *t, act_t *kept, act_t *values) {
  const int64_t cols = 2 * t->s.F, count = t->M * cols;
  uint8_t *bytes = bytes_of(be, kept, count);
  float *z = z_values(t->M, cols, bytes);
  if (values) act_write(be, values, z, count);
  be->services.release(be, kept);
  free(z), free(bytes);
}

static void call_swiglu(Backend *be, const Subject *t, Arg *a) {
  act_t *z = z_keep(be, t, a[4].data);
  launch_swiglu_fp8(t->M, t->s.F, scale_of(be, &a[0], &a[1]), a[2].data, z, a[3].x, delayed(be),
                    cuda_of(be)->gpu.stream);
  z_release(be, t, z, a[4].data);
}
static void swiglu_formula(const Subject *t, const Values *v) {
  const int64_t F = t->s.F;
  const float *z = v->in[2];
  for (int64_t i = 0; i < t->M * F; i++) {
    const int64_t m = i / F;
    const float r = factor_at(t, v->in[1][m], m);
    v->reference[3][m * F + feature_of_pair(i % F, F)] = swiglu(r * z[2 * i], r * z[2 * i + 1]);
    for (int64_t k = 2 * i; k < 2 * i + 2; k++) v->reference[4][k] = r * z[k];
  }
}
static void swiglu_twin(const Subject *t, const Values *v) {
  for (int64_t i = 0; i < t->M * 2 * t->s.F; i++) v->twin[4][i] = kept_z(v->reference[4][i]);
}

static void call_swiglu_backward(Backend *be, const Subject *t, Arg *a) {
  act_t *z = z_keep(be, t, a[2].data);
  launch_swiglu_backward_fp8(t->M, t->s.F, scale_of(be, &a[0], &a[1]), z, a[3].data, a[4].x,
                             delayed(be), &a[5].stat, cuda_of(be)->gpu.stream);
  z_release(be, t, z, NULL);
}
static void swiglu_backward_formula(const Subject *t, const Values *v) {
  const int64_t F = t->s.F;
  const float *z = v->in[2], *dy = v->in[3];
  float *dz = v->reference[4];
  for (int64_t i = 0; i < t->M * F; i++) {
    const int64_t m = i / F;
    const float r = factor_at(t, v->in[1][m], m), gate = kept_z(z[2 * i]),
                up = kept_z(z[2 * i + 1]);
    swiglu_backward(gate, up, r * dy[m * F + feature_of_pair(i % F, F)], &dz[2 * i],
                    &dz[2 * i + 1]);
    v->reference[5][m] += dz[2 * i] * gate + dz[2 * i + 1] * up;
  }
}

static void call_norm_backward(Backend *be, const Subject *t, Arg *a) {
  launch_norm_backward_fp8(t->M, row_scale(cuda_of(be), a[1].stat), a[0].x, a[2].stat, a[3].data,
                           a[4].data, a[5].x, delayed(be), cuda_of(be)->gpu.stream);
}
static void norm_backward_formula(const Subject *t, const Values *v) {
  const int64_t D = t->s.D;
  for (int64_t i = 0; i < t->M * D; i++) {
    const int64_t m = i / D;
    const double q = (double)row_scale_at(m), r = (double)rms_rstd(v->in[1][m], D, eps);
    v->reference[5][i] = (float)(q * (double)v->in[4][i] -
                                 r / (double)D * q * (double)v->in[2][m] * (double)v->in[0][i] +
                                 (double)v->in[3][i]);
  }
}

// ---- Generation

enum { TOKENS_ASKED = 3 }; // positions, one after the other

// The last positions of a cache, by qkv_token and attention_decode: o [TOKENS_ASKED, H d], and the
// cache. The third is replayed where the backend has graphs.
static void write_tokens(const Subject *t, const float *x, const float *sumsq, const float *W,
                         const float *cache, float **o, float **cache_after) {
  const int64_t D = t->s.D, R = t->R, Hd = t->Hd, positions = t->s.T + TOKENS_ASKED;
  Bench b = {.be = t->writer};
  const Services *services = &b.be->services;
  void *x_gpu = act_buffer(&b, D, NULL), *W_gpu = act_buffer(&b, R * D, W);
  act_t *cache_gpu = act_buffer(&b, positions * R, cache), *o_gpu = act_buffer(&b, Hd, NULL);
  int32_t *position_gpu = int32_buffer(&b, 1, NULL);
  RowStat sumsq_gpu = stat_in(&b, 1, 1, sumsq);
  bench_reset(&b);
  *o = floats(TOKENS_ASKED * Hd);
  for (int32_t i = 0; i < TOKENS_ASKED; i++) {
    const int32_t position = (int32_t)t->s.T + i;
    act_write(b.be, x_gpu, x + i * D, D);
    services->write(b.be, sumsq_gpu.data, &sumsq[i], sizeof *sumsq);
    services->write(b.be, position_gpu, &position, sizeof position);
    if (services->replay_begin(b.be, REPLAY_TOKEN)) {
      b.be->qkv_token(b.be, position_gpu, operand_of(x_gpu), sumsq_gpu, operand_of(W_gpu),
                      cache_gpu);
      b.be->attention_decode(b.be, position_gpu, 1, cache_gpu, operand_of(o_gpu));
      services->replay_end(b.be, REPLAY_TOKEN);
    }
    services->read_act(b.be, *o + i * Hd, o_gpu, Hd);
  }
  *cache_after = bench_read(&b, cache_gpu);
  bench_free(&b);
}

static void token(const Subject *t) {
  const int64_t D = t->s.D, R = t->R, Hd = t->Hd, T = t->s.T, positions = T + TOKENS_ASKED;
  float *x = random_bf16(TOKENS_ASKED * D, 1, "x"), *W = weight(R, D, "W");
  float *sumsq = row_squares(x, TOKENS_ASKED, D), *cache = random_bf16(positions * R, 1, "cache");
  float *o, *after, *again, *after_again, *row = floats(R), *expected = floats(TOKENS_ASKED * Hd);
  write_tokens(t, x, sumsq, W, cache, &o, &after);
  write_tokens(t, x, sumsq, W, cache, &again, &after_again);
  expect_same("o, twice", again, o, TOKENS_ASKED * Hd);
  expect_same("the cache, twice", after_again, after, positions * R);
  expect_same("the cache before", after, cache, T * R);
  for (int64_t i = 0; i < TOKENS_ASKED; i++) {
    const int32_t position = (int32_t)(T + i);
    t->cpu->qkv(t->cpu, 1, 1, position, operand_of(act(x + i * D)), whole(sumsq + i, 1),
                operand_of(act(W)), act(row));
    float *twin = product_rounded(1, R, D, x + i * D, W);
    for (int64_t c = 0; c < R; c++) twin[c] *= rms_rstd(sumsq[i], D, eps);
    rotate_rows(t, 1, 1, position, twin);
    round_all(twin, R);
    expect_near(label(t, "qkv_token"), after + position * R, twin, row, R, 1e-6);
    t->cpu->attention_decode(t->cpu, &position, 1, act(after), operand_of(act(expected + i * Hd)));
    free(twin);
  }
  float *o_twin = copy_of(expected, TOKENS_ASKED * Hd);
  round_all(o_twin, TOKENS_ASKED * Hd);
  expect_near(label(t, "attention_decode of a token"), o, o_twin, expected, TOKENS_ASKED * Hd,
              1e-6);
  free(x), free(W), free(sumsq), free(cache), free(o), free(after), free(again);
  free(after_again), free(row), free(expected), free(o_twin);
}

// ---- A weight gradient in parts

static void in_parts(Backend *be, int64_t M, int64_t N, int64_t K, int64_t rows, act_t *dz,
                     act_t *x, stat_t *sum, grad_t *dW) {
  for (int64_t m = 0; m < M; m += rows)
    be->lm_head_wgrad(be, m + rows < M ? rows : M - m, N, K, operand_of(act_at(be, dz, m * N)),
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
  gemm(GEMM_TN, N, K, M, dz, x, 0, reference);
  act_t *dz_gpu = act_buffer(&b, M * N, dz), *x_gpu = act_buffer(&b, M * K, x);
  grad_t *whole_gpu = grad_buffer(&b, N * K, NULL), *parts_gpu = grad_buffer(&b, N * K, NULL);
  stat_t *sum_gpu = fp32_buffer(&b, N * K, NULL);
  RUN_TWICE(&b,
            (be->qkv_wgrad(be, M, N, K, operand_of(dz_gpu), operand_of(x_gpu), whole_gpu, false),
             in_parts(be, M, N, K, rows, dz_gpu, x_gpu, sum_gpu, parts_gpu)));
  float *in_one = bench_read(&b, whole_gpu), *summed = bench_read(&b, parts_gpu);
  const double one = deviation(in_one, reference, N * K).l2,
               parts = deviation(summed, reference, N * K).l2;
  printf("# %-34s L2 %.2e in one, %.2e in parts\n", label(t, "wgrad"), one, parts);
  if (!(parts <= 1.1 * one + 1e-6)) fail_msg("parts of a weight gradient cost accuracy");
  free(dz), free(x), free(reference), free(in_one), free(summed);
  bench_free(&b);
}

// ---- FP8: single casts

// One orientation alone, as generation has it; and a NaN, which lowers the scale.
static void cast_partly(const Subject *t) {
  const int64_t M = t->M, N = t->s.D;
  Backend *be = t->bf16;
  Bench b = {.be = be};
  float *x = random_bf16(M * N, 2, "x");
  x[M * N - 1] = NAN;
  Operand out = copies_new(&b, M, N, DELAYED);
  out.by_col = NULL;
  out.data = act_buffer(&b, M * N, x);
  scalings_reset(be);
  RUN_TWICE(&b, be->requantize(be, M, N, out));
  uint8_t *by_row = bytes_of(be, out.by_row, M * N);
  for (int64_t i = 0; i < M * N; i++)
    assert_int_equal(by_row[i / N * N + fp8_column_place(i % N)],
                     fp8_bits(FP8_E4M3, scales[DELAYED] * x[i]));
  ScalingState states[SCALINGS];
  scalings_step(be);
  be->services.scalings_read(be, states);
  assert_true(states[DELAYED].history[0] == 16 * 448 / scales[DELAYED]);
  assert_true(states[DELAYED].scale == scales[DELAYED] / 16);
  free(x), free(by_row);
  bench_free(&b);
}

// To the host's bits: with values of the least sizes, of both signs, beyond the scale, and a NaN.
static void cast_dlogits(const Subject *t) {
  const int64_t M = t->M, N = t->s.V;
  const double grad_scale = 1.0 / 64;
  const float scale = fp8_dlogits_scale(FP8_E4M3, grad_scale);
  Bench b = {.be = t->bf16};
  float *P = random_bf16(M * N, 2, "P"), *u = random_bf16(M, 3, "u");
  for (int64_t i = 0; i < M * N; i++) P[i] = ldexpf(P[i], -(int)(i * 7 % 29));
  P[M * N - 1] = NAN;
  Operand out = copies_new(&b, M, N, FIXED);
  void *P_gpu = act_buffer(&b, M * N, P), *u_gpu = fp32_buffer(&b, M, u);
  scalings_reset(b.be);
  RUN_TWICE(&b, cuda_cast_dlogits(cuda_of(b.be), M, out, P_gpu, u_gpu, grad_scale));
  uint8_t *by_row = bytes_of(b.be, out.by_row, M * N),
          *by_col = bytes_of(b.be, out.by_col, N * out.stride);
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
  bench_free(&b);
}

// ---- FP8: scales

// A tensor whose largest value this is, cast to copies.
static void cast_largest(const Subject *t, Operand to, float largest) {
  const int64_t M = t->M, N = t->s.D;
  float *values = floats(M * N);
  values[M * N / 2] = -largest;
  act_write(t->bf16, to.data, values, M * N);
  t->bf16->requantize(t->bf16, M, N, to);
  free(values);
}
static Operand cast_memory(Bench *b, const Subject *t) {
  Operand out = copies_new(b, t->M, t->s.D, DELAYED);
  out.data = act_buffer(b, t->M * t->s.D, NULL);
  return out;
}

// head_loss alone sets it.
static float fixed_scale(Backend *be) {
  ScalingState states[SCALINGS];
  be->services.scalings_read(be, states);
  return states[FIXED].scale;
}

static void expect_scaling(Backend *be, float scale, float newest) {
  ScalingState states[SCALINGS];
  be->services.scalings_read(be, states);
  assert_true(states[DELAYED].scale == scale);
  assert_true(states[DELAYED].history[0] == newest);
}

static void expect_step(Backend *be, int saturated, float scale, float newest) {
  const StepState state = scalings_step(be);
  assert_int_equal(state.saturated, saturated);
  if (saturated) assert_int_equal(state.saturated_first, DELAYED);
  expect_scaling(be, scale, newest);
}

// The scale follows from the largest value of 16 steps; what it does not reach is told of.
static void scales_follow(const Subject *t) {
  Backend *be = t->bf16;
  Bench b = {.be = be};
  const Operand out = cast_memory(&b, t);
  const float fixed = fixed_scale(be);
  scalings_reset(be);
  cast_largest(t, out, 2); // by 128: 256
  expect_step(be, 0, 128, 2);
  cast_largest(t, out, 100); // by 128: beyond
  expect_step(be, 1, 4, 100);
  for (int step = 1; step <= SCALE_HISTORY; step++) {
    cast_largest(t, out, 3);
    expect_step(be, 0, step < SCALE_HISTORY ? 4 : 128, 3);
  }
  expect_step(be, 0, 128, 3); // of a step without copies
  cast_largest(t, out, 200);
  be->services.scalings_discard(be);
  expect_step(be, 0, 128, 3);
  assert_true(fixed_scale(be) == fixed);
  bench_free(&b);
}

// While a run calibrates the copies have the scale of their own largest value, kept through a
// checkpoint.
static void calibrated(const Subject *t) {
  const int64_t M = t->M, N = t->s.D, middle = M * N / 2;
  Backend *be = t->bf16;
  Bench b = {.be = be};
  const Operand out = cast_memory(&b, t);
  ScalingState states[SCALINGS] = {{0}};
  const float fixed = fixed_scale(be);
  be->services.scalings_write(be, states);
  assert_true(fixed_scale(be) == fixed);
  expect_scaling(be, 0, 0);
  be->calibrating = true;
  cast_largest(t, out, 100);
  be->calibrating = false;
  uint8_t *by_row = bytes_of(be, out.by_row, M * N);
  assert_int_equal(by_row[middle / N * N + fp8_column_place(middle % N)], fp8_bits(FP8_E4M3, -400));
  expect_scaling(be, 4, 0);
  scalings_step(be);
  expect_scaling(be, 4, 100);
  be->services.scalings_read(be, states);
  t->fp32->services.scalings_write(t->fp32, states);
  expect_scaling(t->fp32, 4, 100);
  free(by_row);
  bench_free(&b);
}

// ---- The table

#define T(NAME, SHAPE, USE, ...)                                                                   \
  { .name = NAME, .shape = SHAPE, .use = USE, __VA_ARGS__ }
#define READS(SCALING) .copies = COPIES_READ, .scaling = SCALING
#define LEAVES(SCALING) .copies = COPIES_WRITTEN, .scaling = SCALING
#define STREAM .copies = UNUSED_COPIES, .scaled_rows = true // rows of a residual stream

static const Case cases[] = {
    {"embed_gathers_rows_and_their_sums_of_squares", "embed", .call = call_embed,
     .tensors = {T("tokens", "M1", TOKENS), T("E", "VD", IN), T("x", "MD", OUT, .exact = true),
                 T("sumsq", "M1", STORED_SQUARES, .of = 2)}},
    {"qkv_is_scaled_and_rotated", "qkv", .call = call_qkv, .adjust = qkv_twin, .one_row = true,
     .tensors = {T("x", "MD", IN), T("W", "RD", WEIGHT), T("sumsq", "M1", SQUARES, .of = 0),
                 T("qkv", "MR", OUT)}},
    {"residual_adds_and_takes_the_sum_of_squares_as_stored", "residual", .call = call_residual,
     .one_row = true,
     .tensors = {T("a", "MF", IN), T("W", "DF", WEIGHT), T("x", "MD", IN),
                 T("x_sumsq", "M1", SQUARES, .of = 2), T("out", "MD", OUT),
                 T("sumsq", "M1", STORED_SQUARES, .of = 4)}},
    {"gate_up_multiplies_in_natural_order", "gate_up", .call = call_gate_up, .adjust = gate_up_twin,
     .one_row = true,
     .tensors = {T("x", "MD", IN), T("W", "ZD", WEIGHT), T("sumsq", "M1", SQUARES, .of = 0),
                 T("z", "MZ", OUT), T("y", "MF", OUT)}},
    {"attention_decode_matches_the_reference", "attention_decode", .call = call_decode,
     .tensors = {T("position", "11", POSITION), T("cache", "TR", IN), T("o", "QH", OUT)}},
    // Logits up to about 12, each rounded by up to 3e-2. A twin of one number may be lucky.
    {"head_loss_leaves_loss_gradient_and_row_sums", "head_loss", .call = call_head_loss,
     .adjust = head_loss_twin,
     .tensors = {T("x", "MD", IN, .scale = 2), T("W", "VD", WEIGHT, .scale = 3),
                 T("sumsq", "M1", SQUARES, .of = 0), T("targets", "M1", TOKENS),
                 T("dlogits", "MV", LOGITS), T("s", "M1", ROW_SUMS, .floor = 1e-5),
                 T("loss", "11", FLOATS, .floor = 1e-4), T("loss alone", "11", SCRATCH_FLOATS),
                 T("u", "M1", SCRATCH_FLOATS), T("ux", "MD", SCRATCH)}},
    {"branches_see_their_prefix_and_themselves", "attention_branches", .call = call_branches,
     .tensors = {T("qkv", "MR", IN), T("o", "MH", INOUT)}},
    {"scores_are_losses_and_whether_the_target_is_likeliest", "score_rows", .call = call_score_rows,
     .adjust = score_rows_twin,
     .tensors = {T("x", "MD", IN), T("W", "VD", WEIGHT), T("sumsq", "M1", SQUARES, .of = 0),
                 T("targets", "M1", TOKENS), T("loss", "M1", FLOATS),
                 T("likeliest", "M1", FLOATS)}},
    {"row_logits_are_scaled", "row_logits", .call = call_row_logits, .adjust = row_logits_twin,
     .one_row = true,
     .tensors = {T("x", "MD", IN, .scale = 2), T("W", "VD", WEIGHT, .scale = 3),
                 T("sumsq", "M1", SQUARES, .of = 0), T("logits", "MV", LOGITS)}},
    {"norm_dgrad_subtracts_the_norm_term", "norm_dgrad", .call = call_norm_dgrad,
     .tensors = {T("dz", "MZ", IN), T("W", "ZD", WEIGHT), T("x", "MD", IN),
                 T("sumsq", "M1", SQUARES, .of = 2), T("s", "M1", SUMS, .scale = 3),
                 T("dx", "MD", INOUT)}},
    {"down_dgrad_matches_in_place", "down_dgrad", .call = call_down_dgrad,
     .adjust = down_dgrad_twin, .cpu_inputs = scale_z,
     .tensors = {T("dx", "MD", IN), T("W", "DF", WEIGHT), T("z", "MZ", INOUT, .scale = 2),
                 T("x", "MD", IN), T("sumsq", "M1", SQUARES, .of = 3),
                 T("s", "M1", ROW_SUMS, .floor = 1e-5)}},
    {"down_dgrad_matches_apart", "down_dgrad", .call = call_down_dgrad, .adjust = down_dgrad_twin,
     .cpu_inputs = scale_z,
     .tensors = {T("dx", "MD", IN), T("W", "DF", WEIGHT), T("z", "MZ", IN, .scale = 2),
                 T("x", "MD", IN), T("sumsq", "M1", SQUARES, .of = 3),
                 T("s", "M1", ROW_SUMS, .floor = 1e-5), T("dz", "MZ", OUT)}},
    {"dgrad_matches_the_reference", "dgrad", .call = call_dgrad,
     .tensors = {T("dy", "MD", IN), T("W", "DH", WEIGHT), T("da", "MH", OUT)}},
    {"rope_backward_rotates_back", "rope_backward", .call = call_rope_backward,
     .tensors = {T("dqkv", "MR", INOUT), T("qkv", "MR", IN), T("x", "MD", IN),
                 T("sumsq", "M1", SQUARES, .of = 2), T("s", "M1", ROW_SUMS, .floor = 1e-5)}},
    {"weight_gradients_in_bf16_and_fp32", "wgrad", .call = call_wgrad, .with_fp32_gradients = true,
     .tensors = {T("dz", "MR", IN), T("x", "MD", IN), T("dW", "RD", GRAD, .floor = 2e-6)}},
    {"weight_gradients_in_bf16_and_fp32_added", "wgrad, added", .call = call_wgrad_added,
     .with_fp32_gradients = true,
     .tensors = {T("dz", "MR", IN), T("x", "MD", IN), T("dW", "RD", GRAD_ADDED, .floor = 2e-6)}},
    {"embed_backward_sums_in_a_fixed_order", "embed_backward", .call = call_embed_backward,
     .with_fp32_gradients = true,
     .tensors = {T("tokens", "M1", TOKEN_RUNS), T("dx", "MD", IN), T("dE", "VD", GRAD)}},
    {"embed_backward_adds_in_a_fixed_order", "embed_backward, added",
     .call = call_embed_backward_added, .with_fp32_gradients = true,
     .tensors = {T("tokens", "M1", TOKEN_RUNS), T("dx", "MD", IN), T("dE", "VD", GRAD_ADDED)}},
    // FP8. 1e-3 is for fast sums: 1e-3 was observed.
    {"a_cast_leaves_both_copies", "requantize", .call = call_requantize, .fp8 = true,
     .tensors = {T("x", "MD", IN, .scale = 2, LEAVES(DELAYED)),
                 T("rows", "MD", IN, .scale = 2, LEAVES(FIXED), .scaled_rows = true)}},
    {"embed_scales_rows_by_their_own_rms", "embed", .call = call_embed, .fp8 = true,
     .tensors = {T("tokens", "M1", TOKENS), T("E", "VD", IN, .scale = 3),
                 T("x", "MD", OUT, .exact = true, LEAVES(FIXED), .scaled_by = 3),
                 T("sumsq", "M1", STORED_SQUARES, .of = 2)}},
    {"residual_multiplies_copies_and_leaves_some", "residual", .call = call_residual, .fp8 = true,
     .tensors = {T("a", "MF", IN, .scale = 0.5, READS(DELAYED)),
                 T("W", "DF", WEIGHT, READS(WEIGHTS)), T("x", "MD", IN),
                 T("x_sumsq", "M1", SQUARES, .of = 2),
                 T("out", "MD", OUT, .floor = 1e-3, LEAVES(FIXED), .scaled_by = 3),
                 T("sumsq", "M1", STORED_SQUARES, .of = 4, .floor = 1e-5)}},
    {"dgrad_multiplies_copies", "dgrad", .call = call_dgrad, .fp8 = true,
     .tensors = {T("dy", "MD", IN, .scale = 0.5, READS(DELAYED)),
                 T("W", "DH", WEIGHT, READS(WEIGHTS)), T("da", "MH", OUT, .floor = 1e-3)}},
    {"weight_gradients_of_copies_add_up_in_bf16_and_fp32", "wgrad, twice", .call = call_wgrad_twice,
     .with_fp32_gradients = true, .fp8 = true,
     .tensors = {T("dz", "MR", IN, .scale = 0.5, READS(DELAYED)),
                 T("x", "MD", IN, .scale = 0.5, READS(DELAYED)),
                 T("dW", "RD", GRAD, .floor = 1e-3)}},
    {"row_logits_read_fp8_weights", "row_logits", .call = call_row_logits,
     .adjust = row_logits_twin, .fp8 = true,
     .tensors = {T("x", "MD", IN, .scale = 2), T("W", "VD", WEIGHT, READS(WEIGHTS)),
                 T("sumsq", "M1", SQUARES, .of = 0), T("logits", "MV", LOGITS)}},
    {"rope_backward_leaves_copies", "rope_backward", .call = call_rope_backward, .fp8 = true,
     .tensors = {T("dqkv", "MR", IN), T("qkv", "MR", IN), T("x", "MD", IN, STREAM),
                 T("sumsq", "M1", SQUARES, .of = 2), T("s", "M1", ROW_SUMS, .floor = 1e-5),
                 T("out", "MR", COPIED, .of = 0, .floor = 1e-6, LEAVES(DELAYED))}},
    {"swiglu_leaves_copies_and_z", "swiglu", .call = call_swiglu, .formula = swiglu_formula,
     .adjust = swiglu_twin, .fp8 = true,
     .tensors = {T("x", "MD", IN, STREAM), T("sumsq", "M1", SQUARES, .of = 0),
                 T("product", "MZ", IN, .scale = 2),
                 T("y", "MF", COPIED, .floor = 1e-6, LEAVES(DELAYED)), T("z", "MZ", OUT)}},
    {"swiglu_backward_leaves_copies", "swiglu_backward", .call = call_swiglu_backward,
     .formula = swiglu_backward_formula, .fp8 = true,
     .tensors = {T("x", "MD", IN, STREAM), T("sumsq", "M1", SQUARES, .of = 0),
                 T("z", "MZ", IN, .scale = 2), T("dy", "MF", IN),
                 T("dz", "MZ", COPIED, .floor = 1e-6, LEAVES(DELAYED)),
                 T("s", "M1", ROW_SUMS, .floor = 1e-5)}},
    {"norm_backward_leaves_copies", "norm_backward", .call = call_norm_backward,
     .formula = norm_backward_formula, .fp8 = true,
     .tensors = {T("x", "MD", IN, STREAM), T("sumsq", "M1", SQUARES, .of = 0),
                 T("s", "M1", SUMS, .scale = 3), T("residual", "MD", IN), T("product", "MD", IN),
                 T("dx", "MD", OUT, LEAVES(DELAYED))}},
    // Others
    {"a_token_is_read_and_replayed_at_its_position", .run = token},
    {"a_weight_gradient_in_parts_is_rounded_once", .run = wgrad_parts},
    {"a_cast_leaves_one_copy_and_counts_nan", .run = cast_partly, .fp8 = true},
    {"dlogits_are_rounded_as_the_host_does", .run = cast_dlogits, .fp8 = true},
    {"scales_follow_from_sixteen_steps", .run = scales_follow, .fp8 = true},
    {"a_run_calibrates_and_remembers", .run = calibrated, .fp8 = true},
};
enum { CASES = sizeof cases / sizeof *cases };

// ---- Running

// A case and the shapes that it runs over.
typedef struct Task {
  const Case *c;
  const Subjects *all;
} Task;

// A backend that only writes has kernels of its own for one row.
static void check_one_row(const Case *c, const Subject *t) {
  Subject one = *t;
  one.s.name = "one row";
  one.M = one.s.B = one.s.T = 1;
  one.fused = false;
  check_case(c, &one, t->writer);
}

static void run_task(void **state) {
  const Task *task = *state;
  const Case *c = task->c;
  for (int i = 0; i < task->all->count; i++) {
    const Subject *t = &task->all->list[i];
    if (c->run)
      c->run(t);
    else
      check_case(c, t, t->bf16);
    if (c->with_fp32_gradients) check_case(c, t, t->fp32);
    if (c->one_row) check_one_row(c, t);
  }
}

static int run_group(const char *name, const KernelMode *mode, bool fp8) {
  Task tasks[CASES];
  struct CMUnitTest tests[CASES];
  size_t count = 0;
  Subjects *all = subjects_open(mode, fp8);
  for (int i = 0; i < CASES; i++) {
    if (cases[i].fp8 != fp8) continue;
    tasks[count] = (Task){&cases[i], all};
    tests[count] = (struct CMUnitTest){cases[i].name, run_task, NULL, NULL, &tasks[count]};
    count++;
  }
  const int failed = _cmocka_run_group_tests(name, tests, count, NULL, NULL);
  subjects_close(all);
  return failed;
}

int main(void) {
  int failed = 0;
  cmocka_set_test_filter(getenv("TEST_FILTER"));
  for (int i = 0; i < KERNEL_MODES; i++)
    failed += run_group(kernel_modes[i].name, &kernel_modes[i], false);
  if (fp8_here())
    failed += run_group("fp8", &kernel_modes[0], true);
  else
    printf("ok - fp8 # SKIP this GPU, or this build for it, has no FP8\n");
  return failed;
}
