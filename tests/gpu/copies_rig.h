// What the tests of FP8 copies share: shapes, a backend with scalings, copies that an operation
// leaves, and their check.
#pragma once
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/gpu_backends.h"
#include "tests/gpu/row_stats.h"

typedef struct Shape {
  int64_t D, F, H, KV, d, V, B, T;
} Shape;

// Widths and rows that fill neither a strip of 256 columns nor a group of 16 rows, and several
// blocks of each.
static const Shape shapes[] = {
    {272, 528, 3, 1, 48, 1008, 2, 77},
    {16, 16, 1, 1, 16, 16, 1, 1},
    {1040, 1296, 4, 2, 144, 528, 3, 48},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

// Their scalings: 2 moves some values of normal tensors beyond 448.
enum { FIXED, DELAYED, WEIGHT, SCALINGS };
static const float scales[SCALINGS] = {1, 128, 32};
static const float eps = 1e-5f;

typedef struct Subject {
  Shape s;
  int64_t M, R;
  Backend *be;
  Cuda *c;
  Bench b;
} Subject;

static inline bool has_fp8(const Subject *t) {
  return t->c->gpu.major * 10 + t->c->gpu.minor >= 89;
}

static inline Subject open_subject(const Shape *s, bool grads_fp32) {
  static const ScalingKind kinds[SCALINGS] = {[FIXED] = {FP8_E4M3, 1}};
  Subject t = {.s = *s, .M = s->B * s->T, .R = (s->H + 2 * s->KV) * s->d};
  OpsConfig config = {.D = s->D,
                      .F = s->F,
                      .H = s->H,
                      .KV = s->KV,
                      .d = s->d,
                      .V = s->V,
                      .max_tokens = t.M,
                      .max_positions = s->T,
                      .rms_norm_eps = eps,
                      .scalings = kinds,
                      .scaling_count = SCALINGS};
  for (int64_t j = 0; j < s->d / 2; j++) config.inv_freq[j] = 1 / (1 + (double)j);
  const GpuOptions options = {
      .kernels = KERNELS_UNFUSED, .train = true, .grads_fp32 = grads_fp32, .gemm_cache = ""};
  Error err;
  t.be = backend_gpu_create(&config, &options, &err);
  if (!t.be) fail_msg("%s", err.text);
  t.c = cuda_of(t.be);
  t.b.be = t.be;
  ScalingState states[SCALINGS] = {{0}};
  for (int i = 0; i < SCALINGS; i++) states[i].scale = scales[i];
  t.be->services.scalings_write(t.be, states);
  return t;
}

static inline void close_subject(Subject *t) {
  bench_free(&t->b);
  t->be->services.destroy(t->be);
}

// ---- Copies that an operation leaves

// With memory for both, and a group more in the rows of by_col.
static inline Operand copies_out(Subject *t, int64_t M, int64_t N, int scaling) {
  const int64_t stride = fp8_padded(M) + FP8_GROUP;
  return (Operand){.by_row = buffer_new(&t->b, M * N, 1, NULL)->data,
                   .by_col = buffer_new(&t->b, N * stride, 1, NULL)->data,
                   .stride = stride,
                   .scaling = scaling,
                   .fp8 = true};
}

static inline uint8_t *bytes_of(Subject *t, const void *from, int64_t count) {
  uint8_t *bytes = xmalloc((size_t)count);
  t->be->services.read(t->be, bytes, from, (size_t)count);
  return bytes;
}

// As an update begins that is applied; returns what it tells of saturation. No scaling is a
// parameter's.
static inline StepState update_scalings(Subject *t) {
  StepState state = {.applied = 1};
  t->be->services.write(t->be, &t->c->state->applied, &state.applied, sizeof state.applied);
  launch_scalings_update(t->c->scalings, 0, SCALINGS, t->c->state, t->c->gpu.stream);
  t->be->services.read(t->be, &state, t->c->state, sizeof state);
  return state;
}

static inline float largest_of(const float *values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(values[i]));
  return largest;
}

// The values' copies, to bits; with a slack, as near to the values as rounding allows and slack
// times the largest of them more.
static inline void expect_copies(Subject *t, const char *what, Operand x, int64_t M, int64_t N,
                                 const float *values, double slack) {
  const float scale = scales[x.scaling], largest = largest_of(values, M * N);
  uint8_t *by_row = bytes_of(t, x.by_row, M * N), *by_col = bytes_of(t, x.by_col, N * x.stride);
  int64_t others = 0;
  for (int64_t i = 0; i < M * N; i++) {
    const int64_t m = i / N, n = i % N;
    const float v = scale * values[i];
    const uint8_t got = by_row[m * N + fp8_column_place(n)], nearest = fp8_bits(FP8_E4M3, v);
    if (by_col[n * x.stride + fp8_row_place(m)] != got)
      fail_msg("%s: the copies differ at %lld, %lld", what, (long long)m, (long long)n);
    if (got == nearest) continue;
    const double off = fabs((double)fp8_value(FP8_E4M3, got) - (double)v),
                 least = fabs((double)fp8_round(FP8_E4M3, v) - (double)v);
    if (!(off <= least + slack * (double)(scale * largest)))
      fail_msg("%s[%lld, %lld] is %02x for %.9g, not %02x", what, (long long)m, (long long)n, got,
               (double)v, nearest);
    others++;
  }
  for (int64_t n = 0; n < N; n++)
    for (int64_t at = 0; at < x.stride; at++) {
      const int64_t group = at - at % 16, m = group + at % 16 / 2 + at % 2 * 8;
      if (m < M) continue;
      assert_int_equal(by_col[n * x.stride + at], group < M ? 0 : 0xff);
    }
  ScalingState states[SCALINGS];
  update_scalings(t);
  t->be->services.scalings_read(t->be, states);
  const double found = (double)states[x.scaling].history[0];
  printf("# %-24s %lld x %lld: %lld rounded the other way, largest off by %.1e\n", what,
         (long long)M, (long long)N, (long long)others, fabs(found / (double)largest - 1));
  assert_true(fabs(found - (double)largest) <= slack * (double)largest);
  free(by_row), free(by_col);
}

// Powers of two around 1.
static inline float *row_scales(int64_t M) {
  float *q = xmalloc((size_t)M * sizeof *q);
  for (int64_t m = 0; m < M; m++) q[m] = ldexpf(1, (int)(m * 7 % 5) - 2);
  return q;
}

static inline float *times_rows(const float *x, const float *q, int64_t M, int64_t N) {
  float *y = xmalloc((size_t)(M * N) * sizeof *y);
  for (int64_t i = 0; i < M * N; i++) y[i] = x[i] * q[i / N];
  return y;
}

static inline float *squares_of(const float *x, int64_t M, int64_t N) {
  float *sumsq = xcalloc((size_t)M, sizeof *sumsq);
  for (int64_t i = 0; i < M * N; i++) sumsq[i / N] += x[i] * x[i];
  return sumsq;
}

// r / q of the rows of x.
static inline float *row_factors(const Subject *t, const float *sumsq, const float *q) {
  float *f = xmalloc((size_t)t->M * sizeof *f);
  for (int64_t m = 0; m < t->M; m++) f[m] = rms_rstd(sumsq[m], t->s.D, eps) / q[m];
  return f;
}

typedef struct Rows { // of a residual stream
  float *x, *sumsq, *q, *factor;
  Operand on_gpu;
  RowStat sumsq_gpu;
} Rows;

static inline Rows rows_new(Subject *t) {
  Rows r = {.x = random_bf16(t->M * t->s.D, 1, "x"), .q = row_scales(t->M)};
  r.sumsq = squares_of(r.x, t->M, t->s.D);
  r.factor = row_factors(t, r.sumsq, r.q);
  r.on_gpu = copies_out(t, t->M, t->s.D, FIXED);
  r.on_gpu.data = bf16_buffer(&t->b, t->M * t->s.D, r.x);
  r.on_gpu.row_scale = fp32_buffer(&t->b, t->M, r.q);
  r.sumsq_gpu = stat_in(&t->b, 3, t->M, r.sumsq);
  return r;
}
static inline void rows_free(Rows *r) {
  free(r->x), free(r->sumsq), free(r->q), free(r->factor);
}

#define OVER_SHAPES(name, check)                                                                   \
  TEST(name) {                                                                                     \
    for (int i_ = 0; i_ < SHAPES; i_++) {                                                          \
      Subject t = open_subject(&shapes[i_], false);                                                \
      check(&t);                                                                                   \
      close_subject(&t);                                                                           \
    }                                                                                              \
  }
