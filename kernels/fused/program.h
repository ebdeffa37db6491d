// Epilogue programs as C sees them. A program is a GEMM with everything around it in one kernel:
//     product = A B^T (fp32)  ->  epilogue, tile by tile, in registers  ->  bf16 tiles, row sums
// programs/NAME.cu holds a program, the table in programs.h names it, program.c launches it.
// kernels/README.md explains.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include "base/error.h"
#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/fused/programs.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  MAX_TILES = 2, // operands that a program reads, or writes, tile by tile
  CLUSTER = 2,   // thread blocks that share B
  DEPTH = 64,    // elements of K that A and B come in at a time: one 128-byte swizzle atom
  BLOCK_THREADS = 3 * 128,
};

// A bf16 matrix, row-major. A program says which part of it goes with a tile of the product.
typedef struct Matrix {
  const void *data;   // at a 16-byte boundary; written where it is an output
  int64_t rows, cols; // cols a multiple of 8
} Matrix;

// One float a row and part, [parts, stride]: the producer of a statistic leaves parts, its consumer
// adds them up.
typedef struct RowParts {
  float *data;
  int64_t stride; // at least M
  int32_t parts;
} RowParts;

// Of a row's values in one tile of columns: the largest, and the sum of exp(value - largest).
typedef struct MaxSum {
  float max, sum;
} MaxSum;

// What programs read and write besides tiles. Each program's file says which of these it uses.
typedef struct ProgramArgs {
  RowParts sumsq; // in: of the rows of A; r = rsqrt(sum of parts / D + eps)
  float inverse_D, eps;
  RowParts s;    // in: sums over the rows of dz' z, for RMSNorm's backward
  RowParts sums; // out: a part a tile of columns; parts beyond the last tile become 0
  // rope: row m is at position first + m % period; columns below rotated are heads of head_dim
  int32_t first, period, head_dim, rotated;
  // logits
  MaxSum *softmax;        // [tiles of columns, stride] out, or NULL
  int64_t softmax_stride; // at least M
} ProgramArgs;

// What a kernel gets beside A, B and the product's size: the descriptors of the call's tiles, and
// the rest.
typedef struct EpilogueOperands {
  CUtensorMap loads[MAX_TILES], stores[MAX_TILES];
  ProgramArgs args;
} EpilogueOperands;

typedef struct ProgramCall {
  int64_t M, N, K;   // each below 2^31 - 512
  const void *A, *B; // bf16, stored as the program's form says, rows of whole 16 bytes
  Matrix loads[MAX_TILES], stores[MAX_TILES]; // as many as the program has
  ProgramArgs args;
} ProgramCall;

// A program in one tile shape.
typedef struct ProgramKernel {
  const void *kernel;
  int32_t rows, cols;                             // of the tile
  int32_t stages;                                 // operand tiles under way
  int32_t slots;                                  // epilogue chunks under way, of each warpgroup
  int32_t shared_bytes;                           // dynamic
  int32_t producer_registers, consumer_registers; // a thread, after they were dealt out
} ProgramKernel;

typedef struct Program {
  const char *name;
  GemmForm form;
  int32_t load_cols[MAX_TILES], store_cols[MAX_TILES]; // of a chunk of 64 rows: 64, 32 or 0 = none
  ProgramKernel kernels[TILE_SHAPES];
} Program;

// The kernels made ready for one GPU.
typedef struct FusedKernels {
  CUresult (*encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                     const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                     CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                     CUtensorMapFloatOOBfill);
  int32_t clusters[PROGRAMS][TILE_SHAPES]; // that the GPU runs at once
} FusedKernels;

const Program *fused_program(ProgramName name);

// 0, or -1 and a sentence: the kernels need compute capability 9.0.
int fused_kernels_check(int major, int minor, Error *err);
// 0, or -1 and why this GPU or driver cannot run them.
int fused_kernels_open(FusedKernels *kernels, const Gpu *gpu, Error *err);

// Only launches. `tile` as tile_choose says, or another.
void fused_launch(const FusedKernels *kernels, ProgramName name, TileShape tile,
                  const ProgramCall *call, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
