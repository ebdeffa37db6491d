// Newton-Schulz on the CPU: what it makes of singular values, and its bits; and the update of parts
// that are no more than rounding. The update as a whole is compared with torch.optim.Muon
// (test_transformers.c), and tried in steps (test_step.c).
#include <omp.h>

#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "model/llama.h"
#include "tests/support/shapes.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"

// ---- Matrices with known singular values

// Rows [count, length], of length 1 and orthogonal to one another; count <= length.
static double *orthonormal_rows(uint64_t key, int64_t count, int64_t length) {
  double *rows = held(xmalloc((size_t)(count * length) * sizeof *rows));
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
    s = muon_polynomials[i].a * s + muon_polynomials[i].b * s * s * s +
        muon_polynomials[i].c * s * s * s * s * s;
  return s;
}

// sum of values[i] u_i v_i^T, [rows, cols].
static real *matrix_of(int64_t rows, int64_t cols, int64_t rank, const double *u, const double *v,
                       const double *values) {
  real *X = held(xmalloc((size_t)(rows * cols) * sizeof *X));
  for (int64_t n = 0; n < rows; n++)
    for (int64_t k = 0; k < cols; k++) {
      double sum = 0;
      for (int64_t i = 0; i < rank; i++) sum += values[i] * u[i * rows + n] * v[i * cols + k];
      X[n * cols + k] = (real)sum;
    }
  return X;
}

static void make_orthogonal(int64_t rows, int64_t cols, real *X) {
  real *scratch = held(xmalloc(orthogonalize_scratch(rows, cols) * sizeof *scratch));
  orthogonalize(rows, cols, X, scratch);
}

// The largest difference of an element from what the singular values say, against the largest
// element; their norm is `norm`, and they go down to 1 / range of the largest.
static double error_of(int64_t rows, int64_t cols, int64_t rank, double range, double norm) {
  double *u = orthonormal_rows(1, rank, rows), *v = orthonormal_rows(2, rank, cols),
         *values = held(xmalloc((size_t)rank * sizeof *values)), squares = 0, error = 0,
         largest = 0;
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
    const double off = fabs((double)X[i] - (double)expected[i]);
    if (!(off <= error)) error = off;
    largest = fmax(largest, fabs((double)expected[i]));
  }
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

// Rounding leaves some a little above the norm.
static void check_band(double from, double low, double high) {
  double least = INFINITY, most = 0;
  for (double s = 1.03; s >= from; s *= 0.9999) {
    least = fmin(least, iterated(s));
    most = fmax(most, iterated(s));
  }
  printf("# from %g of the norm on: %.3f to %.3f\n", from, least, most);
  assert_true(least >= low && most <= high);
}

TEST(singular_values_come_near_1) {
  check_band(0.003, 0.70, 1.20);
  check_band(0.01, 0.86, 1.20);
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
  real *X = held(xmalloc((size_t)count * sizeof *X));
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
    }
  }
  omp_set_num_threads(1);
}

// ---- Parts of which only rounding is left

enum { ROWS = 8, COLS = 24, PARTS = 3 };

// The update of q, k and v of one tensor, whose gradients are `sizes` large: what moved.
static void moved_parts(const double *sizes, bool *moved) {
  const Spec config = {SPEC_SHAPE(8, 8, 1, 1, 8, 8, 8, 8), .threads = 1};
  const AdamW hyper = {.learning_rate = 0.1, .momentum = 0.95, .gradient_scale = 1};
  Backend *be = cpu_backend(config);
  real W[PARTS * ROWS * COLS] = {0}, m[PARTS * ROWS * COLS] = {0}, grad[PARTS * ROWS * COLS];
  ParamTensor t = {.rows = PARTS * ROWS, .cols = COLS, .norm = -1, .part_count = PARTS};
  t.master = (master_t *)W, t.m = (moment_t *)m, t.grad = (grad_t *)grad;
  for (int i = 0; i < PARTS; i++) t.parts[i] = (MatrixPart){i * ROWS, 1, ROWS};
  for (int i = 0; i < PARTS * ROWS * COLS; i++)
    grad[i] = (real)(sizes[i / (ROWS * COLS)] * rng_normal(4, (uint64_t)i));
  be->services.set_hyper(be, &hyper);
  be->services.step_begin(be);
  be->muon(be, &t, 1);
  for (int i = 0; i < PARTS; i++) {
    double sum = 0;
    for (int j = 0; j < ROWS * COLS; j++) sum += fabs((double)W[i * ROWS * COLS + j]);
    moved[i] = sum > 0;
  }
}

TEST(a_part_below_the_rounding_of_its_tensor_stays) {
  static const double sizes[][PARTS] = {{1, 1, 1},       {2e-5, 1, 1}, {1e-5, 1, 1},
                                        {1e-9, 1e-9, 1}, {1, 1e-9, 2}, {1e-9, 1e-9, 1e-9},
                                        {0, 0, 0},       {1e-20, 0, 0}};
  static const bool expected[][PARTS] = {
      {true, true, true},  {true, true, true}, {false, true, true},   {false, false, true},
      {true, false, true}, {true, true, true}, {false, false, false}, {true, false, false}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    bool moved[PARTS];
    moved_parts(sizes[i], moved);
    for (int k = 0; k < PARTS; k++)
      if (moved[k] != expected[i][k]) fail_msg("case %zu, part %d: moved is %d", i, k, moved[k]);
  }
}

enum { B = 2, T = 24, M = B * T, V = 61 };

// How far the parts of layer 0's qkv move in three steps with documents of `rows` rows. The last
// row of a document has no target.
static void train_on_documents(int rows, double *moved) {
  const ModelConfig model = {MODEL_SHAPE(64, 96, 2, 2, 1, 32, V, T), .initializer_range = 0.1};
  const Spec asked = {TRAINS(B, T, 1), .muon = true, .usual_documents = M, .longest_document = T,
                      .threads = 1};
  const AdamW hyper = {.learning_rate = 1e-3, .momentum = 0.95, .clip_norm = 1, USUAL_ADAMW};
  Llama *llama = cpu_llama(&model, asked);
  llama_init_weights(llama, 3);
  const ParamTensor *t = llama->layers[0].qkv;
  const size_t bytes = (size_t)(t->rows * t->cols) * sizeof(real);
  real *before = held(xmalloc(bytes));
  memcpy(before, t->master, bytes);
  Batch batch = batch_alloc(M);
  for (int step = 0; step < 3; step++) {
    batch.documents = M / rows;
    for (int i = 0; i < M; i++) {
      batch.tokens[i] = (int32_t)(rng_u64(9 + (uint64_t)step, (uint64_t)i) % V);
      batch.targets[i] = i % rows == rows - 1 ? NO_TARGET : (batch.tokens[i] * 7 + 3) % V;
      if (i % rows == 0) batch.lengths[i / rows] = rows;
    }
    llama_load_batch(llama, &batch);
    llama_forward(llama);
    llama_backward(llama, 1, false);
    llama_update(llama, &hyper);
    assert_true(llama->be->services.step_result(llama->be).applied);
  }
  for (int k = 0; k < PARTS; k++) {
    const int64_t first = t->parts[k].first * t->cols;
    moved[k] = 0;
    for (int64_t i = first; i < first + t->parts[k].rows * t->cols; i++) {
      const double by = fabs((double)(((const real *)t->master)[i] - before[i]));
      if (!(by <= moved[k])) moved[k] = by;
    }
  }
  batch_free(&batch);
}

// The one row that counts of a document sees itself alone: no score has a gradient, and what is
// computed for q and k is the rounding of that.
TEST(documents_with_one_target_move_neither_q_nor_k) {
  double moved[PARTS];
  train_on_documents(2, moved);
  printf("# documents of 2 rows: q, k, v moved by up to %g, %g, %g\n", moved[0], moved[1],
         moved[2]);
  assert_true(moved[0] == 0 && moved[1] == 0 && moved[2] > 1e-4);
  train_on_documents(3, moved);
  assert_true(moved[0] > 1e-4 && moved[1] > 1e-4 && moved[2] > 1e-4);
}
