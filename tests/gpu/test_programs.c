// Every epilogue program in every tile shape, against the CPU from the same bf16 inputs widened to
// fp32. The bound of each error is twice the error of a twin: the CPU's result rounded to bf16
// wherever the program stores a bf16 value.
#include "tests/gpu/program_rig.h"

#include <unistd.h>

#include "tests/gpu/fused_support.h"

static const Shape shapes[] = {
    {1, 8, 8},         // a corner of one tile
    {77, 136, 72},     // tails in all three
    {333, 200, 48},    // less of K than a stage
    {1000, 1096, 328}, // stages that are no multiple of the ring
    {2112, 1536, 512}, // the last cluster has rows for half a block
    {4104, 3080, 200}, // 17 rows of cluster tiles: two groups of 8, and one
    {8192, 2048, 256}, // several tiles a block, so that every ring wraps
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

// ---- Programs that do the same to every element of the product

typedef float Elementwise(float product);

static float identity(float product) {
  return product;
}

static void elementwise_shape(Machine *m, ProgramName name, Shape s, Elementwise *function) {
  const GemmForm form = fused_program(name)->form;
  if (form == GEMM_TN) s.M = (s.M + 7) / 8 * 8; // A's rows are M long
  Bench b = {.be = &m->memory};
  Product p = product_new(&b, form, s, 1);
  for (int64_t i = 0; i < s.M * s.N; i++) p.values[i] = function(p.values[i]);
  p.call.stores[0] = matrix_out(&b, s.M, s.N);
  float *twin = rounded_copy(p.values, s.M * s.N);
  for (int tile = 0; tile < TILE_SHAPES; tile++) {
    RUN_TWICE(&b, launch(m, name, (TileShape)tile, &p.call));
    float *got = bench_read(&b, p.call.stores[0].data);
    expect_near(label(name, (TileShape)tile, s, "").text, got, twin, p.values, s.M * s.N, 1e-6);
    free(got);
  }
  free(twin), free(p.values);
  bench_free(&b);
}

static void elementwise(void **state, ProgramName name, Elementwise *function) {
  Machine *m = machine(state);
  for (int i = 0; i < SHAPES; i++)
    if (shape_pays(m, shapes[i])) elementwise_shape(m, name, shapes[i], function);
}

// ---- residual

// Where a call leaves its row sums: more parts than tiles of columns, more stride than rows.
static RowParts sums_out(Bench *b, Shape s, int64_t *elements) {
  const int64_t stride = s.M + 3;
  *elements = stride * (tile_parts(TILE_128x128, s.N) + TILE_SHAPES);
  return (RowParts){.data = fp32_buffer(b, *elements, NULL), .stride = stride};
}

// Part by part, against the sums of `terms` [M, N] over the tile's columns.
static void expect_row_sums(Label what, const float *terms, Shape s, int32_t tile_cols,
                            const RowParts *parts, const float *sums, int64_t elements,
                            double floor) {
  const int64_t tiles = (s.N + tile_cols - 1) / tile_cols, M = s.M;
  float *got = floats(tiles * M), *expected = floats(tiles * M);
#pragma omp parallel for
  for (int64_t row = 0; row < M; row++)
    for (int64_t t = 0; t < tiles; t++) {
      double sum = 0;
      for (int64_t n = t * tile_cols; n < s.N && n < (t + 1) * tile_cols; n++)
        sum += (double)terms[row * s.N + n];
      expected[t * M + row] = (float)sum;
      got[t * M + row] = sums[t * parts->stride + row];
    }
  expect_near(what.text, got, expected, expected, tiles * M, floor);
  float *zeros = floats(M);
  for (int64_t t = tiles; t < parts->parts; t++)
    expect_same("part beyond the tiles", sums + t * parts->stride, zeros, M);
  for (int64_t t = 0; t < parts->parts; t++)
    expect_unwritten("between parts", sums + t * parts->stride + M, parts->stride - M);
  expect_unwritten("beyond the parts", sums + parts->parts * parts->stride,
                   elements - parts->parts * parts->stride);
  free(got), free(expected), free(zeros);
}

static void residual(Machine *m, ProgramName name, Shape s) {
  Bench b = {.be = &m->memory};
  Product p = product_new(&b, GEMM_NT, s, 1);
  float *x = random_bf16(s.M * s.N, 1, "x");
  for (int64_t i = 0; i < s.M * s.N; i++) p.values[i] += x[i];
  float *twin = rounded_copy(p.values, s.M * s.N);
  p.call.loads[0] = matrix_in(&b, s.M, s.N, x);
  p.call.stores[0] = matrix_out(&b, s.M, s.N);
  int64_t elements;
  RowParts *sums = &p.call.args.sums;
  *sums = sums_out(&b, s, &elements);
  for (int tile = 0; tile < TILE_SHAPES; tile++) {
    sums->parts = tile_parts((TileShape)tile, s.N) + tile; // none, one and two more than tiles
    RUN_TWICE(&b, launch(m, name, (TileShape)tile, &p.call));
    float *got = bench_read(&b, p.call.stores[0].data), *got_sums = bench_read(&b, sums->data);
    expect_near(label(name, (TileShape)tile, s, "").text, got, twin, p.values, s.M * s.N, 1e-6);
    for (int64_t i = 0; i < s.M * s.N; i++) got[i] *= got[i]; // of the rows as stored
    expect_row_sums(label(name, (TileShape)tile, s, "sums"), got, s,
                    fused_program(name)->kernels[tile].cols, sums, got_sums, elements, 1e-6);
    free(got), free(got_sums);
  }
  free(x), free(twin), free(p.values);
  bench_free(&b);
}

// ---- rope

typedef struct RopeCase {
  int64_t M, K;
  int32_t H, KV, d, T;
  int32_t first;  // of args
  int64_t base;   // position that the table's row 0 holds
  double divisor; // of the angles that turn less than once in 8192 positions, as llama 3.1 has it
} RopeCase;

static const RopeCase rope_cases[] = {
    {130, 72, 2, 1, 64, 1, 0, 0, 1},         // every row the same position
    {1, 64, 2, 1, 64, 1, 8191, 0, 1},        // generation
    {333, 48, 4, 1, 48, 7, 0, 0, 1},         // sequences shorter than a chunk; rotated 240
    {1000, 328, 5, 1, 80, 77, 5, 0, 1},      // heads that no chunk starts with; rotated 480
    {999, 128, 4, 2, 128, 333, 0, 90000, 8}, // far out
    {4500, 200, 6, 3, 48, 4096, 300, 20000, 32},
    {8192, 256, 16, 4, 80, 4096, 0, 0, 32},
    {8192, 64, 8, 2, 64, 4096, 8200, 0, 32},
    {2112, 512, 3, 1, 128, 1056, 0, 131072 - 1056, 8},
};
enum { ROPE_CASES = sizeof rope_cases / sizeof *rope_cases };

static double *frequencies(const RopeCase *c) {
  double *inv_freq = xmalloc((size_t)c->d / 2 * sizeof *inv_freq);
  for (int64_t j = 0; j < c->d / 2; j++) {
    inv_freq[j] = pow(500000, -2 * (double)j / (double)c->d);
    if (inv_freq[j] * 8192 < 2 * 3.141592653589793) inv_freq[j] /= c->divisor;
  }
  return inv_freq;
}

// Exact angles: the table's rounding to fp16 is part of the error.
static void rotate(const RopeCase *c, const double *inv_freq, float *values) {
  const int64_t N = (c->H + 2 * c->KV) * c->d, rotated = (c->H + c->KV) * c->d;
#pragma omp parallel for
  for (int64_t m = 0; m < c->M; m++)
    for (int64_t j = 0; j < c->d / 2; j++) {
      const double angle = (double)(c->base + c->first + m % c->T) * inv_freq[j];
      const double cosine = cos(angle), sine = sin(angle);
      for (int64_t n = 2 * j; n < rotated; n += c->d) {
        float *pair = &values[m * N + n];
        const double x = (double)pair[0], y = (double)pair[1];
        pair[0] = (float)(x * cosine - y * sine);
        pair[1] = (float)(y * cosine + x * sine);
      }
    }
}

// Columns first to first + count - 1.
static float *columns(const float *x, Shape s, int64_t first, int64_t count) {
  float *part = floats(s.M * count);
  for (int64_t m = 0; m < s.M; m++)
    memcpy(part + m * count, x + m * s.N + first, (size_t)count * sizeof *part);
  return part;
}
static void expect_columns_near(Label what, Shape s, int64_t first, int64_t count, const float *x,
                                const float *twin, const float *reference) {
  float *a = columns(x, s, first, count), *b = columns(twin, s, first, count),
        *c = columns(reference, s, first, count);
  expect_near(what.text, a, b, c, s.M * count, 1e-6);
  free(a), free(b), free(c);
}

static void rope(Machine *m, const RopeCase *c) {
  const ProgramName name = PROGRAM_ROPE;
  const int64_t N = (c->H + 2 * c->KV) * c->d, rotated = (c->H + c->KV) * c->d;
  const Shape s = {c->M, N, c->K};
  Bench b = {.be = &m->memory};
  Product p = product_new(&b, GEMM_NT, s, 1);
  scale_rows(&b, &p, 3);
  double *inv_freq = frequencies(c);
  RopeTable table = rope_table(c->base, c->first, c->T, c->d, inv_freq);
  rotate(c, inv_freq, p.values);
  float *twin = rounded_copy(p.values, s.M * s.N);
  p.call.loads[0] = (Matrix){buffer_new(&b, table.rows * table.cols, 2, table.values)->data,
                             table.rows, table.cols};
  p.call.stores[0] = matrix_out(&b, s.M, s.N);
  p.call.args.first = c->first;
  p.call.args.period = c->T;
  p.call.args.head_dim = c->d;
  p.call.args.rotated = (int32_t)rotated;
  printf("# heads %d + 2 x %d of %d, rows are positions %lld + m %% %d\n", (int)c->H, (int)c->KV,
         (int)c->d, (long long)(c->base + c->first), (int)c->T);
  for (int tile = 0; tile < TILE_SHAPES; tile++) {
    RUN_TWICE(&b, launch(m, name, (TileShape)tile, &p.call));
    float *got = bench_read(&b, p.call.stores[0].data);
    expect_columns_near(label(name, (TileShape)tile, s, "q, k"), s, 0, rotated, got, twin,
                        p.values);
    expect_columns_near(label(name, (TileShape)tile, s, "v"), s, rotated, N - rotated, got, twin,
                        p.values);
    free(got);
  }
  free(inv_freq), free(table.values), free(twin), free(p.values);
  bench_free(&b);
}

// ---- swiglu

static float *swiglu_rows(const float *z, int64_t M, int64_t F) {
  float *y = floats(M * F);
#pragma omp parallel for
  for (int64_t m = 0; m < M; m++)
    for (int64_t pair = 0; pair < F; pair++) {
      const float *v = &z[m * 2 * F + 2 * pair];
      y[m * F + feature_of_pair(pair, F)] = swiglu(v[0], v[1]);
    }
  return y;
}

static void gate_up(Machine *m, ProgramName name, Shape s) {
  s.N = (s.N + 15) / 16 * 16; // y's rows are whole 16 bytes, too
  const int64_t F = s.N / 2;
  Bench b = {.be = &m->memory};
  Product p = product_new(&b, GEMM_NT, s, 1.5);
  scale_rows(&b, &p, 2);
  float *z_twin = rounded_copy(p.values, s.M * s.N), *y = swiglu_rows(p.values, s.M, F),
        *y_twin = swiglu_rows(z_twin, s.M, F);
  round_all(y_twin, s.M * F);
  p.call.stores[0] = matrix_out(&b, s.M, s.N);
  p.call.stores[1] = matrix_out(&b, s.M, F);
  for (int tile = 0; tile < TILE_SHAPES; tile++) {
    RUN_TWICE(&b, launch(m, name, (TileShape)tile, &p.call));
    float *got_z = bench_read(&b, p.call.stores[0].data),
          *got_y = bench_read(&b, p.call.stores[1].data);
    expect_near(label(name, (TileShape)tile, s, "z").text, got_z, z_twin, p.values, s.M * s.N,
                1e-6);
    expect_near(label(name, (TileShape)tile, s, "y").text, got_y, y_twin, y, s.M * F, 1e-6);
    free(got_z), free(got_y);
  }
  free(z_twin), free(y), free(y_twin), free(p.values);
  bench_free(&b);
}

// ---- logits

// Each part against the row's stored values in the tile's columns, and all parts of a row together
// against its log-sum-exp.
static void expect_softmax(ProgramName name, TileShape tile, Shape s, const float *stored,
                           const MaxSum *parts, int64_t stride) {
  const int64_t cols = fused_program(name)->kernels[tile].cols, tiles = (s.N + cols - 1) / cols,
                M = s.M;
  float *max = floats(tiles * M), *got_max = floats(tiles * M), *sum = floats(tiles * M),
        *got_sum = floats(tiles * M), *lse = floats(M), *got_lse = floats(M);
#pragma omp parallel for
  for (int64_t m = 0; m < M; m++) {
    const float *row = stored + m * s.N;
    double top = -INFINITY, whole = 0, combined = 0;
    for (int64_t n = 0; n < s.N; n++) top = fmax(top, (double)row[n]);
    for (int64_t t = 0; t < tiles; t++) {
      const int64_t i = t * M + m, end = (t + 1) * cols < s.N ? (t + 1) * cols : s.N;
      const MaxSum part = parts[t * stride + m];
      double tile_sum = 0;
      max[i] = -INFINITY;
      for (int64_t n = t * cols; n < end; n++) max[i] = fmaxf(max[i], row[n]);
      for (int64_t n = t * cols; n < end; n++) tile_sum += exp((double)row[n] - (double)max[i]);
      sum[i] = (float)tile_sum;
      got_max[i] = part.max;
      got_sum[i] = part.sum;
      whole += tile_sum * exp((double)max[i] - top);
      combined += (double)part.sum * exp((double)part.max - top);
    }
    lse[m] = (float)(top + log(whole));
    got_lse[m] = (float)(top + log(combined));
  }
  expect_same(label(name, tile, s, "max").text, got_max, max, tiles * M);
  expect_near(label(name, tile, s, "sum").text, got_sum, sum, sum, tiles * M, 1e-6);
  expect_near(label(name, tile, s, "lse").text, got_lse, lse, lse, M, 1e-6);
  for (int64_t t = 0; t < tiles; t++)
    expect_unwritten("between parts", &parts[t * stride + M].max, 2 * (stride - M));
  free(max), free(got_max), free(sum), free(got_sum), free(lse), free(got_lse);
}

static void logits(Machine *m, ProgramName name, Shape s) {
  Bench b = {.be = &m->memory};
  // Logits of some 10, and such that the exponential of the largest overflows fp32.
  Product p = product_new(&b, GEMM_NT, s, s.N % 16 == 0 ? 3 : 60);
  scale_rows(&b, &p, 11);
  float *twin = rounded_copy(p.values, s.M * s.N);
  p.call.stores[0] = matrix_out(&b, s.M, s.N);
  ProgramArgs *args = &p.call.args;
  args->softmax_stride = s.M + 3;
  const int64_t most = tile_parts(TILE_128x128, s.N);
  float *softmax = fp32_buffer(&b, 2 * most * args->softmax_stride, NULL);
  for (int tile = 0; tile < TILE_SHAPES; tile++) {
    args->softmax = (MaxSum *)(void *)softmax;
    RUN_TWICE(&b, launch(m, name, (TileShape)tile, &p.call));
    float *got = bench_read(&b, p.call.stores[0].data), *got_softmax = bench_read(&b, softmax);
    const int64_t written = tile_parts((TileShape)tile, s.N) * args->softmax_stride;
    expect_near(label(name, (TileShape)tile, s, "").text, got, twin, p.values, s.M * s.N, 1e-6);
    expect_softmax(name, (TileShape)tile, s, got, (const MaxSum *)(void *)got_softmax,
                   args->softmax_stride);
    expect_unwritten("beyond the parts", got_softmax + 2 * written,
                     2 * (most * args->softmax_stride - written));

    // Without the parts: the same logits.
    args->softmax = NULL;
    RUN_TWICE(&b, launch(m, name, (TileShape)tile, &p.call));
    float *alone = bench_read(&b, p.call.stores[0].data);
    expect_same("logits alone", alone, got, s.M * s.N);
    free(got), free(got_softmax), free(alone);
  }
  free(twin), free(p.values);
  bench_free(&b);
}

// ---- swiglu_backward, with and without y; dz' in z's place, where it may be

static void down_dgrad(Machine *m, ProgramName name, Shape s) {
  const bool has_y = name == PROGRAM_SWIGLU_BACKWARD_Y;
  const int64_t M = s.M, F = s.N;
  Bench b = {.be = &m->memory};
  Product p = product_new(&b, GEMM_NN, s, 1);
  double *r = row_scales(&b, &p, s.K, 3);
  float *z = random_bf16(M * 2 * F, 1.5, "z"), *dz = floats(M * 2 * F), *y = swiglu_rows(z, M, F),
        *terms = floats(M * F); // of s, by feature
#pragma omp parallel for
  for (int64_t row = 0; row < M; row++)
    for (int64_t pair = 0; pair < F; pair++) {
      const int64_t feature = feature_of_pair(pair, F), i = row * 2 * F + 2 * pair;
      const float dy = (float)(r[row] * (double)p.values[row * F + feature]);
      swiglu_backward(z[i], z[i + 1], dy, &dz[i], &dz[i + 1]);
      terms[row * F + feature] = dz[i] * z[i] + dz[i + 1] * z[i + 1];
    }
  float *dz_twin = rounded_copy(dz, M * 2 * F), *y_twin = rounded_copy(y, M * F);
  p.call.loads[0] = p.call.stores[0] = matrix_in(&b, M, 2 * F, z);
  if (has_y) p.call.stores[1] = matrix_out(&b, M, F);
  int64_t elements;
  RowParts *sums = &p.call.args.sums;
  *sums = sums_out(&b, s, &elements);
  for (int tile = 0; tile < TILE_SHAPES; tile++) {
    sums->parts = tile_parts((TileShape)tile, F) + tile;
    RUN_TWICE(&b, launch(m, name, (TileShape)tile, &p.call));
    float *got = bench_read(&b, p.call.stores[0].data), *got_sums = bench_read(&b, sums->data);
    expect_near(label(name, (TileShape)tile, s, "").text, got, dz_twin, dz, M * 2 * F, 1e-6);
    expect_row_sums(label(name, (TileShape)tile, s, "s"), terms, s,
                    fused_program(name)->kernels[tile].cols, sums, got_sums, elements, 2e-6);
    free(got_sums);
    if (has_y) {
      float *got_y = bench_read(&b, p.call.stores[1].data);
      expect_near(label(name, (TileShape)tile, s, "y").text, got_y, y_twin, y, M * F, 1e-6);
      free(got_y);
    }

    // Elsewhere: the same dz', and z left alone.
    const Matrix in_place = p.call.stores[0];
    Bench other = {.be = &m->memory};
    p.call.stores[0] = matrix_out(&other, M, 2 * F);
    bench_reset(&b);
    RUN_TWICE(&other, launch(m, name, (TileShape)tile, &p.call));
    float *apart = bench_read(&other, p.call.stores[0].data),
          *z_after = bench_read(&b, p.call.loads[0].data);
    expect_same("dz' apart", apart, got, M * 2 * F);
    expect_same("z", z_after, z, M * 2 * F);
    free(apart), free(z_after), free(got);
    bench_free(&other);
    p.call.stores[0] = in_place;
  }
  free(r), free(z), free(dz), free(y), free(terms), free(dz_twin), free(y_twin), free(p.values);
  bench_free(&b);
}

// ---- norm_dgrad, with and without a residual; dx in the residual's place, where it may be

static void norm_dgrad(Machine *m, ProgramName name, Shape s) {
  const bool has_residual = name == PROGRAM_NORM_DGRAD_RESIDUAL;
  const int64_t M = s.M, D = s.N;
  Bench b = {.be = &m->memory};
  Product p = product_new(&b, GEMM_NN, s, 1);
  double *r = row_scales(&b, &p, D, 2), *sum = xcalloc((size_t)M, sizeof *sum);
  p.call.args.s = random_parts(&b, M, 5, -(double)D / 5, 2.5 * (double)D / 5, "s", sum);
  float *x = random_bf16(M * D, 1, "x"), *residual_in = random_bf16(M * D, 1, "residual");
  for (int64_t i = 0; i < M * D; i++) {
    const int64_t row = i / D;
    p.values[i] = (float)((double)p.values[i] - r[row] / (double)D * sum[row] * (double)x[i] +
                          (has_residual ? (double)residual_in[i] : 0));
  }
  float *twin = rounded_copy(p.values, M * D);
  p.call.loads[0] = matrix_in(&b, M, D, x);
  if (has_residual)
    p.call.loads[1] = p.call.stores[0] = matrix_in(&b, M, D, residual_in);
  else
    p.call.stores[0] = matrix_out(&b, M, D);
  for (int tile = 0; tile < TILE_SHAPES; tile++) {
    RUN_TWICE(&b, launch(m, name, (TileShape)tile, &p.call));
    float *got = bench_read(&b, p.call.stores[0].data);
    expect_near(label(name, (TileShape)tile, s, "").text, got, twin, p.values, M * D, 1e-6);
    free(got);
  }
  free(r), free(sum), free(x), free(residual_in), free(twin), free(p.values);
  bench_free(&b);
}

// ---- Tests

static void over_shapes(void **state, ProgramName name,
                        void (*check)(Machine *, ProgramName, Shape)) {
  Machine *m = machine(state);
  for (int i = 0; i < SHAPES; i++)
    if (shape_pays(m, shapes[i])) check(m, name, shapes[i]);
}

static void test_plain_nt(void **state) {
  elementwise(state, PROGRAM_PLAIN_NT, identity);
}
static void test_plain_nn(void **state) {
  elementwise(state, PROGRAM_PLAIN_NN, identity);
}
static void test_plain_tn(void **state) {
  elementwise(state, PROGRAM_PLAIN_TN, identity);
}
static void test_residual(void **state) {
  over_shapes(state, PROGRAM_RESIDUAL, residual);
}
static void test_rope(void **state) {
  Machine *m = machine(state);
  for (int i = 0; i < ROPE_CASES; i++) {
    const RopeCase *c = &rope_cases[i];
    if (shape_pays(m, (Shape){c->M, (c->H + 2 * c->KV) * c->d, c->K})) rope(m, c);
  }
}
static void test_swiglu(void **state) {
  over_shapes(state, PROGRAM_SWIGLU, gate_up);
}
static void test_logits(void **state) {
  over_shapes(state, PROGRAM_LOGITS, logits);
}
static void test_swiglu_backward(void **state) {
  over_shapes(state, PROGRAM_SWIGLU_BACKWARD, down_dgrad);
}
static void test_swiglu_backward_y(void **state) {
  over_shapes(state, PROGRAM_SWIGLU_BACKWARD_Y, down_dgrad);
}
static void test_norm_dgrad(void **state) {
  over_shapes(state, PROGRAM_NORM_DGRAD, norm_dgrad);
}
static void test_norm_dgrad_residual(void **state) {
  over_shapes(state, PROGRAM_NORM_DGRAD_RESIDUAL, norm_dgrad);
}

// A recorded call is one kernel, and nothing beside it. The recording is not run.
static void expect_one_kernel(const Machine *m, ProgramName name, TileShape tile,
                              const ProgramCall *call) {
  cudaGraph_t graph;
  size_t nodes = 0;
  CUDA_CHECK(cudaStreamBeginCapture(m->gpu.stream, cudaStreamCaptureModeThreadLocal));
  fused_launch(&m->kernels, name, tile, call, m->gpu.stream);
  CUDA_CHECK(cudaStreamEndCapture(m->gpu.stream, &graph));
  CUDA_CHECK(cudaGraphGetNodes(graph, NULL, &nodes));
  assert_int_equal(nodes, 1);
  cudaGraphNode_t node;
  enum cudaGraphNodeType type;
  CUDA_CHECK(cudaGraphGetNodes(graph, &node, &nodes));
  CUDA_CHECK(cudaGraphNodeGetType(node, &type));
  assert_int_equal(type, cudaGraphNodeTypeKernel);
  CUDA_CHECK(cudaGraphDestroy(graph));
}

static void test_one_kernel(void **state) {
  const Machine *m = machine(state);
  enum { SIDE = 1024 };
  void *memory;
  CUDA_CHECK(cudaMalloc(&memory, SIDE * SIDE * 2));
  const Matrix square = {memory, SIDE, SIDE};
  const RowParts parts = {.data = memory, .stride = SIDE, .parts = 1};
  const ProgramCall call = {.M = SIDE,
                            .N = SIDE,
                            .K = SIDE,
                            .A = memory,
                            .B = memory,
                            .loads = {square, square},
                            .stores = {square, square},
                            .args = {.sumsq = parts,
                                     .s = parts,
                                     .sums = parts,
                                     .period = 1,
                                     .head_dim = 64,
                                     .rotated = SIDE,
                                     .softmax = memory,
                                     .softmax_stride = SIDE}};
  for (int name = 0; name < PROGRAMS; name++)
    for (int tile = 0; tile < TILE_SHAPES; tile++)
      expect_one_kernel(m, (ProgramName)name, (TileShape)tile, &call);
  CUDA_CHECK(cudaFree(memory));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      {"plain_nt_matches_the_reference", test_plain_nt, NULL, NULL, NULL},
      {"plain_nn_matches_the_reference", test_plain_nn, NULL, NULL, NULL},
      {"plain_tn_matches_the_reference", test_plain_tn, NULL, NULL, NULL},
      {"residual_adds_and_leaves_row_sums", test_residual, NULL, NULL, NULL},
      {"rope_rotates_q_and_k_and_not_v", test_rope, NULL, NULL, NULL},
      {"swiglu_stores_z_and_y", test_swiglu, NULL, NULL, NULL},
      {"logits_leave_their_log_sum_exp", test_logits, NULL, NULL, NULL},
      {"swiglu_backward_leaves_dz_and_s", test_swiglu_backward, NULL, NULL, NULL},
      {"swiglu_backward_y_makes_y_again", test_swiglu_backward_y, NULL, NULL, NULL},
      {"norm_dgrad_takes_s_x_away", test_norm_dgrad, NULL, NULL, NULL},
      {"norm_dgrad_residual_adds_in_place", test_norm_dgrad_residual, NULL, NULL, NULL},
      {"a_call_is_one_kernel", test_one_kernel, NULL, NULL, NULL},
  };
  alarm(300); // a kernel whose barriers do not meet never ends; all of this takes half a minute
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
