// The choice of a product's tile shape.
//
// Time is roughly rounds x columns x (1 + exposed): the clusters take their tiles in rounds, the
// last of which may be almost empty, and a tile costs its columns. `exposed` is the part of a
// shape's epilogue that is not hidden: 128x192, in which two warpgroups take turns, hides it best
// and is the reference; 128x256 stops multiplying while it stores, a cost that does not grow with
// K; 128x128 loads half again as many operands for a product. The figures are fitted to
// tests/bench/bench_fused.c on one H200 (kernels/PERFORMANCE.md): they predict its ratios to within
// 2 %.
#include "kernels/fused/programs.h"

enum { CLUSTERS = 66, CLUSTER_ROWS = 256 }; // of a GPU with 132 multiprocessors

typedef struct Exposed {
  double of_256;           // divided by K
  double of_128, of_128_k; // the first as it is, the second divided by K
  double of_192;           // as it is
} Exposed;
#define NONE 1e30 // the program has no kernel in this shape

static const Exposed exposed[PROGRAMS + 1] = {
    [PROGRAM_RESIDUAL] = {150, 0.04, 60, 0},
    [PROGRAM_ROPE] = {180, 0.04, 100, 0},
    [PROGRAM_SWIGLU] = {270, 0.04, 100, 0},
    [PROGRAM_PROBABILITIES] = {390, 0.04, 100, 0}, // fitted to logits with their log-sum-exp
    [PROGRAM_SWIGLU_BACKWARD] = {500, 0.04, 200, 0},
    [PROGRAM_NORM_DGRAD] = {300, 0.04, 100, 0},
    [PROGRAM_NORM_DGRAD_RESIDUAL] = {300, 0.04, 100, 0},
    [PROGRAM_GRAM] = {NONE, 0.04, 20, NONE}, // symmetric: one shape
    [PROGRAM_GRAM_TALL] = {NONE, 0.04, 20, NONE},
    [PROGRAM_POLYNOMIAL] = {NONE, 0.04, 20, NONE},
    [PROGRAM_COMMUTING] = {NONE, 0.04, 20, NONE},
    // FP8; promoted programs have no turns in any shape
    [PROGRAM_RESIDUAL_FP8] = {NONE, 0.04, 100, NONE}, // one shape: nothing is chosen by it
    [PROGRAM_RESIDUAL_PROMOTED_FP8] = {NONE, 0.04, 0, 0},
    [PROGRAM_ROPE_FP8] = {204, 0.028, 0, 0},
    [PROGRAM_SWIGLU_FP8] = {396, 0.02, 75, 0},
    [PROGRAM_PROBABILITIES_FP8] = {485, 0.006, 0, 0}, // the same
    [PROGRAM_SWIGLU_BACKWARD_FP8] = {338, 0.04, -25, 0}, // sustained
    [PROGRAM_NORM_DGRAD_FP8] = {NONE, 0.02, 0, 0},
    [PROGRAM_NORM_DGRAD_RESIDUAL_FP8] = {NONE, 0.04, 100, NONE}, // the same
    [PROGRAM_NORM_DGRAD_RESIDUAL_PROMOTED_FP8] = {NONE, 0.086, -203, 0},
    [PROGRAMS] = {85, 0.04, 20, 0}, // the product alone
};

static int64_t tile_cols(TileShape tile) {
  static const int64_t cols[TILE_SHAPES] = {[TILE_128x256] = 256,
                                            [TILE_128x192] = 192,
                                            [TILE_128x128] = 128,
                                            [TILE_128x64] = 64,
                                            [TILE_64x64] = 64};
  return cols[tile];
}

int32_t tile_parts(TileShape tile, int64_t N) {
  return (int32_t)((N + tile_cols(tile) - 1) / tile_cols(tile));
}

bool tile_pays(Mainloop mainloop, ProgramName name, int64_t M, int64_t N, int64_t K) {
  const TileShape tile = tile_choose(mainloop, name, M, N, K);
  const int64_t cols = tile == TILE_64x64 ? 2 * tile_cols(tile) : tile_cols(tile); // of a block
  return (double)((N + cols - 1) / cols * cols) <= 1.25 * (double)N;
}

static const Exposed *exposed_of(ProgramName name) {
  return &exposed[exposed[name].of_256 > 0 ? name : PROGRAMS];
}

// Of `tiles` in each shape, for a product with this K.
static TileShape fastest(const Exposed *e, int64_t K, const int64_t *tiles) {
  const double extra[WGMMA_SHAPES] = {[TILE_128x256] = e->of_256 / (double)K,
                                      [TILE_128x192] = e->of_192,
                                      [TILE_128x128] = e->of_128 + e->of_128_k / (double)K,
                                      [TILE_128x64] = NONE}; // few programs have it
  TileShape best = TILE_128x192;
  double least = 0;
  for (int tile = 0; tile < WGMMA_SHAPES; tile++) {
    const int64_t rounds = (tiles[tile] + CLUSTERS - 1) / CLUSTERS;
    const double time = (double)(rounds * tile_cols((TileShape)tile)) * (1 + extra[tile]);
    if (least == 0 || time < least) least = time, best = (TileShape)tile;
  }
  return best;
}

TileShape tile_without_figures(const bool has[WGMMA_SHAPES], double chunks, int64_t M, int64_t N,
                               int64_t K) {
  const Exposed *product = &exposed[PROGRAMS];
  const Exposed e = {.of_256 = has[TILE_128x256] ? product->of_256 * chunks : NONE,
                     .of_128 = product->of_128,
                     .of_128_k = product->of_128_k * chunks,
                     .of_192 = has[TILE_128x192] ? 0 : NONE};
  int64_t tiles[WGMMA_SHAPES];
  if (has[TILE_128x64] && N <= tile_cols(TILE_128x64)) return TILE_128x64;
  for (int tile = 0; tile < WGMMA_SHAPES; tile++)
    tiles[tile] = tile_clusters((TileShape)tile, M, N, false);
  return fastest(&e, K, tiles);
}

TileShape tile_choose(Mainloop mainloop, ProgramName name, int64_t M, int64_t N, int64_t K) {
  if (mainloop == MAINLOOP_MMA_SYNC) return TILE_64x64;
  int64_t tiles[WGMMA_SHAPES];
  for (int tile = 0; tile < WGMMA_SHAPES; tile++)
    tiles[tile] = tile_clusters((TileShape)tile, M, N, false);
  return fastest(exposed_of(name), K, tiles);
}

int32_t tile_clusters(TileShape tile, int64_t M, int64_t N, bool symmetric) {
  const int32_t down = (int32_t)((M + CLUSTER_ROWS - 1) / CLUSTER_ROWS),
                across = tile_parts(tile, N);
  return symmetric ? symmetric_pairs(across) : down * across;
}

TileShape tile_of_batch(ProgramName name, int64_t batch, int64_t M, int64_t N, int64_t K,
                        bool symmetric) {
  int64_t tiles[WGMMA_SHAPES];
  for (int tile = 0; tile < WGMMA_SHAPES; tile++)
    tiles[tile] = batch * tile_clusters((TileShape)tile, M, N, symmetric);
  return fastest(exposed_of(name), K, tiles);
}
