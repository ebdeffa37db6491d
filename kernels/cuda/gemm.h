// GEMMs through cuBLASLt. A problem has one plan: its descriptors and its algorithm, made before
// the first step, so that a step does nothing on the host but one cublasLtMatmul a GEMM. Operands
// are bf16 or FP8, sums fp32.
//
// gemm_prepare times every algorithm that the heuristics return, on random data of the real shape,
// and keeps the fastest; the choice is remembered in
// ${XDG_CACHE_HOME:-~/.cache}/coda/gemm-<GPU>-<versions>.txt. A cache that is damaged, or belongs
// to another GPU, driver or library, is ignored and rewritten. A problem that was not prepared
// (generation's shapes) gets the remembered algorithm, or the heuristics' first choice, when it
// first occurs.
#pragma once
#include "kernels/cuda/choices.h"
#include "kernels/cuda/gpu.h"
#include "kernels/operations.h"

typedef enum GemmFormats { // of A and B
  GEMM_BF16,
  GEMM_E4M3,
} GemmFormats;

// D = alpha A B + (add ? beta C : 0), D and C [M, N]. FP8: the form is GEMM_NT, N and K are
// multiples of 16, M is any number, all pointers are at 16-byte boundaries.
typedef struct GemmProblem {
  int64_t M, N, K;
  GemmForm form;
  GemmFormats formats;
  // FP8: partial sums of 128 of K are added up in fp32. Without it only the tensor cores add, up to
  // 8 % faster; but they truncate: a sum of one sign is 3 % too small at K = 2048, 38 % at 32768.
  bool accurate;
  bool out_fp32; // C and D fp32, otherwise bf16
  bool add;
  int alignment; // of all pointers, in bytes: 2, 4, 8 or 16
  // Elements from one row, as stored, to the next; 0 = the row's length. C's is D's.
  int64_t lda, ldb, ldd;
  int64_t batch;     // so many products, each operand's matrices one behind the other; 0: 1
  float alpha, beta; // 0: 1
} GemmProblem;

// The algorithm that a problem got.
enum { ALGORITHM_WORDS = 8 };
typedef struct GemmChoice {
  uint64_t algorithm[ALGORITHM_WORDS]; // a cublasLtMatmulAlgo_t
  float microseconds;                  // as timed, 0 = never timed
} GemmChoice;

typedef struct GemmPlan GemmPlan; // gemm.c

typedef struct Gemm {
  Gpu *gpu; // not owned
  GemmPlan *plans;
  int count, capacity;
  Choices choices;
} Gemm;

// cache_path: the file, or NULL for the place named above; "" = keep no cache. Reads it and
// makes no plan yet.
void gemm_open(Gemm *gemm, Gpu *gpu, const char *cache_path);
void gemm_close(Gemm *gemm);

// Makes plans with timed algorithms. It allocates memory for the operands meanwhile; where it
// cannot, or where the heuristics return only one algorithm, nothing is timed.
int gemm_prepare(Gemm *gemm, const GemmProblem *problems, int count, Error *err);

// Runs on the GPU's stream. C is read where problem.add is set, and may be D; but then cuBLASLt
// rounds the product to bf16 before it adds (13.1 on an H200, every algorithm), which it does not
// do where C and D differ. problem.alignment is not read: it follows from the pointers.
void gemm_run(Gemm *gemm, GemmProblem problem, const void *A, const void *B, const void *C,
              void *D);

// The same of FP8 copies: D = inverse_A inverse_B A B. The inverse scales are read on the device;
// recorded in a graph, a product keeps the pointers that it was launched with.
//   inverse_A, inverse_B [1]
void gemm_run_fp8(Gemm *gemm, GemmProblem problem, const void *A, const float *inverse_A,
                  const void *B, const float *inverse_B, const void *C, void *D);

// For tests and benchmarks: the algorithm of a prepared problem, or NULL.
const GemmChoice *gemm_find(const Gemm *gemm, const GemmProblem *problem);
