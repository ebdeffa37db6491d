// The table of programs, and the choice of a product's tile shape. Needs no CUDA.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "kernels/formats.h"
#include "kernels/operations.h"

#ifdef __cplusplus
extern "C" {
#endif

// The table of programs that train runs: PROGRAM_NAME and name, as DEFINE_PROGRAM has it.
// kernels/ops.def says which operation runs which; GRAM and those after it are Muon's. _FP8: the
// same where A and B are FP8; PROMOTED: for a long K.
#define FUSED_PROGRAMS(ROW)                                                                        \
  ROW(RESIDUAL, residual)                                                                          \
  ROW(ROPE, rope)                                                                                  \
  ROW(SWIGLU, swiglu)                                                                              \
  ROW(PROBABILITIES, probabilities)                                                                \
  ROW(SWIGLU_BACKWARD, swiglu_backward)                                                            \
  ROW(NORM_DGRAD, norm_dgrad)                                                                      \
  ROW(NORM_DGRAD_RESIDUAL, norm_dgrad_residual)                                                    \
  ROW(GRAM, gram)                                                                                  \
  ROW(GRAM_TALL, gram_tall)                                                                        \
  ROW(POLYNOMIAL, polynomial)                                                                      \
  ROW(COMMUTING, commuting)                                                                        \
  ROW(APPLY, apply)                                                                                \
  ROW(APPLY_TALL, apply_tall)                                                                      \
  ROW(RESIDUAL_FP8, residual_fp8)                                                                  \
  ROW(RESIDUAL_PROMOTED_FP8, residual_promoted_fp8)                                                \
  ROW(ROPE_FP8, rope_fp8)                                                                          \
  ROW(SWIGLU_FP8, swiglu_fp8)                                                                      \
  ROW(PROBABILITIES_FP8, probabilities_fp8)                                                        \
  ROW(SWIGLU_BACKWARD_FP8, swiglu_backward_fp8)                                                    \
  ROW(NORM_DGRAD_FP8, norm_dgrad_fp8)                                                              \
  ROW(NORM_DGRAD_RESIDUAL_FP8, norm_dgrad_residual_fp8)                                            \
  ROW(NORM_DGRAD_RESIDUAL_PROMOTED_FP8, norm_dgrad_residual_promoted_fp8)

typedef enum ProgramName {
#define ROW(NAME, name) PROGRAM_##NAME,
  FUSED_PROGRAMS(ROW)
#undef ROW
      PROGRAMS,            // also means: a program that is not in the table
  PROGRAM_NONE = PROGRAMS, // of an operation
} ProgramName;

// The shapes of a tile of the product, rows x columns. The columns of a tile write one part of each
// row's statistics. Of wgmma's mainloop two blocks, a cluster, take neighbouring tiles of a column
// and share B.
typedef enum TileShape {
  TILE_128x256, // two warpgroups, 64 rows each, compute and then store together
  TILE_128x192, // two warpgroups in turns: one stores while the other computes
  TILE_128x128, // the same
  TILE_128x64,  // as the first, of programs for few columns (FITS_64)
  WGMMA_SHAPES,
  TILE_64x64 = WGMMA_SHAPES, // mma.sync: a warp's of the four that a block has
  TILE_SHAPES
} TileShape;

// A symmetric product of side x side tiles: of tiles (i, j) and (j, i) one is computed. A cluster
// takes two of a column, and these are the pairs.
static inline HOST_DEVICE int32_t symmetric_pairs(int32_t side) {
  return (side * (side + 1) / 2 + 1) / 2;
}
// The row of tiles of a pair's first or second half, and its column. In each column these are the
// tiles from the diagonal down. Where their number is odd the last row's is computed as its mirror
// instead: those of all columns are the last column's. A half too many lies below the product.
static inline HOST_DEVICE int32_t symmetric_row(int32_t pair, int32_t half, int32_t side,
                                                int32_t *column) {
  int32_t c = 0;
  for (; c < side - 1 && pair >= (side - c) / 2; c++) pair -= (side - c) / 2;
  *column = c;
  if (c < side - 1) return c + 2 * pair + half;
  const int32_t row = side - 1 - 2 * (2 * pair + half);
  return row >= 0 ? row : side;
}

// ---- tiles.c
// The tile shape for a product, by the table of measurements there. A program without figures
// there, or PROGRAMS, is treated as one that only stores its product.
TileShape tile_choose(Mainloop mainloop, ProgramName name, int64_t M, int64_t N, int64_t K);
// One of wgmma's shapes that a program has, by what its epilogue moves: with 64 columns of the
// product `chunks` of 64 columns of bf16. In FP8, where products take half the time, they count
// twice.
TileShape tile_without_figures(const bool has[WGMMA_SHAPES], double chunks, int64_t M, int64_t N,
                               int64_t K);
// True where a program is faster than cuBLASLt's product with the unfused kernels: not where more
// than a fifth of its tiles lies outside of the product (288 columns need 384).
bool tile_pays(Mainloop mainloop, ProgramName name, int64_t M, int64_t N, int64_t K);
// Tiles of wgmma's clusters, two tiles of a column each, of a product; of a symmetric one those
// that are computed.
int32_t tile_clusters(TileShape tile, int64_t M, int64_t N, bool symmetric);
// The tile shape for a batch of products on wgmma's mainloop.
TileShape tile_of_batch(ProgramName name, int64_t batch, int64_t M, int64_t N, int64_t K,
                        bool symmetric);
// Tiles of columns, that is, parts of a row's statistics.
int32_t tile_parts(TileShape tile, int64_t N);

#ifdef __cplusplus
}
#endif
