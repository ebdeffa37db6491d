// Inside the CPU backend: its state, and the operations that backend_cpu.c gathers into a Backend.
// All tensors are `real` (fp32, fp64 in the gradient-check build), and every row statistic has one
// part.
#pragma once
#include "kernels/ops.h"
#include "kernels/program_math.h"

typedef struct Cpu {
  Backend base; // first: a Backend * of this backend is a Cpu *
  OpsConfig config;
  int threads;
  real *rope;    // [max_positions, d/2, 2] cosine and sine
  real *scratch; // [threads, scratch_per_thread] attention's score blocks
  size_t scratch_per_thread;
  real *dy; // [max_tokens, F] down_dgrad's GEMM result
  AdamW hyper;
  StepResult step;                 // the running one
  StepResult results[MAX_RESULTS]; // ended and not yet taken, a ring
  int64_t ended, taken;
} Cpu;

static inline Cpu *cpu_of(Backend *be) {
  return (Cpu *)be;
}

// All storage classes are arrays of real here.
static inline real *reals(const void *tensor) {
  return (real *)(uintptr_t)tensor;
}
// Where a statistic's sums go: one part.
static inline real *sums_of(RowStat *statistic) {
  statistic->parts = 1;
  return reals(statistic->data);
}
static inline real row_rstd(const OpsConfig *c, RowStat sumsq, int64_t m) {
  return rms_rstd(reals(sumsq.data)[m], c->D, (real)c->rms_norm_eps);
}

// A row-major GEMM through CBLAS: C = alpha A B + beta C, C [M, N], A and B as the form says
// (kernels/operations.h), with row strides lda, ldb and ldc.
void gemm_strided(GemmForm form, int64_t M, int64_t N, int64_t K, real alpha, const real *A,
                  int64_t lda, const real *B, int64_t ldb, real beta, real *C, int64_t ldc);
// The same of whole matrices, C = A B + beta C.
void gemm(GemmForm form, int64_t M, int64_t N, int64_t K, const real *A, const real *B, real beta,
          real *C);

// The operations of kernels/ops.h, documented there: cpu_embed and so on.
#define DECLARE_OPERATION(type, name) type cpu_##name;
BACKEND_OPERATIONS(DECLARE_OPERATION)
#undef DECLARE_OPERATION

// head_loss from the logits [M, V] on.
void cpu_loss(Backend *be, int64_t M, RowStat sumsq, const int32_t *targets, act_t *logits,
              double scale, RowStat *s);
// Elements of scratch that a thread's attention needs for sequences of T.
size_t cpu_attention_scratch(int64_t T);

void cpu_set_hyper(Backend *be, const AdamW *hyper);
void cpu_step_begin(Backend *be);
void cpu_step_end(Backend *be);
StepResult cpu_step_result(Backend *be);
void cpu_refresh(Backend *be, const ParamTensor *list, int count);
void cpu_set_updates(Backend *be, int64_t updates);
