// The CPU backend is what GPUs are judged by, so its own sums have to be good: the loss, its
// gradient and the long row sums of a step against the same in fp64, at a real vocabulary.
#include "base/rng.h"
#include "tests/support/shapes.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"

enum { M = 6, D = 64, V = 128256 };
static const double SCALE = 1.0 / M;

// The head of a model on random x [M, D] and W [V, D].
typedef struct Head {
  Backend *be;
  float *x, *W, *sumsq, *s, *logits, *dx;
  int64_t stride; // of logits
  int32_t targets[M];
} Head;

static float *normals(const char *name, int64_t count, double deviation) {
  float *values = held(xmalloc((size_t)count * sizeof *values));
  const uint64_t key = rng_key(5, name);
  for (int64_t i = 0; i < count; i++) values[i] = (float)(deviation * rng_normal(key, (uint64_t)i));
  return values;
}

static Head open_head(void) {
  const Spec c = {SPEC_SHAPE(D, 8, 1, 1, 8, V, M, 1), .rms_norm_eps = 1e-5, .threads = 1};
  Head h = {.be = cpu_backend(c), .stride = padded_vocab(&c)};
  h.x = normals("x", M * D, 1);
  h.W = normals("W", (int64_t)V * D, 0.3);
  h.sumsq = held(xcalloc(M, sizeof *h.sumsq));
  h.s = held(xcalloc(M, sizeof *h.s));
  h.logits = held(xcalloc((size_t)(M * h.stride), sizeof *h.logits));
  h.dx = held(xcalloc(M * D, sizeof *h.dx));
  for (int64_t m = 0; m < M; m++) {
    double sum = 0;
    for (int64_t k = m * D; k < (m + 1) * D; k++) sum += (double)h.x[k] * (double)h.x[k];
    h.sumsq[m] = (float)sum;
    h.targets[m] = (int32_t)(m * 20011);
  }
  return h;
}

// What fp64 makes of a row: z [V] becomes dlogits' of it, dx [D] gets the gradient of its x.
typedef struct Exact {
  double loss, s;
} Exact;

static Exact exact_row(const Head *h, int64_t m, double *z, double *dx) {
  const double r = 1 / sqrt((double)h->sumsq[m] / D + 1e-5);
  double largest = -INFINITY, sum = 0;
  for (int64_t v = 0; v < V; v++) {
    z[v] = 0;
    for (int64_t k = 0; k < D; k++) z[v] += (double)h->W[v * D + k] * (double)h->x[m * D + k];
    z[v] *= r;
    if (z[v] > largest) largest = z[v];
  }
  for (int64_t v = 0; v < V; v++) sum += exp(z[v] - largest);
  Exact e = {.loss = SCALE * (largest + log(sum) - z[h->targets[m]])};
  for (int64_t k = 0; k < D; k++) dx[k] = 0;
  for (int64_t v = 0; v < V; v++) {
    const double p = exp(z[v] - largest) / sum, dz = r * SCALE * (p - (v == h->targets[m]));
    e.s += dz * z[v];
    z[v] = dz;
    for (int64_t k = 0; k < D; k++) dx[k] += dz * (double)h->W[v * D + k];
  }
  for (int64_t k = 0; k < D; k++) dx[k] -= r / D * e.s * (double)h->x[m * D + k];
  return e;
}

static void add_error(double sums[2], double got, double want) {
  sums[0] += (got - want) * (got - want);
  sums[1] += want * want;
}

TEST(a_loss_over_128256_logits_is_as_near_to_fp64_as_its_products) {
  Head h = open_head();
  const Operand x = operand_of((act_t *)h.x), W = operand_of((act_t *)h.W);
  const RowStat sumsq = {(stat_t *)h.sumsq, M, 1};
  HeadGradient g = {.p = operand_of((act_t *)h.logits), .ux = x, .s = {(stat_t *)h.s, M, 1}};
  g.p.row_stride = h.stride;
  h.be->services.step_begin(h.be);
  h.be->head_loss(h.be, M, x, sumsq, W, h.targets, (act_t *)h.logits, SCALE, &g);
  h.be->lm_head_dgrad(h.be, M, &g, W, x, sumsq, operand_of((act_t *)h.dx));
  h.be->services.step_end(h.be);

  double *z = held(xmalloc(V * sizeof *z)), dx[D], loss = 0, of_p[2] = {0}, of_s[2] = {0},
         of_dx[2] = {0};
  for (int64_t m = 0; m < M; m++) {
    const Exact e = exact_row(&h, m, z, dx);
    loss += e.loss;
    add_error(of_s, (double)h.s[m], e.s);
    for (int64_t v = 0; v < V; v++) add_error(of_p, (double)h.logits[m * h.stride + v], z[v]);
    for (int64_t k = 0; k < D; k++) add_error(of_dx, (double)h.dx[m * D + k], dx[k]);
  }
  const double p = sqrt(of_p[0] / of_p[1]), s = sqrt(of_s[0] / of_s[1]),
               d = sqrt(of_dx[0] / of_dx[1]),
               l = fabs(h.be->services.step_result(h.be).loss / loss - 1);
  printf("# from fp64: loss %.1e, dlogits %.1e, s %.1e, dx %.1e\n", l, p, s, d);
  // Observed: 1.5e-8, 7.3e-8, 1.6e-7, 5.1e-7; with sums in fp32 5.2e-6, 3.8e-6, 4.1e-4, 1.1e-4.
  assert_true(l < 1e-7 && p < 1e-6 && s < 1e-6 && d < 1e-6);
}

// ---- Other sums over rows. They are compared with fp64 sums of the same fp32 terms.

TEST(sums_over_a_wide_layer_are_as_near_to_fp64_as_their_terms) {
  enum { WIDE = 65536, NARROW = 8 };
  const Spec c = {SPEC_SHAPE(NARROW, WIDE, 1, 1, 8, 8, 1, 1), .rms_norm_eps = 1e-5, .threads = 1};
  Backend *be = cpu_backend(c);
  float *W = normals("down", (int64_t)NARROW * WIDE, 1), *z = normals("z", 2 * WIDE, 1),
        *dx = normals("dx", NARROW, 1), *dz = held(xcalloc(2 * WIDE, sizeof *dz)), one = NARROW, s;
  const RowStat sumsq = {(stat_t *)&one, 1, 1}; // r = 1
  RowStat to = {(stat_t *)&s, 1, 1};
  be->down_dgrad(be, 1, operand_of((act_t *)dx), operand_of((act_t *)W), (act_t *)z,
                 operand_of(NULL), sumsq, operand_of((act_t *)dz), &to);
  double sum = 0, size = 0;
  for (int64_t i = 0; i < 2 * WIDE; i++) {
    sum += (double)dz[i] * (double)z[i];
    size += fabs((double)dz[i] * (double)z[i]);
  }
  const double error = fabs((double)s - sum) / size;
  printf("# down_dgrad's s, over its terms' sizes: %.1e\n", error);
  assert_true(error < 1e-9); // 7.5e-11 was observed, 2.4e-8 with sums in fp32
}

TEST(a_softmax_over_16384_keys_is_as_near_to_fp64_as_its_terms) {
  enum { T = 16384, d = 8, R = 3 * d, BLOCK = 256 };
  const Spec c = {SPEC_SHAPE(d, 8, 1, 1, d, 8, T, T), .rms_norm_eps = 1e-5, .threads = 1};
  Backend *be = cpu_backend(c);
  float *qkv = normals("qkv", (int64_t)T * R, 0.5), o[d];
  const int32_t last = T - 1;
  double sum = 0; // of p. The GEMM of p and v sums in fp32, so each of its sums has few terms.
  for (int64_t block = 0; block < T / BLOCK; block++) {
    for (int64_t i = 0; i < T; i++)
      for (int64_t k = 0; k < d; k++) qkv[i * R + 2 * d + k] = i / BLOCK == block && i % d == k;
    be->attention_decode(be, &last, 1, (act_t *)qkv, operand_of((act_t *)o));
    for (int64_t k = 0; k < d; k++) sum += (double)o[k];
  }
  const double error = fabs(sum - 1);
  printf("# the sum of p: 1 %+.1e\n", sum - 1);
  assert_true(error < 2e-7); // 3.5e-8 was observed, 8.3e-7 with sums in fp32
}
