// The file that remembers which cuBLASLt algorithm was fastest: one of base/choices.h, with a line
// a problem.
#pragma once
#include <cublasLt.h>
#include "kernels/cuda/gemm.h"

struct GemmPlan {
  GemmProblem problem;
  cublasLtMatmulDesc_t operation; // NULL: not made yet, only remembered
  cublasLtMatrixLayout_t a, b, d; // of cuBLASLt's column-major operands
  cublasLtMatmulAlgo_t algorithm;
  float microseconds; // as timed, 0 = never timed
  // Where this run timed it (not remembered): how many algorithms there were, and the time of the
  // heuristics' first.
  int candidates;
  float first_microseconds;
};

// ${XDG_CACHE_HOME:-~/.cache}/coda/gemm-<GPU>-<versions>.txt in fresh memory, or NULL where there
// is no home.
char *gemm_cache_default_path(const Gpu *gpu);

// The remembered algorithms, as plans without descriptors (problem, algorithm, microseconds). Fresh
// memory; NULL and *count = 0 where there is nothing to be had, which is never an error.
GemmPlan *gemm_cache_read(const char *path, const Gpu *gpu, int *count);

// Writes all plans that have been timed, atomically.
int gemm_cache_write(const char *path, const Gpu *gpu, const GemmPlan *plans, int count,
                     Error *err);

bool gemm_same_problem(const GemmProblem *a, const GemmProblem *b);
