// Muon on the GPU: momentum, Newton-Schulz' iteration and the step of the weights, by cuBLASLt and
// by programs, beside the definition in double. The twin rounds to bf16 where the GPU stores X, A
// and B.
#include "tests/gpu/params_rig.h"
#include "tests/support/shapes.h"

// Two layers of: a norm weight, qkv folded with it, o, gate_up and down.
enum { A_LAYER = 5, LAYERS = 2, TENSORS = A_LAYER * LAYERS };
enum { NORM, QKV, OUT, GATE_UP, DOWN };

typedef struct Sizes {
  int64_t D, Q, KV, F;
} Sizes;

typedef struct Rig {
  Sizes n;
  MomentType moments;
  Side gpu;
  Start start[TENSORS];
} Rig;

static const AdamW hyper = {
    .learning_rate = 1e-2, .momentum = 0.95, .weight_decay = 0.1, .clip_norm = 1, USUAL_ADAMW};

static void set_shapes(const Sizes *n, ParamTensor *list) {
  for (int l = 0; l < LAYERS; l++) {
    const int64_t Q = n->Q, KV = n->KV, F = n->F, D = n->D;
    const ParamTensor shapes[A_LAYER] = {
        [NORM] = {.rows = 1, .cols = D, .norm = -1, .vector = true},
        [QKV] = {.rows = Q + 2 * KV,
                 .cols = D,
                 .norm = l * A_LAYER,
                 .part_count = 3,
                 .parts = {{0, 1, Q}, {Q, 1, KV}, {Q + KV, 1, KV}}},
        [OUT] = {.rows = D, .cols = Q, .norm = -1, .part_count = 1, .parts = {{0, 1, D}}},
        [GATE_UP] = {.rows = 2 * F,
                     .cols = D,
                     .norm = -1,
                     .part_count = 2,
                     .parts = {{0, 2, F}, {1, 2, F}}},
        [DOWN] = {.rows = D, .cols = F, .norm = -1, .part_count = 1, .parts = {{0, 1, D}}}};
    memcpy(list + l * A_LAYER, shapes, sizeof shapes);
  }
}

// Of layer 1 k has no gradient and no momentum, and v one of rank one. Of layer 0 k has noise.
static void make_special(Rig *r) {
  const int64_t D = r->n.D, KV = r->n.KV, k = r->n.Q * D, v = k + KV * D;
  for (int64_t i = k; i < v; i++) {
    r->start[QKV].grad[i] *= 0x1p-20f;
    r->start[QKV].m[i] *= 0x1p-20f;
  }
  const Start *s = &r->start[A_LAYER + QKV];
  for (int64_t i = 0; i < KV * D; i++) {
    s->grad[k + i] = s->m[k + i] = s->m[v + i] = 0;
    s->grad[v + i] = rounded((float)(i / D % 7 + 1) * (float)(i % D % 5 - 2) * 0x1p-6f);
  }
}

static void rig_open(Rig *r, Sizes n, KernelMode mode, bool grads_fp32, MomentType moments,
                     MasterType masters) {
  const Spec spec = {SPEC_SHAPE(256, 256, 2, 1, 64, 256, 64, 64),
                     .rms_norm_eps = 1e-5f,
                     .moments = moments,
                     .masters = masters,
                     .inv_freq = {1},
                     .kernels = mode.kernels,
                     .mainloop = mode.mainloop,
                     .train = true,
                     .grads_fp32 = grads_fp32};
  *r = (Rig){.n = n, .moments = moments};
  r->gpu.be = gpu_backend(spec);
  set_shapes(&n, r->gpu.list);
  for (int i = 0; i < TENSORS; i++) {
    const int64_t count = elements(&r->gpu.list[i]);
    float *m = named(count, 1e-2, "m", i), *grad = named(count, 0.1, "g", i);
    r->start[i] = (Start){named(count, 0.1, "W", i), m, m, grad, grad};
    for (int64_t j = 0; i % A_LAYER == NORM && j < count; j++) r->start[i].master[j] += 1;
  }
  make_special(r);
  params_new(&r->gpu, TENSORS, -1, r->start, false);
}

static void rig_close(Rig *r) {
  bench_free(&r->gpu.bench);
  for (int i = 0; i < TENSORS; i++)
    free(r->start[i].master), free(r->start[i].m), free(r->start[i].grad);
  r->gpu.be->services.destroy(r->gpu.be);
}

static StepResult step(Rig *r) {
  Backend *be = r->gpu.be;
  be->services.refresh(be, r->gpu.list, TENSORS);
  be->services.set_updates(be, 5);
  be->services.set_hyper(be, &hyper);
  be->services.step_begin(be);
  be->grads_finish(be, r->gpu.list, TENSORS);
  be->muon(be, r->gpu.list, TENSORS);
  be->adamw(be, r->gpu.list, TENSORS);
  be->services.step_end(be);
  return be->services.step_result(be);
}

// ---- The definition

static double stored(double x, bool round) {
  return round ? (double)rounded((float)x) : x;
}

// out [M, N] = alpha A B^T + beta C.   A [M, K], B [N, K]
static void multiply(int64_t M, int64_t N, int64_t K, double alpha, const double *A,
                     const double *B, double beta, const double *C, double *out, bool round) {
#pragma omp parallel for
  for (int64_t i = 0; i < M; i++)
    for (int64_t j = 0; j < N; j++) {
      double sum = 0;
      for (int64_t k = 0; k < K; k++) sum += A[i * K + k] * B[j * K + k];
      out[i * N + j] = stored(alpha * sum + (C ? beta * C[i * N + j] : 0), round);
    }
}

static double *transposed(int64_t rows, int64_t cols, const double *x) {
  double *t = xmalloc((size_t)(rows * cols) * sizeof *t);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) t[j * rows + i] = x[i * cols + j];
  return t;
}

// X [n, m], n <= m
static void orthogonalize(int64_t n, int64_t m, double *X, bool round) {
  const size_t square = (size_t)(n * n) * sizeof(double), all = (size_t)(n * m) * sizeof(double);
  double *A = xmalloc(square), *B = xmalloc(square), *next = xmalloc(all), norm = 0;
  for (int64_t i = 0; i < n * m; i++) norm += X[i] * X[i];
  for (int64_t i = 0; i < n * m; i++) X[i] = stored(X[i] / fmax(sqrt(norm), MUON_EPS), round);
  for (int k = 0; k < MUON_STEPS; k++) {
    multiply(n, n, m, 1, X, X, 0, NULL, A, round);
    const MuonPolynomial *p = &muon_polynomials[k];
    multiply(n, n, n, p->c, A, A, p->b, A, B, round);
    double *across = transposed(n, m, X);
    multiply(n, m, n, 1, B, across, p->a, X, next, round);
    memcpy(X, next, all);
    free(across);
  }
  free(A), free(B), free(next);
}

// u of part p of tensor i.
static double *expected_u(const Rig *r, int i, int p, double factor, bool round) {
  const ParamTensor *t = &r->gpu.list[i];
  const MatrixPart *part = &t->parts[p];
  const int64_t cols = t->cols;
  double *u = xmalloc((size_t)(part->rows * cols) * sizeof *u);
  for (int64_t j = 0; j < part->rows * cols; j++) {
    const int64_t at = (part->first + j / cols * part->step) * cols + j % cols;
    const double wn = t->norm >= 0 ? (double)r->start[t->norm].master[j % cols] : 1,
                 g = factor * wn * (double)r->start[i].grad[at],
                 m = hyper.momentum * (double)r->start[i].m[at] + (1 - hyper.momentum) * g;
    u[j] = stored((1 - hyper.momentum) * g + hyper.momentum * m, round);
  }
  return u;
}

static double norm_of(int64_t n, const double *u) {
  double sum = 0;
  for (int64_t j = 0; j < n; j++) sum += u[j] * u[j];
  return sqrt(sum);
}

static bool is_noise(const Rig *r, int i, int p, double factor) {
  const ParamTensor *t = &r->gpu.list[i];
  double own = 0, largest = 0;
  for (int k = 0; k < t->part_count; k++) {
    double *u = expected_u(r, i, k, factor, true);
    const double norm = norm_of(t->parts[k].rows * t->cols, u);
    if (k == p) own = norm;
    largest = fmax(largest, norm);
    free(u);
  }
  return own <= MUON_NOISE * largest;
}

// What is added to the weights of tensor i.
static float *expected_step(const Rig *r, int i, double factor, bool round) {
  const ParamTensor *t = &r->gpu.list[i];
  const int64_t cols = t->cols;
  float *delta = xmalloc((size_t)elements(t) * sizeof *delta);
  for (int p = 0; p < t->part_count; p++) {
    const MatrixPart *part = &t->parts[p];
    const bool tall = part->rows > cols;
    const int64_t larger = tall ? part->rows : cols, smaller = tall ? cols : part->rows;
    double *u = expected_u(r, i, p, factor, round), *X = u;
    const bool moves = !is_noise(r, i, p, factor);
    if (tall) X = transposed(part->rows, cols, u);
    orthogonalize(smaller, larger, X, round);
    for (int64_t j = 0; j < part->rows * cols; j++) {
      const int64_t row = j / cols, col = j % cols,
                    at = (part->first + row * part->step) * cols + col;
      const double x = moves ? X[tall ? col * part->rows + row : j] : 0;
      delta[at] = (float)(-hyper.learning_rate * MUON_SCALE * sqrt((double)larger) * x -
                          (t->vector ? 0 : hyper.learning_rate * hyper.weight_decay) *
                              (double)r->start[i].master[at]);
    }
    if (X != u) free(X);
    free(u);
  }
  return delta;
}

static void check_tensor(Rig *r, int i, double factor) {
  const ParamTensor *t = &r->gpu.list[i];
  const int64_t n = elements(t);
  static const char *const names[A_LAYER] = {"norm", "qkv", "o", "gate_up", "down"};
  char what[64];
  snprintf(what, sizeof what, "step of %s, layer %d", names[i % A_LAYER], i / A_LAYER);
  float *want = expected_step(r, i, factor, false), *twin = expected_step(r, i, factor, true),
        *got = bench_read(&r->gpu.bench, t->master);
  for (int64_t j = 0; j < n; j++) got[j] -= r->start[i].master[j];
  expect_near(what, got, twin, want, n, 1e-5);
  free(want), free(twin), free(got);
}

// k of both layers: nothing but decay.
static void check_zero(Rig *r, int layer) {
  const int at = layer * A_LAYER + QKV;
  float *got = bench_read(&r->gpu.bench, r->gpu.list[at].master);
  const float keep = (float)(1 - hyper.learning_rate * hyper.weight_decay);
  for (int64_t i = r->n.Q * r->n.D; i < (r->n.Q + r->n.KV) * r->n.D; i++)
    assert_true(fabsf(got[i] - keep * r->start[at].master[i]) <= 1e-7f);
  free(got);
}

static void check_momentum(Rig *r, int i, double factor) {
  const ParamTensor *t = &r->gpu.list[i];
  float *got = bench_read(&r->gpu.bench, t->m), *want = xmalloc((size_t)elements(t) * sizeof *want);
  for (int64_t j = 0; j < elements(t); j++) {
    const double wn = t->norm >= 0 ? (double)r->start[t->norm].master[j % t->cols] : 1;
    want[j] = (float)(hyper.momentum * (double)r->start[i].m[j] +
                      (1 - hyper.momentum) * factor * wn * (double)r->start[i].grad[j]);
  }
  const Deviation d = deviation(got, want, elements(t));
  const double bound = r->moments == MOMENTS_BF16 ? 0x1p-8 : 1e-5;
  printf("# momentum of tensor %d: L2 %.2e (bound %.2e)\n", i, d.l2, bound);
  assert_true(d.l2 <= bound);
  free(got), free(want);
}

static void check_muon(Sizes n, KernelMode mode, bool grads_fp32, MomentType moments) {
  Rig r;
  StepResult got;
  rig_open(&r, n, mode, grads_fp32, moments, MASTERS_FP32);
  RUN_TWICE(&r.gpu.bench, got = step(&r));
  printf("# %s, D %lld, %s gradients\n", mode.name, (long long)n.D, grads_fp32 ? "fp32" : "bf16");
  assert_true(got.applied);
  assert_int_equal(got.updates, 6);
  const double factor = got.grad_norm > 1 ? 1 / got.grad_norm : 1;
  for (int i = 0; i < TENSORS; i++) {
    if (i % A_LAYER == NORM) continue;
    check_momentum(&r, i, factor);
    check_tensor(&r, i, factor);
  }
  for (int layer = 0; layer < LAYERS; layer++) check_zero(&r, layer);
  rig_close(&r);
}

TEST(parts_become_orthogonal_in_every_backend) {
  for (int mode = 0; mode < KERNEL_MODES; mode++) {
    check_muon((Sizes){328, 264, 72, 400}, kernel_modes[mode], false, MOMENTS_FP32);
    check_muon((Sizes){136, 320, 64, 88}, kernel_modes[mode], true, MOMENTS_FP32);
    check_muon((Sizes){264, 264, 72, 1056}, kernel_modes[mode], false, MOMENTS_FP32);
  }
}

TEST(sides_that_are_no_whole_units_become_orthogonal_too) {
  for (int mode = 0; mode < KERNEL_MODES; mode++) {
    check_muon((Sizes){75, 41, 9, 130}, kernel_modes[mode], false, MOMENTS_FP32);
    check_muon((Sizes){264, 259, 1, 130}, kernel_modes[mode], false, MOMENTS_BF16);
  }
}

// A bf16 weight is one of the two neighbours of what it would be in fp32, and that in the mean.
// Newton-Schulz in bf16 moves that by twice the twin's largest error at most, and across a power of
// two the neighbours are twice as far apart.
static void check_rounded(Rig *r, int i, double factor) {
  const ParamTensor *t = &r->gpu.list[i];
  const int64_t n = elements(t);
  float *want = expected_step(r, i, factor, false), *twin = expected_step(r, i, factor, true),
        *got = bench_read(&r->gpu.bench, t->master);
  double sum = 0, moved = 0;
  int64_t counted = 0;
  for (int64_t j = 0; j < n; j++) moved = fmax(moved, 2 * fabs((double)(twin[j] - want[j])));
  for (int64_t j = 0; j < n; j++) {
    const double exact = (double)r->start[i].master[j] + (double)want[j],
                 unit = ldexp(1, ilogb(fmax(fabs(exact), fabs((double)got[j]))) - 7),
                 off = ((double)got[j] - exact) / unit;
    if (!(fabs(off) <= 1 + moved / unit)) fail_msg("tensor %d: %g units off", i, off);
    if (unit < 0x1p-13) continue; // less than what moves it
    sum += off;
    counted++;
  }
  const double mean = sum / (double)counted, bound = 5 * sqrt(1.0 / 6 / (double)counted) + 0.01;
  printf("# bf16 masters of tensor %d: %.4f units off in the mean (bound %.4f)\n", i, mean, bound);
  assert_true(fabs(mean) <= bound);
  free(want), free(twin), free(got);
}

TEST(masters_in_bf16_are_rounded_without_bias) {
  for (int mode = 0; mode < 2; mode++) {
    Rig r;
    StepResult got;
    rig_open(&r, (Sizes){328, 264, 72, 400}, kernel_modes[mode], false, MOMENTS_BF16, MASTERS_BF16);
    RUN_TWICE(&r.gpu.bench, got = step(&r));
    assert_true(got.applied);
    for (int i = 0; i < TENSORS; i++)
      if (r.gpu.list[i].part_count > 0)
        check_rounded(&r, i, got.grad_norm > 1 ? 1 / got.grad_norm : 1);
    rig_close(&r);
  }
}

// Choosing cuBLASLt's algorithms takes seconds at a first start.
TEST(algorithms_are_chosen_only_where_cublaslt_runs) {
  for (int mode = 0; mode < KERNEL_MODES; mode++) {
    Rig r;
    rig_open(&r, (Sizes){136, 64, 64, 88}, kernel_modes[mode], false, MOMENTS_FP32, MASTERS_FP32);
    bench_reset(&r.gpu.bench);
    r.gpu.be->services.refresh(r.gpu.be, r.gpu.list, TENSORS);
    const bool fused = r.gpu.be->kinds[OP_muon] == KERNEL_FUSED;
    const int before = cuda_of(r.gpu.be)->gemm.count;
    assert_true(step(&r).applied);
    assert_int_equal(cuda_of(r.gpu.be)->gemm.count, before);
    assert_int_equal(before == 0, fused);
    rig_close(&r);
  }
}

TEST(an_update_that_is_skipped_changes_nothing) {
  Rig r;
  rig_open(&r, (Sizes){136, 64, 64, 88}, kernel_modes[1], false, MOMENTS_FP32, MASTERS_FP32);
  bench_reset(&r.gpu.bench);
  const uint16_t bits = 0x7fc0; // NaN
  r.gpu.be->services.write(r.gpu.be, r.gpu.list[OUT].grad, &bits, sizeof bits);
  assert_false(step(&r).applied);
  for (int i = 0; i < TENSORS; i++) {
    float *W = bench_read(&r.gpu.bench, r.gpu.list[i].master),
          *m = bench_read(&r.gpu.bench, r.gpu.list[i].m);
    expect_same("weights", W, r.start[i].master, elements(&r.gpu.list[i]));
    expect_same("momentum", m, r.start[i].m, elements(&r.gpu.list[i]));
    free(W), free(m);
  }
  rig_close(&r);
}
