// Muon's update (kernels/ops.h). Products are cut into slabs of rows, one thread each, at the same
// places for any number of threads, and so are their bits.
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "kernels/formats.h"

enum { SLAB = 64 }; // rows of a result that a thread computes

// ---- Newton-Schulz

// X, and the symmetric matrices of its smaller side, [n, n].
typedef struct Iteration {
  int64_t rows, cols, n;
  bool tall; // A = X^T X, else X X^T
  real *X, *before, *A, *B;
} Iteration;

size_t orthogonalize_scratch(int64_t rows, int64_t cols) {
  const int64_t n = min_i64(rows, cols);
  return (size_t)(rows * cols + 2 * n * n);
}

// Rows [first, end) of a symmetric S [n, n], which are there up to the diagonal, become its
// columns, too. No other slab reads or writes those.
static void mirror(int64_t n, int64_t first, int64_t end, real *S) {
  for (int64_t i = first; i < end; i++)
    for (int64_t j = 0; j < i; j++) S[j * n + i] = S[i * n + j];
}

// A = X X^T, or X^T X.
static void square(const Iteration *s) {
  const int64_t n = s->n, cols = s->cols;
#pragma omp parallel for schedule(dynamic)
  for (int64_t first = 0; first < n; first += SLAB) {
    const int64_t end = min_i64(first + SLAB, n), at = s->tall ? first : first * cols;
    gemm_strided(s->tall ? GEMM_TN : GEMM_NT, end - first, end, s->tall ? s->rows : cols, 1,
                 s->X + at, cols, s->X, cols, 0, s->A + first * n, n);
    mirror(n, first, end, s->A);
  }
}

// B = b A + c A A.
static void polynomial(const Iteration *s, const MuonPolynomial *p) {
  const int64_t n = s->n;
#pragma omp parallel for schedule(dynamic)
  for (int64_t first = 0; first < n; first += SLAB) {
    const int64_t end = min_i64(first + SLAB, n), at = first * n;
    for (int64_t i = first; i < end; i++)
      memcpy(s->B + i * n, s->A + i * n, (size_t)end * sizeof *s->B);
    gemm_strided(GEMM_NN, end - first, end, n, (real)p->c, s->A + at, n, s->A, n, (real)p->b,
                 s->B + at, n);
    mirror(n, first, end, s->B);
  }
}

// X = a X + B X, or a X + X B.
static void multiply_by_polynomial(const Iteration *s, const MuonPolynomial *p) {
  const int64_t n = s->n, cols = s->cols;
  memcpy(s->before, s->X, (size_t)(s->rows * cols) * sizeof *s->X);
  const real *left = s->tall ? s->before : s->B, *right = s->tall ? s->B : s->before;
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < s->rows; first += SLAB) {
    const int64_t end = min_i64(first + SLAB, s->rows);
    gemm_strided(GEMM_NN, end - first, cols, n, 1, left + first * n, n, right, cols, (real)p->a,
                 s->X + first * cols, cols);
  }
}

// The Frobenius norm. Rows are summed one by one and then added up in order.
static double norm_of(int64_t rows, int64_t cols, const real *X) {
  double *row_sum = xmalloc((size_t)rows * sizeof *row_sum), total = 0;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < rows; i++) row_sum[i] = row_sum_of_squares(cols, X + i * cols);
  for (int64_t i = 0; i < rows; i++) total += row_sum[i];
  free(row_sum);
  return sqrt(total);
}

static void normalize(int64_t rows, int64_t cols, real *X) {
  const real factor = (real)(1 / fmax(norm_of(rows, cols, X), MUON_EPS));
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < rows; i++) scale_row(cols, factor, X + i * cols);
}

void orthogonalize(int64_t rows, int64_t cols, real *X, real *scratch) {
  Iteration s = {.rows = rows, .cols = cols, .n = min_i64(rows, cols), .tall = rows > cols, .X = X};
  s.before = scratch;
  s.A = s.before + rows * cols;
  s.B = s.A + s.n * s.n;
  normalize(rows, cols, X);
  for (int i = 0; i < MUON_STEPS; i++) {
    square(&s);
    polynomial(&s, &muon_polynomials[i]);
    multiply_by_polynomial(&s, &muon_polynomials[i]);
  }
}

// ---- The update

// Of a tensor: X of all parts, and the iteration of one.
static size_t tensor_scratch(const ParamTensor *t) {
  size_t all = 0, most = 0;
  for (int i = 0; i < t->part_count; i++) {
    const size_t iteration = orthogonalize_scratch(t->parts[i].rows, t->cols);
    all += (size_t)(t->parts[i].rows * t->cols);
    if (iteration > most) most = iteration;
  }
  return all + most;
}

size_t muon_scratch(const ParamTensor *list, int count) {
  size_t most = 0;
  for (const ParamTensor *t = list; t < list + count; t++) {
    const size_t needed = tensor_scratch(t);
    if (needed > most) most = needed;
  }
  return most * sizeof(real);
}

static void allocate(Cpu *cpu, const ParamTensor *list, int count) {
  const size_t bytes = muon_scratch(list, count);
  if (bytes <= cpu->muon_bytes) return;
  free(cpu->muon);
  cpu->muon = xmalloc(bytes);
  cpu->muon_bytes = bytes;
}

// m and X of a row.
VECTORS static void momentum_row(int64_t n, real momentum, real scale, const real *grad, real *m,
                                 real *X) {
  for (int64_t k = 0; k < n; k++) {
    const real g = grad[k] * scale;
    m[k] = momentum * m[k] + (1 - momentum) * g;
    X[k] = (1 - momentum) * g + momentum * m[k];
  }
}

VECTORS static void step_row(int64_t n, real keep, real step_size, const real *X, real *W) {
  for (int64_t k = 0; k < n; k++) W[k] = keep * W[k] - step_size * X[k];
}

// The step used m before rounding.
static void round_momentum(int64_t count, int64_t first, uint32_t key, real *m) {
  for (int64_t k = 0; k < count; k++)
    m[k] = (real)moment_round((float)m[k], moment_noise(key, first + k));
}

// X of a part, and its momentum.
static void take_gradient(const Cpu *cpu, const ParamTensor *list, int index,
                          const MatrixPart *part, double scale, real *X) {
  const ParamTensor *t = &list[index];
  const uint32_t key = moment_key(cpu->step.updates, index);
#pragma omp parallel
  {
    real *made = xmalloc((size_t)t->cols * sizeof *made);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < part->rows; i++) {
      const int64_t n = part->first + i * part->step, first = n * t->cols;
      real *m = reals(t->m) + first;
      momentum_row(t->cols, (real)cpu->hyper.momentum, (real)scale, gradient_row(list, t, n, made),
                   m, X + i * t->cols);
      if (cpu->base.spec.moments == MOMENTS_BF16) round_momentum(t->cols, first, key, m);
    }
    free(made);
  }
}

static void step_part(const Cpu *cpu, const ParamTensor *t, int index, const MatrixPart *part,
                      const real *X) {
  const AdamW *a = &cpu->hyper;
  const int64_t larger = part->rows > t->cols ? part->rows : t->cols;
  const real keep = (real)(1 - a->learning_rate * (t->vector ? 0 : a->weight_decay)),
             step_size = (real)(a->learning_rate * MUON_SCALE * sqrt((double)larger));
  const uint32_t key = master_key(cpu->step.updates, index);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < part->rows; i++) {
    const int64_t first = (part->first + i * part->step) * t->cols;
    real *W = reals(t->master) + first;
    step_row(t->cols, keep, step_size, X + i * t->cols, W);
    if (cpu_rounds_master(cpu, t)) round_masters(t->cols, first, key, W);
  }
}

static void update_tensor(const Cpu *cpu, const ParamTensor *list, int index, double scale) {
  const ParamTensor *t = &list[index];
  double norms[MOST_PARTS], largest = 0;
  real *X = cpu->muon;
  for (int i = 0; i < t->part_count; X += t->parts[i++].rows * t->cols) {
    take_gradient(cpu, list, index, &t->parts[i], scale, X);
    norms[i] = norm_of(t->parts[i].rows, t->cols, X);
    largest = fmax(largest, norms[i]);
  }
  real *const scratch = X;
  X = cpu->muon;
  for (int i = 0; i < t->part_count; X += t->parts[i++].rows * t->cols) {
    const MatrixPart *part = &t->parts[i];
    if (norms[i] > MUON_NOISE * largest)
      orthogonalize(part->rows, t->cols, X, scratch);
    else
      memset(X, 0, (size_t)(part->rows * t->cols) * sizeof *X);
    step_part(cpu, t, index, part, X);
  }
}

void cpu_muon(Backend *be, const ParamTensor *list, int count) {
  Cpu *cpu = cpu_of(be);
  decide_update(cpu);
  allocate(cpu, list, count);
  for (int i = 0; i < count && cpu->step.applied; i++)
    update_tensor(cpu, list, i, cpu->gradient_factor);
}
