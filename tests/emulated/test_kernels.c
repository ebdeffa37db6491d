// Kernels of generation, of scoring and of the loss, as thread blocks on the CPU, against the CPU
// backend. What a kernel must not read is NaN, and what it must not write has to stay. A result in
// bf16 may be off by a rounding, 2^-8 of it, and by what fp32 loses before.
#include "base/bf16.h"
#include "base/rng.h"
#include "kernels/cuda/cuda.h"
#include "kernels/math.h"
#include "tests/support/bf16.h"
#include "tests/support/choosing.h"
#include "tests/support/shapes.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"

enum { UNWRITTEN = 0x7fa5 }; // a NaN that no rounding gives

// Outputs of these tests have no copies.
void cuda_requantize(Backend *be, int64_t M, int64_t cols, Operand x) {
  (void)be, (void)M, (void)cols, (void)x;
  fail();
}

// Values that bf16 has, for a GPU and for the CPU.
typedef struct Values {
  bf16_bits *gpu;
  float *cpu;
} Values;

static Values values_of(int64_t count) {
  return (Values){held(xmalloc((size_t)count * sizeof(bf16_bits))),
                  held(xmalloc((size_t)count * sizeof(float)))};
}
static void set_value(Values v, int64_t i, float value) {
  v.gpu[i] = to_bf16(value);
  v.cpu[i] = from_bf16(v.gpu[i]);
}
static Values normals(const char *name, int64_t count, double deviation) {
  const Values v = values_of(count);
  const uint64_t key = rng_key(3, name);
  for (int64_t i = 0; i < count; i++)
    set_value(v, i, (float)(deviation * rng_normal(key, (uint64_t)i)));
  return v;
}
// What an input must not be read from, and an output before it is written.
static Values poison(int64_t count) {
  const Values v = values_of(count);
  for (int64_t i = 0; i < count; i++) {
    v.gpu[i] = UNWRITTEN;
    v.cpu[i] = NAN;
  }
  return v;
}

static void expect_near(const char *what, const bf16_bits *got, const float *want, int64_t count,
                        float floor) {
  for (int64_t i = 0; i < count; i++) {
    const float is = from_bf16(got[i]), bound = 0x1p-8f * fabsf(want[i]) + floor;
    const bool good = isnan(want[i]) ? got[i] == UNWRITTEN : fabsf(is - want[i]) <= bound;
    if (!good)
      fail_msg("%s: element %lld is %g (%04x), not %g", what, (long long)i, (double)is, got[i],
               (double)want[i]);
  }
}

// ---- Attention

typedef struct Heads {
  int64_t H, KV, d;
} Heads;

// 8, 16 and 32 lanes a key, all and some of them with columns; groups of 1 to 8 heads. The first
// tier has every second.
static const Heads heads[] = {{4, 4, 40}, {2, 2, 8},   {5, 1, 64},  {8, 1, 72},
                              {6, 2, 80}, {8, 2, 128}, {3, 1, 256}, {8, 2, 136}};
enum { HEADS_COUNT = sizeof heads / sizeof *heads, POSITIONS = 160, FENCE = 1 };

static Spec spec_of(Heads h) {
  Spec s = {SPEC_SHAPE(8, 8, h.H, h.KV, h.d, 8, POSITIONS, POSITIONS), .threads = 1};
  for (int64_t j = 0; j < h.d / 2; j++) s.inv_freq[j] = pow(10000, -(double)(2 * j) / (double)h.d);
  return s;
}

static Cuda *cuda_new(Spec s) {
  Cuda *c = held(xcalloc(1, sizeof *c));
  const size_t parts = (size_t)(DECODE_SPLITS * s.H * (s.d + 2));
  c->base.spec = s;
  c->rope = held(xmalloc((size_t)(POSITIONS * s.d) * sizeof *c->rope));
  for (int64_t t = 0; t < POSITIONS; t++) rope_row(t, s.d / 2, s.inv_freq, c->rope + t * s.d);
  c->decode_parts = held(xmalloc(parts * sizeof *c->decode_parts));
  memset(c->decode_parts, 0xff, parts * sizeof *c->decode_parts);
  c->decode_done = held(xcalloc((size_t)s.H, sizeof *c->decode_done));
  return c;
}

// NaN behind the last row of the cache.
static void check_decode(Heads h, int32_t position, int64_t rows) {
  const Spec s = spec_of(h);
  const int64_t R = packed_width(&s), Hd = query_width(&s), keys = position + rows;
  const Values cache = normals("cache", (keys + FENCE) * R, 1), o = poison((rows + 2 * FENCE) * Hd);
  for (int64_t i = keys * R; i < (keys + FENCE) * R; i++) set_value(cache, i, NAN);
  Backend *gpu = &cuda_new(s)->base, *cpu = cpu_backend(s);
  cuda_attention_decode(gpu, &position, rows, (act_t *)cache.gpu,
                        operand_of((act_t *)(o.gpu + FENCE * Hd)));
  cpu->attention_decode(cpu, &position, rows, (act_t *)cache.cpu,
                        operand_of((act_t *)(o.cpu + FENCE * Hd)));
  expect_near(
      held_text("rows %d to %d, %d heads of %d", (int)position, (int)keys, (int)h.H, (int)h.d),
      o.gpu, o.cpu, (rows + 2 * FENCE) * Hd, 2e-6f);
  release_held();
}

// A single row's keys are split over blocks, and of few keys some blocks have none.
TEST(decoding_rows_see_the_cache_up_to_themselves) {
  for (int i = 0; i < HEADS_COUNT; i += first_tier() ? 2 : 1) {
    for (int32_t position = 0; position < POSITIONS; position = position * 5 / 2 + 7)
      check_decode(heads[i], position, 1);
    check_decode(heads[i], 0, 3);
    check_decode(heads[i], 40, 7);
  }
}

// NaN in all rows of qkv that no branch reads.
static void check_branches(Heads h, int count, const Branch *branches) {
  const Spec s = spec_of(h);
  const int64_t R = packed_width(&s), Hd = query_width(&s), M = POSITIONS;
  const Values all = normals("qkv", M * R, 1), qkv = poison(M * R), o = poison(M * Hd);
  for (const Branch *b = branches; b < branches + count; b++)
    for (int64_t m = 0; m < M; m++) {
      const bool own = m >= b->first && m < b->first + b->rows,
                 read = own || (m >= b->prefix && m < b->prefix + b->prefix_rows);
      for (int64_t i = m * R; i < (m + 1) * R && read; i++) set_value(qkv, i, all.cpu[i]);
    }
  Backend *gpu = &cuda_new(s)->base, *cpu = cpu_backend(s);
  cuda_attention_branches(gpu, M, count, branches, (act_t *)qkv.gpu, operand_of((act_t *)o.gpu));
  cpu->attention_branches(cpu, M, count, branches, (act_t *)qkv.cpu, operand_of((act_t *)o.cpu));
  expect_near(held_text("%d branches, %d heads of %d", count, (int)h.H, (int)h.d), o.gpu, o.cpu,
              M * Hd, 2e-6f);
  release_held();
}

// Without a prefix, right behind it, of one row, of none, and of more rows than a block has.
TEST(branches_see_their_prefix_and_themselves) {
  static const Branch list[] = {{3, 0, 3, 9},    {3, 9, 13, 1},   {3, 9, 14, 0}, {3, 9, 15, 19},
                                {40, 37, 77, 5}, {40, 37, 82, 9}, {0, 1, 157, 3}};
  for (int i = 0; i < HEADS_COUNT; i += first_tier() ? 2 : 1) {
    check_branches(heads[i], sizeof list / sizeof *list, list);
    check_branches(heads[i], 1, list + 5);
  }
}

// ---- Products of one row

typedef struct Product {
  int64_t N, K; // rows of W, and what is summed
  Values x, W;  // [K], [N, K], NaN behind both
  float sumsq;  // of x
} Product;

static Product product_of(int64_t N, int64_t K) {
  Product p = {.N = N, .K = K, .x = normals("x", K + 9, 1)};
  p.W = normals("W", (N + FENCE) * K, 1 / sqrt((double)K));
  if (K % 8 != 0) p.x.gpu++, p.x.cpu++; // a later row starts anywhere
  for (int64_t k = K; k < K + 8; k++) set_value(p.x, k, NAN);
  for (int64_t i = N * K; i < (N + FENCE) * K; i++) set_value(p.W, i, NAN);
  for (int64_t k = 0; k < K; k++) p.sumsq += p.x.cpu[k] * p.x.cpu[k];
  return p;
}
static RowStat sumsq_of(Product *p) {
  return (RowStat){(stat_t *)&p->sumsq, 1, 1};
}
static Operand on_gpu(Values v) {
  return operand_of((act_t *)v.gpu);
}
static Operand on_cpu(Values v) {
  return operand_of((act_t *)v.cpu);
}
// A model whose hidden size is K.
static Spec spec_of_product(int64_t K, int64_t F, Heads h, int64_t V) {
  Spec s = spec_of(h);
  s.D = K, s.F = F, s.V = V, s.rms_norm_eps = 1e-5;
  return s;
}
// W, or its e4m3 copy alone, whose values p->W then has.
static Operand weight_of(Cuda *c, Product *p, bool fp8) {
  enum { SCALE = 32 };
  if (!fp8) return on_gpu(p->W);
  uint8_t *by_row = held(xmalloc((size_t)(p->N * p->K)));
  for (int64_t i = 0; i < p->N * p->K; i++) {
    const uint8_t copy = fp8_bits(FP8_E4M3, SCALE * p->W.cpu[i]);
    by_row[i / p->K * p->K + fp8_column_place(i % p->K)] = copy;
    p->W.cpu[i] = fp8_value(FP8_E4M3, copy) / SCALE;
  }
  c->scalings = held(xcalloc(1, sizeof *c->scalings));
  c->scalings->inverse = 1.0f / SCALE;
  return (Operand){.by_row = (fp8_t *)by_row, .fp8 = true};
}
static void expect_product(const char *what, const Product *p, Values out, int64_t count) {
  expect_near(held_text("%s, %lld x %lld", what, (long long)p->N, (long long)p->K), out.gpu,
              out.cpu, count, 5e-6f);
}

static void check_residual(int64_t N, int64_t K) {
  Product p = product_of(N, K);
  const Spec s = spec_of_product(N, K, heads[0], 8);
  const Values before = normals("before", N, 1), out = poison(N + FENCE), again = poison(N + FENCE);
  float sumsq;
  Cuda *c = cuda_new(s);
  Backend *cpu = cpu_backend(s);
  cuda_gemv(c, N, K, (act_t *)p.x.gpu, on_gpu(p.W), (act_t *)before.gpu, (act_t *)out.gpu);
  cuda_gemv(c, N, K, (act_t *)p.x.gpu, on_gpu(p.W), (act_t *)before.gpu, (act_t *)again.gpu);
  cpu->out(cpu, 1, K, on_cpu(p.x), on_cpu(p.W), (act_t *)before.cpu, (RowStat){0}, on_cpu(out),
           &(RowStat){(stat_t *)&sumsq, 1, 1});
  expect_product("residual", &p, out, N + FENCE);
  assert_memory_equal(out.gpu, again.gpu, (size_t)N * sizeof *out.gpu);
  release_held();
}

static void check_logits(int64_t N, int64_t K, bool fp8) {
  Product p = product_of(N, K);
  const Spec s = spec_of_product(K, 8, heads[0], N);
  const Values logits = poison(N + FENCE);
  Cuda *c = cuda_new(s);
  Backend *cpu = cpu_backend(s);
  cuda_row_logits(&c->base, on_gpu(p.x), (RowStat){0}, weight_of(c, &p, fp8), (act_t *)logits.gpu);
  cpu->row_logits(cpu, on_cpu(p.x), sumsq_of(&p), on_cpu(p.W), (act_t *)logits.cpu);
  expect_product("logits", &p, logits, N + FENCE);
  release_held();
}

static void check_gate_up(int64_t F, int64_t K) {
  Product p = product_of(2 * F, K);
  const Spec s = spec_of_product(K, F, heads[0], 8);
  const Values z = poison(2 * F + FENCE), y = poison(F + FENCE);
  Backend *cpu = cpu_backend(s);
  cuda_gate_up_row(cuda_new(s), (act_t *)p.x.gpu, on_gpu(p.W), (act_t *)z.gpu, (act_t *)y.gpu);
  cpu->gate_up(cpu, 1, on_cpu(p.x), sumsq_of(&p), on_cpu(p.W), (act_t *)z.cpu, on_cpu(y));
  expect_product("y", &p, y, F + FENCE);
  for (int64_t i = 0; i < 2 * F; i++) z.cpu[i] /= rms_rstd(p.sumsq, K, 1e-5f);
  expect_product("z", &p, z, 2 * F + FENCE);
  release_held();
}

static void check_qkv(Heads h, int64_t K, int32_t position, bool fp8) {
  const Spec s = spec_of_product(K, 8, h, 8);
  const int64_t R = packed_width(&s), rows = position + 1 + FENCE;
  Product p = product_of(R, K);
  const Values cache = poison(rows * R);
  Cuda *c = cuda_new(s);
  Backend *cpu = cpu_backend(s);
  cuda_qkv_token(&c->base, &position, on_gpu(p.x), (RowStat){0}, weight_of(c, &p, fp8),
                 (act_t *)cache.gpu);
  cpu->qkv_token(cpu, &position, on_cpu(p.x), sumsq_of(&p), on_cpu(p.W), (act_t *)cache.cpu);
  expect_product(held_text("qkv at %d", (int)position), &p, cache, rows * R);
  release_held();
}

// One, two and four warps a pair of rows, and more columns than these hold at once; rows that do
// not fill a pair or a block, and a row too narrow or uneven for accesses of 16 bytes.
TEST(products_of_one_row_end_in_what_surrounds_them) {
  static const int64_t widths[] = {768, 2056, 4096, 8184, 20000, 5, 257, 1030};
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i += first_tier() ? 2 : 1) {
    const int64_t K = widths[i];
    check_residual(13, K);
    check_logits(9 + (int64_t)i, K, false);
    check_gate_up(20, K);
    check_qkv(heads[1], K, 0, false);
    check_qkv(heads[5], K, POSITIONS - 1, false);
  }
}

// As a prompt's rows meet e4m3 weights.
static void check_widened(int64_t N, int64_t K) {
  Product p = product_of(N, K);
  Cuda *c = cuda_new(spec_of_product(K, 8, heads[0], N));
  const Operand W = weight_of(c, &p, true);
  const Values wide = poison((N + FENCE) * K);
  c->widened = (act_t *)wide.gpu;
  assert_ptr_equal(cuda_widened(c, N, K, W).data, wide.gpu);
  for (int64_t i = 0; i < (N + FENCE) * K; i++)
    assert_int_equal(wide.gpu[i], i < N * K ? to_bf16(p.W.cpu[i]) : UNWRITTEN);
  release_held();
}

TEST(e4m3_weights_are_widened_exactly) {
  check_widened(1, 16);
  check_widened(37, 48);
  check_widened(9, 2064);
}

// As generation with e4m3 weights, and a training run in FP8 for its samples, has them: weights
// have no other form.
TEST(products_of_one_row_read_e4m3_weights) {
  static const int64_t widths[] = {48, 2064, 8192, 20000};
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
    check_logits(9 + (int64_t)i, widths[i], true);
    check_qkv(heads[1], widths[i], 3, true);
  }
}

// ---- Choosing a token

static void write_host(Backend *be, void *to, const void *from, size_t bytes) {
  (void)be;
  memcpy(to, from, bytes);
}

static void send_nothing(Backend *be, uint64_t index) {
  (void)be, (void)index;
}

static int32_t take_token(Backend *be, uint64_t index) {
  int32_t *token = &cuda_of(be)->tokens_to_host[index % MAX_RESULTS];
  const int32_t taken = *token;
  *token = -77;
  return taken;
}

TEST(tokens_are_chosen_as_the_cpu_does) {
  static const int64_t sizes[] = {11, 2, 1003, 9000};
  for (int i = 0; i < 4; i += first_tier() ? 2 : 1) {
    Cuda *c = cuda_new((Spec){.V = sizes[i]});
    Backend *be = &c->base;
    be->services.write = write_host;
    be->services.read = write_host;
    be->services.token_send = send_nothing;
    be->services.token_take = take_token;
    c->tokens_to_host = held(xcalloc(MAX_RESULTS, sizeof *c->tokens_to_host));
    be->choose = cuda_choose;
    c->logit_bins = held(xcalloc(LOGIT_BINS + 4, sizeof *c->logit_bins));
    int32_t next;
    check_choosing(be, (act_t *)poison(fp8_padded(sizes[i]) + 16).gpu, held(xmalloc(sizeof(Draw))),
                   &next);
    for (int bin = 0; bin < LOGIT_BINS; bin++) assert_int_equal(c->logit_bins[bin], 0);
  }
}

// ---- Rows of logits

typedef struct Logits {
  Spec spec;
  int64_t M, stride;
  Values z;         // [M, stride] before the row scale, NaN behind V
  float *W, *x;     // [V, M], [M, M] whose product they are
  float *sumsq, *q; // [M]
  int32_t *targets; // [M]
} Logits;

static Logits logits_of(int64_t M, int64_t V, double deviation) {
  const Spec s = {SPEC_SHAPE(M, 8, 1, 1, 8, V, M, 8), .rms_norm_eps = 1e-5, .threads = 1};
  Logits l = {.spec = s, .M = M, .stride = padded_vocab(&s)};
  l.z = normals("logits", M * l.stride, deviation);
  l.W = held(xmalloc((size_t)(V * M) * sizeof *l.W));
  l.x = held(xcalloc((size_t)(M * M), sizeof *l.x));
  l.sumsq = held(xmalloc((size_t)M * sizeof *l.sumsq));
  l.q = held(xmalloc((size_t)M * sizeof *l.q));
  l.targets = held(xmalloc((size_t)M * sizeof *l.targets));
  for (int64_t m = 0; m < M; m++) {
    l.x[m * M + m] = 1;
    l.sumsq[m] = (float)M * (0.3f + 0.1f * (float)m);
    l.q[m] = m % 2 ? 0.5f : 2;
    l.targets[m] = m % 5 == 3 ? -1 : (int32_t)(m * 7919 % V);
    for (int64_t v = V; v < l.stride; v++) set_value(l.z, m * l.stride + v, NAN);
  }
  return l;
}
static Operand operand_x(const Logits *l, bool scaled) {
  Operand x = operand_of((act_t *)l->x);
  if (scaled) x.row_scale = (stat_t *)l->q;
  return x;
}
// Of what z is now.
static Operand weight(const Logits *l) {
  for (int64_t m = 0; m < l->M; m++)
    for (int64_t v = 0; v < l->spec.V; v++)
      l->W[v * l->M + m] = l->targets[m] < 0 ? 0 : l->z.cpu[m * l->stride + v];
  return operand_of((act_t *)l->W);
}
static CrossEntropy args_of(const Logits *l, bool scaled) {
  return (CrossEntropy){.M = l->M,
                        .V = l->spec.V,
                        .stride = l->stride,
                        .logits = (act_t *)l->z.gpu,
                        .targets = l->targets,
                        .r = {{(stat_t *)l->sumsq, l->M, 1}, l->M, 1e-5f, scaled ? l->q : NULL},
                        .multiprocessors = 1};
}

// Targets with the largest logit, alone or with the one before or behind them; every fourth target
// keeps its own.
static void set_ties(const Logits *l) {
  for (int64_t m = 0; m < l->M; m++) {
    const int64_t V = l->spec.V, first = m * l->stride, target = l->targets[m],
                  other = target + m % 3 - 1;
    if (target < 0 || m % 4 == 0) continue;
    float most = l->z.cpu[first];
    for (int64_t v = 1; v < V; v++) most = fmaxf(most, l->z.cpu[first + v]);
    set_value(l->z, first + target, most);
    if (other >= 0 && other < V) set_value(l->z, first + other, most);
  }
}

static void check_scores(int64_t M, int64_t V, double deviation, bool scaled) {
  const Logits l = logits_of(M, V, deviation);
  RowScore *got = held(xmalloc((size_t)M * sizeof *got)),
           *want = held(xmalloc((size_t)M * sizeof *want));
  act_t *scratch = held(xmalloc((size_t)(M * l.stride) * sizeof(float)));
  set_ties(&l);
  for (int64_t m = 0; m < M; m++) {
    got[m] = want[m] = (RowScore){-7, 77};
    for (int64_t v = 0; v < V && l.targets[m] < 0; v++) set_value(l.z, m * l.stride + v, NAN);
  }
  Backend *cpu = cpu_backend(l.spec);
  const CrossEntropy args = args_of(&l, scaled);
  launch_score_rows(&args, got, NULL);
  cpu->score_rows(cpu, M, operand_x(&l, scaled), (RowStat){(stat_t *)l.sumsq, M, 1}, weight(&l),
                  l.targets, scratch, want);
  for (int64_t m = 0; m < M; m++) {
    const float bound = 2e-6f * (1 + (float)deviation + fabsf(want[m].loss));
    if (got[m].likeliest != want[m].likeliest || !(fabsf(got[m].loss - want[m].loss) <= bound))
      fail_msg("V %lld, row %lld, target %d: %.8g %d, not %.8g %d", (long long)V, (long long)m,
               l.targets[m], (double)got[m].loss, got[m].likeliest, (double)want[m].loss,
               want[m].likeliest);
  }
  release_held();
}

TEST(scores_are_losses_and_whether_the_target_is_likeliest) {
  check_scores(3, 1, 1, false);
  check_scores(13, 7, 1, false);
  check_scores(29, 511, 3, true);
  check_scores(29, 513, 30, false);
  check_scores(29, 5003, 3, false);
}

static void check_cross_entropy(int64_t M, int64_t V, double deviation, bool scaled) {
  const Logits l = logits_of(M, V, deviation);
  const RowStat sumsq = {(stat_t *)l.sumsq, M, 1};
  Backend *cpu = cpu_backend(l.spec);
  float *row_loss = held(xmalloc((size_t)M * sizeof *row_loss)),
        *s = held(xmalloc((size_t)M * sizeof *s)), *of_cpu = held(xmalloc((size_t)M * sizeof *s)),
        *dlogits = held(xmalloc((size_t)(M * l.stride) * sizeof *dlogits));
  CrossEntropy args = args_of(&l, scaled);
  args.row_loss = row_loss;
  args.grad_scale = 0.25f;
  StepState state = {.loss = 0};
  HeadGradient g = {.p = operand_of((act_t *)dlogits), .s = {(stat_t *)of_cpu, M, 1}};
  g.p.row_stride = l.stride;
  cpu->services.step_begin(cpu);
  cpu->head_loss(cpu, M, operand_x(&l, scaled), sumsq, weight(&l), l.targets, (act_t *)dlogits,
                 (double)args.grad_scale, &g);
  cpu->services.step_end(cpu);
  const double loss = cpu->services.step_result(cpu).loss;
  for (int with = 0; with < 2; with++) {
    args.s = with ? s : NULL;
    state.loss = 0;
    launch_cross_entropy(&args, NULL);
    launch_add_loss(M, row_loss, (double)args.grad_scale, &state, NULL);
    if (!(fabs(state.loss - loss) <= 1e-6 * loss))
      fail_msg("V %lld: loss %.8g, not %.8g", (long long)V, state.loss, loss);
  }
  expect_near(held_text("dlogits, V %lld", (long long)V), l.z.gpu, dlogits, M * l.stride, 2e-6f);
  for (int64_t m = 0; m < M; m++)
    if (!(fabsf(s[m] - of_cpu[m]) <= 2e-5f))
      fail_msg("V %lld: s of row %lld is %.8g, not %.8g", (long long)V, (long long)m, (double)s[m],
               (double)of_cpu[m]);
  release_held();
}

// The last has too many logits for the registers of a block.
TEST(cross_entropy_leaves_loss_gradient_and_row_sums) {
  check_cross_entropy(13, 7, 1, false);
  check_cross_entropy(29, 511, 3, true);
  check_cross_entropy(5, 5003, 3, false);
  check_cross_entropy(3, 40009, 3, false);
}
