// Epilogue programs as C sees them. A program is a GEMM with everything around it in one kernel:
//     product = A B^T (fp32)  ->  epilogue, tile by tile, in registers  ->  tiles, row sums
// programs/NAME.cu holds a program, the table in programs.h names it, program.c launches it;
// kernels/README.md explains how to write one.
#pragma once
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include "base/error.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"
#include "kernels/fused/programs.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  MAX_TILES = 2,     // operands that a program reads, or writes, tile by tile
  CLUSTER = 2,       // thread blocks that share B
  DEPTH_BYTES = 128, // of K that A and B come in at a time: one swizzle atom
  BLOCK_THREADS = 3 * 128,
};

// A row-major matrix: bf16, or FP8 where it is a copy. A program says which part of it goes with a
// tile of the product.
typedef struct Matrix {
  const void *data;   // at a 16-byte boundary; written where it is an output
  int64_t rows, cols; // rows are whole 16 bytes
} Matrix;

// Of a row's values in one tile of columns, the largest, and the sum of exp(value - largest).
typedef struct MaxSum {
  float max, sum;
} MaxSum;

// The params of programs that rotate (Rotated in bases.cuh).
enum { ROPE_FIRST, ROPE_PERIOD, ROPE_HEAD_DIM, ROPE_ROTATED };

// The arguments that programs read and write besides tiles. Each program's file says which of these
// it uses, and names its params.
typedef struct ProgramArgs {
  RowStat in[2];          // where RMSNorm's r is needed, in[0] has the sums of squares
  RowStat out[2];         // parts >= tile_parts(tile, N): those beyond become neutral, 0 of a sum;
                          // or ColumnSum's, as it says
  float inverse_D, eps;   // r = rsqrt(sum of squares * inverse_D + eps)
  const void *columns[2]; // vectors over the product's columns, [N], fp32 or bf16
  union {
    int32_t i;
    float f;
  } params[4];
  // FP8
  const Scaling *a, *b;   // of A and B: the product is a->inverse b->inverse times the cores' sums
  Scaling *copies;        // of the copies: scale is read, maxima are raised; NULL: there are none
  const float *row_scale; // [M] q of RMSNorm's rows (kernels/operand.h), NULL: 1
  float *row_scale_out;   // [M] of the rows that are copied, or NULL
  const float *factors;   // [batch] of batched programs, NULL: 1
} ProgramArgs;

// A kernel's arguments besides A, B and the product's size.
typedef struct EpilogueOperands {
  CUtensorMap loads[MAX_TILES], stores[MAX_TILES];
  ProgramArgs args;
  CUtensorMap copies[2];
  bool copied[2];       // there is one
  int32_t batch, tiles; // of a batched program; tiles of clusters, of one matrix
} EpilogueOperands;

typedef struct ProgramCall {
  int64_t M, N, K;            // each below 2^31 - 512
  const void *A, *B;          // stored as the program's form says, rows of whole 16 bytes
  int64_t stride_a, stride_b; // elements from one row to the next; 0 = their length
  Matrix loads[MAX_TILES], stores[MAX_TILES]; // as many as the program has
  // FP8 copies of the program's result, in the order of kernels/formats.h: by rows [M, n], by
  // columns [n, M]; sides in whole 16s, rows of the second by_col_stride apart, 0 = M. A copy whose
  // data is NULL is not written.
  Matrix copies[2];
  int64_t by_col_stride;
  // Batched programs: every matrix above is so many, one behind the other.
  int64_t batch;
  ProgramArgs args;
} ProgramCall;

// A program in one tile shape.
typedef struct ProgramKernel {
  const void *kernel;                             // NULL where it has none in this shape
  int32_t rows, cols;                             // of the tile
  int32_t stages;                                 // operand tiles in flight
  int32_t slots;                                  // epilogue chunks in flight, of each warpgroup
  int32_t shared_bytes;                           // dynamic
  int32_t producer_registers, consumer_registers; // a thread, after they were dealt out
} ProgramKernel;

typedef struct Program {
  const char *name;
  GemmForm form;
  GemmFormats formats; // FP8 is for GEMM_NT alone: K along the rows of both, in the order of fp8.h
  int32_t depth;       // elements of K that come at a time
  int32_t columns;     // of the product in a step
  // Of a chunk of 64 rows, which goes with a step: 64, 32 or 0 = none.
  int32_t load_cols[MAX_TILES], store_cols[MAX_TILES], copy_cols;
  bool batched, symmetric;
  ProgramKernel kernels[TILE_SHAPES];
} Program;

// A program prepared for one GPU.
typedef struct OpenProgram {
  const Program *program;
  PFN_cuTensorMapEncodeTiled_v12000 encode;
  int32_t clusters[WGMMA_SHAPES]; // that the GPU runs at once
  bool mma_sync;                  // it runs the program in this mainloop
} OpenProgram;

// The programs of the table in programs.h.
typedef struct FusedKernels {
  Mainloop mainloop;
  OpenProgram programs[PROGRAMS];
} FusedKernels;

const Program *fused_program(ProgramName name);

// Resolves the requested mainloop, never to MAINLOOP_AUTO: 0, or -1 and a sentence if this GPU does
// not support it.
int fused_mainloop(Mainloop asked, const Gpu *gpu, Mainloop *taken, Error *err);
// 0, or -1 and why this GPU or driver cannot run them. There is nothing to close.
int fused_kernels_open(FusedKernels *kernels, Mainloop mainloop, const Gpu *gpu, Error *err);
// In the tile shapes of a mainloop; MAINLOOP_AUTO: in all that this GPU can run.
int fused_program_open(OpenProgram *open, const Program *program, Mainloop mainloop, const Gpu *gpu,
                       Error *err);

// True if this GPU runs the program in this shape: only Hopper runs wgmma's, and FP8 needs compute
// capability 8.9.
static inline bool fused_runs_in(const OpenProgram *open, int tile) {
  return tile < WGMMA_SHAPES ? open->clusters[tile] > 0 : open->mma_sync;
}

// The tile shape for a program that is not in the table of programs.h, of those that it has here.
TileShape fused_tile(const OpenProgram *open, int64_t M, int64_t N, int64_t K);

// Only launches. `tile` as tile_choose or fused_tile says, or another that was opened. A call that
// no program can serve (a size of 2^31, a matrix not at 16-byte boundaries) ends the process with a
// sentence.
void fused_launch(const OpenProgram *open, TileShape tile, const ProgramCall *call,
                  cudaStream_t stream);

#ifdef __cplusplus
}
#endif
