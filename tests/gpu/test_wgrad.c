// Weight gradients whose product also does what a pass over them would: the programs in every tile
// shape against the CPU.
#include "tests/gpu/program_rig.h"

#include <unistd.h>

#include "kernels/unfused/unfused.h"
#include "tests/gpu/norm_weights.h"

static const Shape shapes[] = {
    {8, 8, 8},         // a corner of one tile
    {72, 136, 77},     // tails in all three
    {200, 328, 1000},  // 16 rows of a part, of which 8 exist
    {1096, 1000, 333}, // stages that are no multiple of the ring
    {4104, 200, 130},  // 17 rows of cluster tiles: two groups of 8, and one
    {8192, 2048, 256}, // several tiles a block, so that every ring wraps
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int64_t parts_of(int64_t rows) {
  return (rows + FINISHED_ROWS - 1) / FINISHED_ROWS;
}

// Sums over 16 rows each of the product times the folded weight.
static float *column_sums(const float *product, const float *folded, Shape s) {
  float *sums = floats(parts_of(s.M) * s.N);
  for (int64_t part = 0; part < parts_of(s.M); part++)
    for (int64_t k = 0; k < s.N; k++) {
      double sum = 0;
      for (int64_t n = part * FINISHED_ROWS; n < s.M && n < (part + 1) * FINISHED_ROWS; n++)
        sum += (double)product[n * s.N + k] * (double)folded[n * s.N + k];
      sums[part * s.N + k] = (float)sum;
    }
  return sums;
}

// Sums over 16 rows of a tile each of the squares of what was stored.
static float *squares_of(const float *stored, Shape s, int64_t tile_cols) {
  const int64_t tiles = (s.N + tile_cols - 1) / tile_cols;
  double *sums = xcalloc((size_t)(parts_of(s.M) * tiles), sizeof *sums);
  for (int64_t i = 0; i < s.M * s.N; i++)
    sums[i / s.N / FINISHED_ROWS * tiles + i % s.N / tile_cols] +=
        (double)stored[i] * (double)stored[i];
  float *squares = floats(parts_of(s.M) * tiles);
  for (int64_t i = 0; i < parts_of(s.M) * tiles; i++) squares[i] = (float)sums[i];
  free(sums);
  return squares;
}

static void wgrad(Machine *m, ProgramName name, Shape s) {
  const bool folded = name == PROGRAM_WGRAD_FOLDED;
  const int64_t count = s.M * s.N, most = parts_of(s.M) * tile_parts(TILE_128x128, s.N);
  Bench b = {.be = &m->memory};
  Product p = product_new(&b, GEMM_TN, s, 1);
  float *W = random_bf16(count, 1, "W"), *norm = norm_weights(s.N),
        *sums = column_sums(p.values, W, s);
  for (int64_t i = 0; i < count && folded; i++)
    if (!norm_weight_is_weak(norm[i % s.N])) p.values[i] *= norm[i % s.N];
  float *twin = rounded_copy(p.values, count);
  p.call.stores[0] = matrix_out(&b, s.M, s.N);
  p.call.args.squares = fp32_buffer(&b, most, NULL);
  if (folded) {
    p.call.loads[0] = matrix_in(&b, s.M, s.N, W);
    p.call.args.norm = fp32_buffer(&b, s.N, norm);
    p.call.args.column_sums = fp32_buffer(&b, parts_of(s.M) * s.N, NULL);
  }
  for (int tile = 0; tile < TILE_SHAPES; tile++) {
    if (!tile_offered(name, (TileShape)tile)) continue;
    RUN_TWICE(&b, launch(m, name, (TileShape)tile, &p.call));
    float *got = bench_read(&b, p.call.stores[0].data);
    expect_near(label(name, (TileShape)tile, s, "").text, got, twin, p.values, count, 1e-6);
    const int64_t parts = parts_of(s.M) * tile_parts((TileShape)tile, s.N);
    float *squares = squares_of(got, s, fused_program(name)->kernels[tile].cols),
          *got_squares = bench_read(&b, p.call.args.squares);
    expect_near(label(name, (TileShape)tile, s, "squares").text, got_squares, squares, squares,
                parts, 1e-6);
    expect_unwritten("beyond the squares", got_squares + parts, most - parts);
    if (folded) {
      float *got_sums = bench_read(&b, p.call.args.column_sums);
      expect_near(label(name, (TileShape)tile, s, "columns").text, got_sums, sums, sums,
                  parts_of(s.M) * s.N, 5e-6);
      free(got_sums);
    }
    free(got), free(squares), free(got_squares);
  }
  free(W), free(norm), free(sums), free(twin), free(p.values);
  bench_free(&b);
}

static void over_shapes(void **state, ProgramName name) {
  Machine *m = machine(state);
  for (int i = 0; i < SHAPES; i++)
    if (shape_pays(m, shapes[i])) wgrad(m, name, shapes[i]);
}
static void test_plain(void **state) {
  over_shapes(state, PROGRAM_WGRAD);
}
static void test_folded(void **state) {
  over_shapes(state, PROGRAM_WGRAD_FOLDED);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      {"wgrad_leaves_the_sum_of_squares", test_plain, NULL, NULL, NULL},
      {"wgrad_folded_unfolds_and_leaves_column_sums", test_folded, NULL, NULL, NULL},
  };
  alarm(120); // a kernel whose barriers do not meet never ends
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
