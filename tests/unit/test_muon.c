// Newton-Schulz on the CPU: what it makes of singular values, and its bits. The update as a whole
// is compared with torch.optim.Muon (test_transformers.c), and tried in steps (test_step.c).
#include <omp.h>

#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "tests/support/test.h"

// ---- Matrices with known singular values

// Rows [count, length], of length 1 and orthogonal to one another; count <= length.
static double *orthonormal_rows(uint64_t key, int64_t count, int64_t length) {
  double *rows = xmalloc((size_t)(count * length) * sizeof *rows);
  for (int64_t i = 0; i < count; i++) {
    double *row = rows + i * length, norm = 0;
    for (int64_t k = 0; k < length; k++) row[k] = rng_normal(key, (uint64_t)(i * length + k));
    for (int again = 0; again < 2; again++) // once leaves rounding behind
      for (int64_t j = 0; j < i; j++) {
        const double *other = rows + j * length;
        double dot = 0;
        for (int64_t k = 0; k < length; k++) dot += row[k] * other[k];
        for (int64_t k = 0; k < length; k++) row[k] -= dot * other[k];
      }
    for (int64_t k = 0; k < length; k++) norm += row[k] * row[k];
    for (int64_t k = 0; k < length; k++) row[k] /= sqrt(norm);
  }
  return rows;
}

// What the iteration makes of a singular value of a matrix of norm 1.
static double iterated(double s) {
  for (int i = 0; i < MUON_STEPS; i++)
    s = MUON_A * s + MUON_B * s * s * s + MUON_C * s * s * s * s * s;
  return s;
}

// sum of values[i] u_i v_i^T, [rows, cols].
static real *matrix_of(int64_t rows, int64_t cols, int64_t rank, const double *u, const double *v,
                       const double *values) {
  real *X = xmalloc((size_t)(rows * cols) * sizeof *X);
  for (int64_t n = 0; n < rows; n++)
    for (int64_t k = 0; k < cols; k++) {
      double sum = 0;
      for (int64_t i = 0; i < rank; i++) sum += values[i] * u[i * rows + n] * v[i * cols + k];
      X[n * cols + k] = (real)sum;
    }
  return X;
}

static void make_orthogonal(int64_t rows, int64_t cols, real *X) {
  real *scratch = xmalloc(orthogonalize_scratch(rows, cols) * sizeof *scratch);
  orthogonalize(rows, cols, X, scratch);
  free(scratch);
}

// The largest difference of an element from what the singular values say, against the largest
// element; their norm is `norm`, and they go down to 1 / range of the largest.
static double error_of(int64_t rows, int64_t cols, int64_t rank, double range, double norm) {
  double *u = orthonormal_rows(1, rank, rows), *v = orthonormal_rows(2, rank, cols),
         *values = xmalloc((size_t)rank * sizeof *values), squares = 0, error = 0, largest = 0;
  for (int64_t i = 0; i < rank; i++) {
    values[i] = pow(range, -(double)i / (double)rank);
    squares += values[i] * values[i];
  }
  for (int64_t i = 0; i < rank; i++) values[i] *= norm / sqrt(squares);
  real *X = matrix_of(rows, cols, rank, u, v, values);
  make_orthogonal(rows, cols, X);
  for (int64_t i = 0; i < rank; i++) values[i] = iterated(values[i] / norm);
  real *expected = matrix_of(rows, cols, rank, u, v, values);
  for (int64_t i = 0; i < rows * cols; i++) {
    error = fmax(error, fabs((double)X[i] - (double)expected[i]));
    largest = fmax(largest, fabs((double)expected[i]));
  }
  free(X), free(expected), free(u), free(v), free(values);
  return error / largest;
}

TEST(singular_values_become_those_of_the_polynomial) {
  static const struct {
    int64_t rows, cols, rank;
  } shapes[] = {{48, 48, 48}, {16, 48, 16}, {48, 16, 16},  {1, 40, 1},    {40, 1, 1},
                {1, 1, 1},    {2, 64, 2},   {65, 130, 65}, {130, 65, 65}, {129, 129, 129},
                {30, 50, 1},  {50, 30, 1},  {96, 96, 5}};
  static const double norms[] = {1e-5, 1, 1e5};
  double worst = 0;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
    for (size_t j = 0; j < sizeof norms / sizeof *norms; j++) {
      const double error = error_of(shapes[i].rows, shapes[i].cols, shapes[i].rank, 100, norms[j]);
      if (!(error <= worst)) worst = error;
    }
  printf("# worst element: off by %.1e of the largest, bound 6e-4 (observed 1.4e-4)\n", worst);
  assert_true(worst <= 6e-4);
}

// The band of the published coefficients.
TEST(singular_values_come_near_1) {
  double least = INFINITY, most = 0;
  for (double s = 1; s >= 0.002; s *= 0.9999) {
    least = fmin(least, iterated(s));
    most = fmax(most, iterated(s));
  }
  printf("# from 0.002 of the norm on: %.3f to %.3f\n", least, most);
  assert_true(least >= 0.68 && most <= 1.21);
}

TEST(a_gradient_of_zero_stays_zero) {
  real zeros[6 * 9] = {0};
  make_orthogonal(6, 9, zeros);
  make_orthogonal(9, 6, zeros);
  for (int i = 0; i < 6 * 9; i++) assert_true(zeros[i] == 0);
}

// Below MUON_EPS a norm counts as MUON_EPS: noise is not blown up to a whole step.
TEST(a_gradient_below_eps_stays_small) {
  real X[4] = {(real)1e-12, 0, 0, (real)1e-12};
  make_orthogonal(2, 2, X);
  const double expected = iterated(1e-5);
  printf("# %.9g, expected %.9g\n", (double)X[0], expected);
  assert_true(fabs((double)X[0] - expected) <= 1e-6 * expected);
}

// ---- Bits

static real *random_matrix(int64_t count) {
  real *X = xmalloc((size_t)count * sizeof *X);
  for (int64_t i = 0; i < count; i++) X[i] = (real)rng_normal(3, (uint64_t)i);
  return X;
}

TEST(threads_do_not_change_the_bits) {
  static const int64_t shapes[][2] = {{200, 333}, {333, 200}, {130, 130}, {64, 64}, {1, 500}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const int64_t rows = shapes[i][0], cols = shapes[i][1];
    const size_t bytes = (size_t)(rows * cols) * sizeof(real);
    omp_set_num_threads(1);
    real *one = random_matrix(rows * cols);
    make_orthogonal(rows, cols, one);
    for (int threads = 2; threads <= 5; threads++) {
      omp_set_num_threads(threads);
      real *several = random_matrix(rows * cols);
      make_orthogonal(rows, cols, several);
      assert_memory_equal(several, one, bytes);
      free(several);
    }
    free(one);
  }
  omp_set_num_threads(1);
}
