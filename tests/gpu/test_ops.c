// Every operation of the forward, and the loss with its gradient, of the unfused and of the fused
// backend against the CPU backend. Bounds: see ops_rig.h.
#include "tests/gpu/ops_rig.h"

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
  RUN_TWICE(&b, b.be->embed(b.be, M, tokens_gpu, E_gpu, operand_of(x_gpu), &sumsq_gpu));
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
  t->cpu->qkv(t->cpu, M, T, first, operand_of(act(x)), whole(sumsq, M), operand_of(act(W)),
              act(reference));
  for (int64_t m = 0; m < M; m++) {
    const float r = rms_rstd(sumsq[m], D, eps);
    for (int64_t c = 0; c < R; c++) twin[m * R + c] *= r;
    for (int64_t c = 0; c < (t->s.H + t->s.KV) * t->s.d; c += 2) {
      const double angle = (double)(first + m % T) * inv_freq(&t->s, c % t->s.d / 2);
      rope_rotate(&twin[m * R + c], &twin[m * R + c + 1], (float)cos(angle), (float)sin(angle));
    }
  }
  round_all(twin, M * R);
  void *x_gpu = bf16_buffer(&b, M * D, x), *W_gpu = bf16_buffer(&b, R * D, W),
       *qkv_gpu = bf16_buffer(&b, M * R, NULL);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, sumsq);
  RUN_TWICE(&b,
            b.be->qkv(b.be, M, T, first, operand_of(x_gpu), sumsq_gpu, operand_of(W_gpu), qkv_gpu));
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
  t->cpu->residual(t->cpu, M, K, operand_of(act(a)), operand_of(act(W)), act(x),
                   (RowStat){.data = NULL}, operand_of(act(reference)), &none);
  memcpy(twin, reference, (size_t)(M * D) * sizeof *twin);
  round_all(twin, M * D);
  void *a_gpu = bf16_buffer(&b, M * K, a), *W_gpu = bf16_buffer(&b, D * K, W),
       *x_gpu = bf16_buffer(&b, M * D, x), *out_gpu = bf16_buffer(&b, M * D, NULL);
  RowStat sumsq_gpu = stat_out(&b, b.be->most_parts.sumsq);
  b.be->operation = OP_DOWN;
  RUN_TWICE(&b, b.be->residual(b.be, M, K, operand_of(a_gpu), operand_of(W_gpu), x_gpu,
                               (RowStat){.data = NULL}, operand_of(out_gpu), &sumsq_gpu));
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
static void gate_up(const Subject *t) {
  const int64_t M = t->M, D = t->s.D, F = t->s.F;
  Bench b = {.be = t->bf16};
  float *x = random_bf16(M * D, 1, "x"), *W = weight(2 * F, D, "W"), *sumsq = row_squares(x, M, D);
  float *z = floats(M * 2 * F), *reference = floats(M * F), *twin = floats(M * F),
        *z_twin = product_rounded(M, 2 * F, D, x, W);
  t->cpu->gate_up(t->cpu, M, operand_of(act(x)), whole(sumsq, M), operand_of(act(W)), act(z),
                  operand_of(act(reference)));
  swiglu_twin(t, z_twin, sumsq, twin);
  void *x_gpu = bf16_buffer(&b, M * D, x), *W_gpu = bf16_buffer(&b, 2 * F * D, W),
       *z_gpu = bf16_buffer(&b, M * 2 * F, NULL), *y_gpu = bf16_buffer(&b, M * F, NULL);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, sumsq);
  RUN_TWICE(&b, b.be->gate_up(b.be, M, operand_of(x_gpu), sumsq_gpu, operand_of(W_gpu), z_gpu,
                              operand_of(y_gpu)));
  float *got_z = bench_read(&b, z_gpu), *got = bench_read(&b, y_gpu);
  if (t->fused) { // z is rounded once, after the row scale
    gemm(GEMM_NT, M, 2 * F, D, x, W, 0, z_twin);
    scale_rows(t, sumsq, 2 * F, z_twin);
    round_all(z_twin, M * 2 * F);
    swiglu_twin(t, z_twin, NULL, twin); // y is of z as stored
  } else {
    gemm(GEMM_NT, M, 2 * F, D, x, W, 0, z); // z is stored before the row scale
  }
  expect_near(label(t, "gate_up z"), got_z, z_twin, z, M * 2 * F, 1e-6);
  expect_near(label(t, "gate_up y"), got, twin, reference, M * F, 1e-6);
  free(x), free(W), free(sumsq), free(z), free(reference), free(twin), free(z_twin);
  free(got_z), free(got);
  bench_free(&b);
}

static void decode(const Subject *t) {
  const int64_t T = t->s.T, R = t->R, Hd = t->Hd, rows = T > 3 ? T - 2 : 1;
  const int32_t first = (int32_t)(T - rows);
  Bench b = {.be = t->bf16};
  float *packed = random_bf16(T * R, 1, "qkv"), *reference = floats(rows * Hd),
        *twin = floats(rows * Hd);
  t->cpu->attention_decode(t->cpu, &first, rows, act(packed), operand_of(act(reference)));
  memcpy(twin, reference, (size_t)(rows * Hd) * sizeof *twin);
  round_all(twin, rows * Hd);
  void *qkv_gpu = bf16_buffer(&b, T * R, packed), *o_gpu = bf16_buffer(&b, rows * Hd, NULL);
  const int32_t *first_gpu = int32_buffer(&b, 1, &first);
  RUN_TWICE(&b, b.be->attention_decode(b.be, first_gpu, rows, qkv_gpu, operand_of(o_gpu)));
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
  gemm(GEMM_NT, M, V, D, h.x, h.W, 0, h.logits);
  scale_rows(t, h.sumsq, V, h.logits);
  return h;
}
static int64_t padded(int64_t V) {
  return padded_vocab(&(OpsConfig){.V = V});
}
// Without the padding of rows, in fresh memory.
static float *read_logits(Bench *b, const void *logits, int64_t M, int64_t V) {
  float *all = bench_read(b, logits);
  for (int64_t m = 1; m < M; m++)
    memmove(all + m * V, all + m * padded(V), (size_t)V * sizeof *all);
  return all;
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
  const int64_t stride = padded(V);
  void *x_gpu = bf16_buffer(&b, M * D, h.x), *W_gpu = bf16_buffer(&b, V * D, h.W),
       *targets_gpu = int32_buffer(&b, M, h.targets),
       *logits_gpu = bf16_buffer(&b, M * stride, NULL);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, h.sumsq);
  HeadGradient g = {.p = operand_of(logits_gpu), .s = stat_out(&b, b.be->most_parts.s)};
  g.p.row_stride = stride;
  if (b.be->folds_softmax) {
    g.ux.data = bf16_buffer(&b, M * D, NULL);
    g.u = fp32_buffer(&b, M, NULL);
  }
  RUN_TWICE(&b, (b.be->services.step_begin(b.be),
                 b.be->head_loss(b.be, M, operand_of(x_gpu), sumsq_gpu, operand_of(W_gpu),
                                 targets_gpu, logits_gpu, scale, &g),
                 b.be->services.step_end(b.be)));
  float *got = read_logits(&b, logits_gpu, M, V), *got_s = stat_read(&b, g.s, M);
  if (g.u) {
    float *u = bench_read(&b, g.u);
    for (int64_t i = 0; i < M * V; i++) got[i] *= u[i / V];
    free(u);
  }
  b.be->services.step_result(b.be); // of the first of the two
  const float got_loss = (float)b.be->services.step_result(b.be).loss, loss_reference = (float)loss,
              twin_loss = (float)loss_twin;
  // A twin of one number may be lucky; logits of up to 12 are rounded by up to 3e-2 each.
  expect_near(label(t, "loss"), &got_loss, &twin_loss, &loss_reference, 1, 1e-4);
  expect_near(label(t, "dlogits"), got, twin, reference, M * V, 1e-6);
  expect_near(label(t, "loss s"), got_s, s_twin, s, M, 1e-5);

  // Evaluation: the loss alone, the same one.
  b.be->services.step_begin(b.be);
  b.be->head_loss(b.be, M, operand_of(x_gpu), sumsq_gpu, operand_of(W_gpu), targets_gpu, logits_gpu,
                  scale, NULL);
  b.be->services.step_end(b.be);
  const float evaluated = (float)b.be->services.step_result(b.be).loss;
  expect_same("loss of an evaluation", &evaluated, &got_loss, 1);
  free(reference), free(twin), free(s), free(s_twin), free(got), free(got_s);
  head_free(&h);
  bench_free(&b);
}

// For generation: the logits of each row, one at a time.
static void row_logits_of(Bench *b, const Subject *t, act_t *x, RowStat sumsq, act_t *W,
                          act_t *logits) {
  for (int64_t m = 0; m < t->M; m++)
    b->be->row_logits(b->be, operand_from(b->be, operand_of(x), m, t->s.D),
                      row_stat_from(b->be, sumsq, m), operand_of(W),
                      act_at(b->be, logits, m * padded(t->s.V)));
}

static void row_logits(const Subject *t) {
  const int64_t M = t->M, D = t->s.D, V = t->s.V;
  Bench b = {.be = t->bf16};
  Head h = head_new(t);
  float *twin = floats(M * V);
  for (int64_t m = 0; m < M; m++) {
    const float r = rms_rstd(h.sumsq[m], D, eps);
    for (int64_t v = 0; v < V; v++) twin[m * V + v] = rounded(r * h.z[m * V + v]);
  }
  void *x_gpu = bf16_buffer(&b, M * D, h.x), *W_gpu = bf16_buffer(&b, V * D, h.W),
       *logits_gpu = bf16_buffer(&b, M * padded(V), NULL);
  const RowStat sumsq_gpu = stat_in(&b, b.be->most_parts.sumsq, M, h.sumsq);
  RUN_TWICE(&b, row_logits_of(&b, t, x_gpu, sumsq_gpu, W_gpu, logits_gpu));
  float *got = read_logits(&b, logits_gpu, M, V);
  expect_near(label(t, "logits"), got, twin, h.logits, M * V, 1e-6);
  free(got), free(twin);
  head_free(&h);
  bench_free(&b);
}

// ---- Generation: a backend that only writes has kernels of its own for one row

static void one_row(const Subject *t) {
  Subject one = *t;
  one.bf16 = t->writer;
  one.M = one.s.B = one.s.T = 1;
  one.fused = false;
  qkv(&one);
  residual(&one);
  gate_up(&one);
  row_logits(&one);
}

enum { TOKENS = 3 }; // positions that are asked for, one after the other

// The last positions of a cache, by qkv_token and attention_decode: o [TOKENS, H d], and the cache.
// The third is replayed where the backend has graphs.
static void write_tokens(const Subject *t, const float *x, const float *sumsq, const float *W,
                         const float *cache, float **o, float **cache_after) {
  const int64_t D = t->s.D, R = t->R, Hd = t->Hd, positions = t->s.T + TOKENS;
  Bench b = {.be = t->writer};
  void *x_gpu = bf16_buffer(&b, D, NULL), *W_gpu = bf16_buffer(&b, R * D, W);
  act_t *cache_gpu = bf16_buffer(&b, positions * R, cache), *o_gpu = bf16_buffer(&b, Hd, NULL);
  int32_t *position_gpu = int32_buffer(&b, 1, NULL);
  RowStat sumsq_gpu = stat_in(&b, 1, 1, sumsq);
  bench_reset(&b);
  *o = floats(TOKENS * Hd);
  for (int32_t i = 0; i < TOKENS; i++) {
    const int32_t position = (int32_t)t->s.T + i;
    uint16_t *row = xmalloc((size_t)D * sizeof *row);
    for (int64_t k = 0; k < D; k++) row[k] = to_bf16(x[i * D + k]);
    b.be->services.write(b.be, x_gpu, row, (size_t)D * sizeof *row);
    b.be->services.write(b.be, sumsq_gpu.data, &sumsq[i], sizeof *sumsq);
    b.be->services.write(b.be, position_gpu, &position, sizeof position);
    if (b.be->services.replay_begin(b.be, REPLAY_TOKEN)) {
      b.be->qkv_token(b.be, position_gpu, operand_of(x_gpu), sumsq_gpu, operand_of(W_gpu),
                      cache_gpu);
      b.be->attention_decode(b.be, position_gpu, 1, cache_gpu, operand_of(o_gpu));
      b.be->services.replay_end(b.be, REPLAY_TOKEN);
    }
    b.be->services.read_act(b.be, *o + i * Hd, o_gpu, Hd);
    free(row);
  }
  *cache_after = bench_read(&b, cache_gpu);
  bench_free(&b);
}

static void token(const Subject *t) {
  const int64_t D = t->s.D, R = t->R, Hd = t->Hd, T = t->s.T, positions = T + TOKENS;
  float *x = random_bf16(TOKENS * D, 1, "x"), *W = weight(R, D, "W");
  float *sumsq = row_squares(x, TOKENS, D), *cache = random_bf16(positions * R, 1, "cache");
  float *o, *after, *again, *after_again, *row = floats(R), *twin = floats(R);
  float *expected = floats(TOKENS * Hd), *o_twin = floats(TOKENS * Hd);
  write_tokens(t, x, sumsq, W, cache, &o, &after);
  write_tokens(t, x, sumsq, W, cache, &again, &after_again);
  expect_same("o, twice", again, o, TOKENS * Hd);
  expect_same("the cache, twice", after_again, after, positions * R);
  expect_same("the cache before", after, cache, T * R);
  for (int64_t i = 0; i < TOKENS; i++) {
    const RowStat of_row = whole(sumsq + i, 1);
    t->cpu->qkv(t->cpu, 1, 1, T + i, operand_of(act(x + i * D)), of_row, operand_of(act(W)),
                act(row));
    float *z = product_rounded(1, R, D, x + i * D, W);
    memset(twin, 0, (size_t)R * sizeof *twin);
    for (int64_t c = 0; c < R; c++) twin[c] = z[c] * rms_rstd(sumsq[i], D, eps);
    for (int64_t c = 0; c < (t->s.H + t->s.KV) * t->s.d; c += 2) {
      const double angle = (double)(T + i) * inv_freq(&t->s, c % t->s.d / 2);
      rope_rotate(&twin[c], &twin[c + 1], (float)cos(angle), (float)sin(angle));
    }
    round_all(twin, R);
    expect_near(label(t, "qkv_token"), after + (T + i) * R, twin, row, R, 1e-6);
    const int32_t position = (int32_t)(T + i);
    t->cpu->attention_decode(t->cpu, &position, 1, act(after), operand_of(act(expected + i * Hd)));
    free(z);
  }
  memcpy(o_twin, expected, (size_t)(TOKENS * Hd) * sizeof *o_twin);
  round_all(o_twin, TOKENS * Hd);
  expect_near(label(t, "attention_decode of a token"), o, o_twin, expected, TOKENS * Hd, 1e-6);
  free(x), free(W), free(sumsq), free(cache), free(o), free(after), free(again);
  free(after_again), free(row), free(twin), free(expected), free(o_twin);
}

OVER_ALL_SHAPES(embed, embed(t))
OVER_ALL_SHAPES(one_row, one_row(t))
OVER_ALL_SHAPES(token, token(t))
OVER_ALL_SHAPES(qkv, qkv(t))
OVER_ALL_SHAPES(residual, residual(t))
OVER_ALL_SHAPES(gate_up, gate_up(t))
OVER_ALL_SHAPES(decode, decode(t))
OVER_ALL_SHAPES(head_loss, head_loss(t))
OVER_ALL_SHAPES(row_logits, row_logits(t))

int main(void) {
  const struct CMUnitTest tests[] = {
      {"embed_gathers_rows_and_their_sums_of_squares", test_embed, NULL, NULL, NULL},
      {"qkv_is_scaled_and_rotated", test_qkv, NULL, NULL, NULL},
      {"residual_adds_and_takes_the_sum_of_squares_as_stored", test_residual, NULL, NULL, NULL},
      {"gate_up_multiplies_in_natural_order", test_gate_up, NULL, NULL, NULL},
      {"attention_decode_matches_the_reference", test_decode, NULL, NULL, NULL},
      {"head_loss_leaves_loss_gradient_and_row_sums", test_head_loss, NULL, NULL, NULL},
      {"row_logits_are_scaled", test_row_logits, NULL, NULL, NULL},
      {"one_row_walks_over_the_weights", test_one_row, NULL, NULL, NULL},
      {"a_token_is_read_and_replayed_at_its_position", test_token, NULL, NULL, NULL},
  };
  return run_over_backends(tests, sizeof tests / sizeof *tests);
}
