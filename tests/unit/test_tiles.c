// The choice of tile shapes for the fused kernels (kernels/fused/tiles.c): against what was
// measured (kernels/PERFORMANCE.md), and for every size that a model may have.
#include "base/memory.h"
#include "kernels/fused/programs.h"
#include "tests/support/test.h"

static const int64_t cols[TILE_SHAPES] = {256, 192, 128, 64, 64};

#define NO_KERNEL 1e9

typedef struct Measured {
  ProgramName program;
  int64_t M, N, K;
  double of_shape[WGMMA_SHAPES]; // times cuBLASLt's bare product
} Measured;

// kernels/PERFORMANCE.md's run, all three tile shapes.
static const Measured measured[] = {
    {PROGRAM_ROPE, 16384, 3072, 2048, {1.106, 1.051, 1.097}},
    {PROGRAM_RESIDUAL, 16384, 2048, 2048, {1.103, 1.061, 1.081}},
    {PROGRAM_SWIGLU, 16384, 16384, 2048, {1.135, 1.015, 1.009}},
    {PROGRAM_RESIDUAL, 16384, 2048, 8192, {1.023, 1.035, 1.054}},
    {PROGRAM_NORM_DGRAD, 8192, 2048, 128256, {1.006, 1.126, 1.004}},
    {PROGRAM_NORM_DGRAD_RESIDUAL, 16384, 2048, 16384, {1.020, 1.017, 1.001}},
    {PROGRAM_NORM_DGRAD_RESIDUAL, 16384, 2048, 3072, {1.122, 1.087, 1.089}},
    {PROGRAMS, 3072, 2048, 16384, {1.270, 1.006, 1.036}}, // the bare product, of wgrad
    {PROGRAM_ROPE, 16384, 6144, 4096, {1.099, 1.037, 1.026}},
    {PROGRAM_RESIDUAL, 16384, 4096, 4096, {1.095, 1.084, 1.099}},
    {PROGRAM_SWIGLU, 16384, 28672, 4096, {1.074, 1.011, 1.018}},
    {PROGRAM_RESIDUAL, 16384, 4096, 14336, {1.044, 1.063, 1.040}},
    {PROGRAM_SWIGLU_BACKWARD, 16384, 14336, 4096, {1.131, 0.974, 0.990}},
    {PROGRAM_SWIGLU, 16384, 57344, 8192, {1.024, 1.003, 1.000}},
    {PROGRAM_RESIDUAL, 16384, 8192, 28672, {1.005, 1.001, 0.988}},
    {PROGRAM_SWIGLU_BACKWARD, 16384, 28672, 8192, {1.082, 1.009, 1.013}},
    // FP8, times cuBLASLt's with fast accumulation
    {PROGRAM_ROPE_FP8, 16384, 3072, 2048, {1.182, 1.075, 1.099}},
    {PROGRAM_RESIDUAL_PROMOTED_FP8, 16384, 2048, 2048, {NO_KERNEL, 1.561, 1.546}},
    {PROGRAM_RESIDUAL_PROMOTED_FP8, 16384, 2048, 8192, {NO_KERNEL, 1.172, 1.197}},
    {PROGRAM_SWIGLU_FP8, 16384, 16384, 2048, {1.216, 1.087, 1.139}},
    {PROGRAM_PROBABILITIES_FP8, 8192, 128256, 2048, {1.366, 1.046, 1.054}},
    {PROGRAM_NORM_DGRAD_FP8, 8192, 2048, 128256, {NO_KERNEL, 1.178, 1.065}},
    {PROGRAM_SWIGLU_BACKWARD_FP8, 16384, 8192, 2048, {1.550, 1.432, 1.471}}, // sustained
    {PROGRAM_SWIGLU_BACKWARD_FP8, 16384, 2048, 768, {2.091, 2.174, 2.103}},
    {PROGRAM_NORM_DGRAD_RESIDUAL_PROMOTED_FP8, 16384, 2048, 16384, {NO_KERNEL, 1.163, 1.201}},
    {PROGRAM_NORM_DGRAD_RESIDUAL_PROMOTED_FP8, 16384, 2048, 3072, {NO_KERNEL, 1.464, 1.454}},
};
enum { MEASURED = sizeof measured / sizeof *measured };

// 128x128 is avoided where the others are near, since long runs pay for its loads.
TEST(choice_is_near_the_best_measured) {
  const double allowed = 0.025;
  double worst = 0;
  for (int i = 0; i < MEASURED; i++) {
    const Measured *m = &measured[i];
    const TileShape tile = tile_choose(MAINLOOP_WGMMA, m->program, m->M, m->N, m->K);
    double best = m->of_shape[0];
    for (int t = 1; t < WGMMA_SHAPES; t++)
      if (m->of_shape[t] > 0 && m->of_shape[t] < best) best = m->of_shape[t];
    const double lost = m->of_shape[tile] - best;
    if (lost > worst) worst = lost;
    if (lost > allowed)
      fail_msg("%lld x %lld x %lld: %.3f in the chosen shape, %.3f in the best", (long long)m->M,
               (long long)m->N, (long long)m->K, m->of_shape[tile], best);
  }
  print_message("# at most %.3f of cuBLASLt's time is lost (bound %.3f)\n", worst, allowed);
}

// Programs without figures, by what they move: bench_fused on one H100, alone.
TEST(a_program_without_figures_gets_the_best_shape_that_it_has) {
  const struct {
    double chunks;
    int64_t N, K;
    double of_shape[WGMMA_SHAPES]; // of M 16384
  } programs[] = {
      {3, 2048, 2048, {1.225, 1.188, 1.236, 0}},  // gated_residual
      {3, 4096, 4096, {1.123, 1.110, 1.232, 0}},  // the same
      {4, 2048, 2048, {1.358, 1.336, 1.355, 0}},  // gated_residual_backward
      {4, 4096, 4096, {1.193, 1.174, 1.243, 0}},  // the same
      {4, 8192, 2048, {1.383, 1.193, 1.239, 0}},  // silu_copies_fp8
      {4, 14336, 4096, {1.261, 1.046, 1.102, 0}}, // the same
      {1, 64, 2048, {1.814, 0, 1.865, 1.158}},    // router
      {4, 2048, 2048, {1.395, 0, 1.360, 0}},      // gated_residual_backward, as if without 128x192
  };
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
    bool has[WGMMA_SHAPES];
    int best = TILE_128x128;
    for (int t = 0; t < WGMMA_SHAPES; t++) {
      has[t] = programs[i].of_shape[t] > 0;
      if (has[t] && programs[i].of_shape[t] < programs[i].of_shape[best]) best = t;
    }
    assert_int_equal(
        tile_without_figures(has, programs[i].chunks, 16384, programs[i].N, programs[i].K), best);
  }
}

TEST(every_size_gets_a_shape_with_its_parts) {
  for (int name = 0; name <= PROGRAMS; name++)
    for (int64_t N = 8; N <= 4096; N += 8)
      for (int64_t M = 1; M <= 40000; M = M * 7 + 3) {
        const Mainloop mainloops[] = {MAINLOOP_WGMMA, MAINLOOP_MMA_SYNC};
        for (int i = 0; i < 2; i++) {
          const TileShape tile = tile_choose(mainloops[i], (ProgramName)name, M, N, 288);
          const TileShape narrowest = i == 0 ? TILE_128x128 : TILE_64x64;
          assert_in_range(tile, i == 0 ? 0 : WGMMA_SHAPES, narrowest);
          const int64_t parts = tile_parts(tile, N);
          assert_true(parts * cols[tile] >= N && (parts - 1) * cols[tile] < N);
          assert_true(parts <= tile_parts(narrowest, N));
        }
      }
}

// Each of tiles (i, j) and (j, i) once, and at most half of a pair too many.
TEST(pairs_of_a_symmetric_product_have_every_tile_once) {
  for (int32_t side = 1; side <= 70; side++) {
    char *seen = held(xcalloc((size_t)((side + 1) * (side + 1)), 1));
    int32_t column, outside = 0;
    for (int32_t half = 0; half < 2 * symmetric_pairs(side); half++) {
      const int32_t row = symmetric_row(half / 2, half % 2, side, &column);
      assert_true(row >= 0 && row <= side && column >= 0 && column < side);
      outside += row == side;
      seen[row > column ? row * side + column : column * side + row] += row < side;
    }
    assert_int_equal(outside, side * (side + 1) / 2 % 2);
    for (int32_t i = 0; i < side; i++)
      for (int32_t j = 0; j <= i; j++) assert_int_equal(seen[i * side + j], 1);
  }
}

// The widths of configs/: 288 is the only hidden_size that the tiles do not fit.
TEST(wide_products_pay_and_odd_narrow_ones_do_not) {
  const int64_t fitting[] = {128, 192, 384, 768, 864, 1024, 1536, 2048, 3072, 4096, 8192, 57344};
  for (size_t i = 0; i < sizeof fitting / sizeof *fitting; i++)
    if (!tile_pays(MAINLOOP_WGMMA, PROGRAM_RESIDUAL, 32768, fitting[i], 768))
      fail_msg("%lld columns were said not to pay", (long long)fitting[i]);
  const int64_t wasteful[] = {8, 64, 96, 136, 200, 288, 300};
  for (size_t i = 0; i < sizeof wasteful / sizeof *wasteful; i++)
    if (tile_pays(MAINLOOP_WGMMA, PROGRAM_RESIDUAL, 32768, wasteful[i], 768))
      fail_msg("%lld columns were said to pay", (long long)wasteful[i]);
}
