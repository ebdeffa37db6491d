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
// R = (H + 2 KV) d
static inline int64_t packed_width(const OpsConfig *c) {
  return (c->H + 2 * c->KV) * c->d;
}
static inline real row_rstd(const OpsConfig *c, const real *sumsq, int64_t m) {
  return rms_rstd(sumsq[m], c->D, (real)c->rms_norm_eps);
}

// Row-major GEMMs through CBLAS, named by how A and B are stored; C = A B + beta C, C [M, N] with
// row stride ldc.
//   gemm_nt: A [M, K], B [N, K]     gemm_nn: A [M, K], B [K, N]     gemm_tn: A [K, M], B [K, N]
void gemm_nt(int64_t M, int64_t N, int64_t K, real alpha, const real *A, int64_t lda, const real *B,
             int64_t ldb, real beta, real *C, int64_t ldc);
void gemm_nn(int64_t M, int64_t N, int64_t K, real alpha, const real *A, int64_t lda, const real *B,
             int64_t ldb, real beta, real *C, int64_t ldc);
void gemm_tn(int64_t M, int64_t N, int64_t K, real alpha, const real *A, int64_t lda, const real *B,
             int64_t ldb, real beta, real *C, int64_t ldc);

// The operations of kernels/ops.h, documented there.
void cpu_embed(Backend *, int64_t, const int32_t *, const act_t *, act_t *, stat_t *);
void cpu_qkv(Backend *, int64_t, int64_t, int64_t, const act_t *, const stat_t *, const act_t *,
             act_t *);
void cpu_residual(Backend *, int64_t, int64_t, const act_t *, const act_t *, const act_t *, act_t *,
                  stat_t *);
void cpu_gate_up(Backend *, int64_t, const act_t *, const stat_t *, const act_t *, act_t *,
                 act_t *);
void cpu_lm_head(Backend *, int64_t, const act_t *, const stat_t *, const act_t *, act_t *);
void cpu_head_loss(Backend *, int64_t, const act_t *, const stat_t *, const act_t *,
                   const int32_t *, act_t *, double, stat_t *);
// head_loss from the logits on.
void cpu_loss(Backend *, int64_t, const stat_t *, const int32_t *, act_t *, double, stat_t *);

void cpu_attention(Backend *, int64_t, int64_t, const act_t *, act_t *, stat_t *);
void cpu_attention_decode(Backend *, int64_t, int64_t, const act_t *, act_t *);
void cpu_attention_backward(Backend *, int64_t, int64_t, const act_t *, const act_t *,
                            const stat_t *, const act_t *, act_t *);
// Elements of scratch a thread needs for sequences of T.
size_t cpu_attention_scratch(int64_t T);

void cpu_norm_dgrad(Backend *, int64_t, int64_t, const act_t *, const act_t *, const act_t *,
                    const stat_t *, const stat_t *, int64_t, const act_t *, act_t *);
void cpu_down_dgrad(Backend *, int64_t, const act_t *, const act_t *, const act_t *, const stat_t *,
                    act_t *, stat_t *, act_t *);
void cpu_dgrad(Backend *, int64_t, int64_t, const act_t *, const act_t *, act_t *);
void cpu_rope_backward(Backend *, int64_t, int64_t, act_t *, const act_t *, const stat_t *,
                       stat_t *);
void cpu_wgrad(Backend *, int64_t, int64_t, int64_t, const act_t *, const act_t *, grad_t *, bool);
void cpu_embed_backward(Backend *, int64_t, const int32_t *, const act_t *, grad_t *, bool);

void cpu_step_begin(Backend *);
void cpu_grads_finish(Backend *, const ParamTensor *, int);
void cpu_set_hyper(Backend *, const AdamW *);
void cpu_adamw(Backend *, const ParamTensor *, int);
void cpu_step_end(Backend *);
void cpu_replay(Backend *, ReplaySlot, void (*)(void *), void *);
void cpu_refresh(Backend *, const ParamTensor *, int);
StepResult cpu_step_result(Backend *);
void cpu_set_updates(Backend *, int64_t);
