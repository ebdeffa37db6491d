// Inside the CPU backend: its state, and the operations that backend.c gathers into a Backend.
// All tensors are `real` (fp32, fp64 in the gradient-check build), and every row statistic has one
// part.
#pragma once
#include <assert.h>
#include "base/vectors.h"
#include "kernels/bf16_products.h"
#include "kernels/ops.h"
#include "kernels/math.h"

// The scaling of one tensor's copies.
typedef struct CpuScaling {
  ScalingKind kind;
  ScalingState state;
  float largest; // |value| since the last update, before the tensor's scale
} CpuScaling;

// The moments of a step that is observed.
typedef struct CpuMarks {
  int count, most;
  Mark list[]; // [most]
} CpuMarks;

typedef struct Cpu {
  Backend base; // first: a Backend * of this backend is a Cpu *
  int threads;
  real *rope;    // [max_positions, d/2, 2] cosine and sine
  real *scratch; // [threads, scratch_per_thread] attention's score blocks
  size_t scratch_per_thread;
  struct {
    int64_t *ends; // [count] rows before each one's end
    int64_t count; // 0: none are set
  } documents;
  real *dy;               // [max_tokens, F] down_dgrad's GEMM result
  Bf16Products *products; // NULL: products are in fp32
  CpuScaling *scalings;   // [scaling_count]
  AdamW hyper;
  double gradient_factor; // of the running update
  real *muon;             // muon_scratch of the lists that muon has seen
  size_t muon_bytes;
  double began_ms;                 // clock_start
  StepResult step;                 // the running one
  StepResult results[MAX_RESULTS]; // ended and not yet read, a ring
  int64_t ended, taken;
  int32_t tokens[MAX_RESULTS]; // of Services.token_take
  CpuMarks *marks;
} Cpu;

static inline Cpu *cpu_of(Backend *be) {
  return (Cpu *)be;
}

static inline void mark_now(const Cpu *cpu, int what) {
  CpuMarks *m = cpu->marks;
  assert(m->count < m->most);
  m->list[m->count++] = (Mark){what, now_ms()};
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
static inline real row_rstd(const Spec *c, RowStat sumsq, int64_t m) {
  return rms_rstd(reals(sumsq.data)[m], c->D, (real)c->rms_norm_eps);
}

// Number of pairs of z's columns that are processed together; whole groups of 8.
enum { PAIR_BLOCK = 64 };

double row_sum_of_squares(int64_t n, const real *values);
// Multiplies values [n] by factor.
void scale_row(int64_t n, real factor, real *values);
// Rotates the pairs of a row's first `columns`, heads of d each. angles [d / 2, 2]: cosine and
// sine; direction: 1, or -1 to rotate back.
void rotate_heads(int64_t columns, int64_t d, const real *angles, real direction, real *row);
// The largest of values [n] that is not NaN; -INFINITY if there is none.
real row_largest(int64_t n, const real *values);

// A row-major GEMM by oneDNN: C = alpha A B + beta C, C [M, N], A and B as the form says
// (kernels/operations.h), with row strides lda, ldb and ldc.
void gemm_strided(GemmForm form, int64_t M, int64_t N, int64_t K, real alpha, const real *A,
                  int64_t lda, const real *B, int64_t ldb, real beta, real *C, int64_t ldc);
// The same of whole matrices, C = A B + beta C.
void gemm(GemmForm form, int64_t M, int64_t N, int64_t K, const real *A, const real *B, real beta,
          real *C);
// Has oneDNN write its machine code, which it else does in the first products, and where memory
// is refused then it aborts. Calls out_of_memory instead. Sets OpenMP's threads to one.
void gemm_warm_up(void);
// C = A B of operands, or C + A B; C [M, N] with rows of ldc, A and B as the form says. It is in
// bf16 where the backend has such products. Always in fp32 are the products of a single row, which
// are limited by reading B, those of attention, and those of FP8 copies.
void multiply(const Cpu *cpu, GemmForm form, int64_t M, int64_t N, int64_t K, Operand A, Operand B,
              bool add, real *C, int64_t ldc);

// Whether the values of t's master are bf16.
static inline bool cpu_rounds_master(const Cpu *cpu, const ParamTensor *t) {
  return cpu->base.spec.masters == MASTERS_BF16 && !t->vector;
}

// ---- FP8. Copies hold real values, rounded, in the matrix's own order: by_row [rows, cols],
// by_col its transpose. A product reads the copies of two operands that have them, else their data.

// q of row m of x, and r / q, by which a consumer of x multiplies that row.
static inline real scale_of_row(Operand x, int64_t m) {
  return x.row_scale ? reals(x.row_scale)[m] : 1;
}
static inline real row_factor(const Spec *c, Operand x, RowStat sumsq, int64_t m) {
  return row_rstd(c, sumsq, m) / scale_of_row(x, m);
}
// The memory of an operand's values [M, N] before quantize: its data, or by_row.
static inline real *values_of(Operand x) {
  return reals(x.data ? (void *)x.data : (void *)x.by_row);
}
// x's q from the sums of squares of the rows one addition earlier, if it has memory for them.
void leave_row_scales(const Cpu *cpu, int64_t M, Operand x, RowStat previous);
// Writes the copies of x [M, N] from its values, and records the largest of them.
void quantize(Cpu *cpu, int64_t M, int64_t N, Operand x, const real *values);
// The same of dlogits [M, V], rounded stochastically, with the scale that follows from grad_scale.
void leave_dlogits_copies(Cpu *cpu, int64_t M, Operand dlogits, const real *values,
                          double grad_scale);
// The same for a weight, whose scale is set if there is none yet.
void leave_weight_copies(Cpu *cpu, int64_t N, int64_t K, Operand W, const real *values);
// The common part of all backwards of a norm: dx holds dz'' W' + residual / q and becomes q (dx -
// (r / D) s x); also writes its copies.
void finish_norm_dgrad(Cpu *cpu, int64_t M, Operand x, RowStat sumsq, RowStat s, Operand dx);

void scalings_open(Cpu *cpu);
// At the end of a step: writes into its result which tensors had values beyond their scale's reach,
// and, where the update is applied, updates the delayed scales.
void scalings_update(Cpu *cpu);
void cpu_scalings_discard(Backend *be);
void cpu_scalings_read(Backend *be, ScalingState *to_host);
void cpu_scalings_write(Backend *be, const ScalingState *from_host);

// The operations of kernels/ops.h, documented there: cpu_embed and so on.
#define OP(name, type, function, ...) type cpu_##function;
#define GENERATION(name, type) type cpu_##name;
#include "kernels/ops.def"
#undef OP
#undef GENERATION

// ChooseOp's choice by the uniform draw u in [0, 1), of d's scale, top_p and top_k alone.
//   logits [V] in, overwritten
int32_t choose_token(float *logits, int64_t V, const Draw *d, double u);
// logits [M, V] = r (x W'^T), rows of padded_vocab: the first part of head_loss.
void cpu_logits(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *logits);
// The rest of head_loss: it overwrites the logits [M, V] with dlogits.
void cpu_loss(Backend *be, int64_t M, Operand x, RowStat sumsq, const int32_t *targets,
              act_t *logits, double scale, RowStat *s);
// Elements of scratch per thread for the attention of sequences of T.
size_t cpu_attention_scratch(int64_t T);

// ---- The update of a tensor; t is list[index], and gradients are multiplied by scale.
// Row n of dW; it is in `made` [cols] where it has to be computed from other arrays.
const real *gradient_row(const ParamTensor *list, const ParamTensor *t, int64_t n, real *made);
// Rounds elements `first` and following of a tensor's master; the step used the weights as they
// were before. key: master_key of the update and tensor.
void round_masters(int64_t count, int64_t first, uint32_t key, real *W);
// Scales the step's loss and norm, and decides whether the update is applied and what its gradients
// are multiplied by.
void decide_update(Cpu *cpu);
// Bytes of scratch for the parts of a list; 0 where there are none.
size_t muon_scratch(const ParamTensor *list, int count);
// Newton-Schulz: singular values of X [rows, cols] from 0.002 of its norm on become 0.68 to 1.21,
// and 0 stays 0. The same bits for any number of threads.
//   scratch [orthogonalize_scratch]
void orthogonalize(int64_t rows, int64_t cols, real *X, real *scratch);
size_t orthogonalize_scratch(int64_t rows, int64_t cols);

void cpu_set_hyper(Backend *be, const AdamW *hyper);
void cpu_step_begin(Backend *be);
void cpu_step_end(Backend *be);
void cpu_clock_start(Backend *be);
StepResult cpu_step_result(Backend *be);
void cpu_refresh(Backend *be, const ParamTensor *list, int count);
void cpu_set_updates(Backend *be, int64_t updates);
void cpu_set_documents(Backend *be, const int32_t *lengths, int64_t count);
