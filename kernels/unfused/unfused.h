// The unfused GPU backend: cuBLASLt's GEMMs, and separate kernels for the work around each of them.
// The fused backend starts with an Unfused and uses these operations where it has no program.
#pragma once
#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Unfused {
  Cuda cuda; // first: a Backend * of this backend is an Unfused *
  // Scratch for the GEMMs of norm_dgrad, [max_tokens, D], of down_dgrad, F, and in FP8 of gate_up,
  // 2 F. NULL where they run fused.
  act_t *product;
} Unfused;

static inline Unfused *unfused_of(Backend *be) {
  return (Unfused *)be;
}

// NULL and a sentence on failure, as for backend_gpu_create; spec->kernels is not read.
Backend *backend_unfused_create(const Spec *spec, const Gpu *gpu, Error *err);

// As cuda_open; also sets this backend's operations and allocates their scratch.
int unfused_open(Unfused *u, const Spec *spec, const Gpu *gpu, Error *err);
// The two parts of it that follow from base.kinds, for when these have changed. -1: no memory.
void unfused_set_operations(Backend *be);
int unfused_take_product(Unfused *u, Error *err);

QkvOp unfused_qkv;
ResidualOp unfused_residual;
GateUpOp unfused_gate_up;
ScoreRowsOp unfused_score_rows;
HeadLossOp unfused_head_loss;
HeadDgradOp unfused_head_dgrad;
NormDgradOp unfused_norm_dgrad;
DownDgradOp unfused_down_dgrad;
RopeBackwardOp unfused_rope_backward;
// Where there is nothing around a GEMM, or no GEMM, the common part has the operation.
#define unfused_embed cuda_embed
#define unfused_attention cuda_attention
#define unfused_qkv_token cuda_qkv_token
#define unfused_attention_decode cuda_attention_decode
#define unfused_row_logits cuda_row_logits
#define unfused_choose cuda_choose
#define unfused_attention_branches cuda_attention_branches
#define unfused_attention_backward cuda_attention_backward
#define unfused_wgrad cuda_wgrad
#define unfused_head_wgrad cuda_head_wgrad
#define unfused_dgrad cuda_dgrad
#define unfused_embed_backward cuda_embed_backward
#define unfused_requantize cuda_requantize
#define unfused_grads_finish cuda_grads_finish
#define unfused_muon cuda_muon
#define unfused_adamw cuda_adamw

// ---- rows.cu: the kernels around each GEMM. The rules for launches in kernels/cuda/kernels.h
// apply.

// The packed row: H + KV heads of d that RoPE rotates, then KV that it does not.
typedef struct RopeShape {
  int64_t rotated;    // (H + KV) d
  int64_t R;          // (H + 2 KV) d
  int64_t d;          // a multiple of 8
  int64_t T, first;   // row m is at position first + m % T
  const float *table; // [max_positions, d/2, 2] cosine and sine
} RopeShape;

// x [M, D] in, sumsq out
void launch_row_sumsq(int64_t M, int64_t D, const act_t *x, RowStat *sumsq, cudaStream_t stream);
// dx[m] = q[m] product[m] - (r / D) q[m] s[m] x[m] + residual[m] with x's row_scale q; dx's copies.
//   x (data, row_scale), product, residual or NULL [M, D] in, s in; dx [M, D] out
void launch_norm_backward_fp8(int64_t M, RowScale r, Operand x, RowStat s, const act_t *residual,
                              const act_t *product, Operand dx, Scaling *scaling,
                              cudaStream_t stream);
// dx[m] = u[m] from[m] - (r / D) s[m] x[m].
//   x, from [M, D], s in; u [M] in, or NULL: 1; dx [M, D] out, not from
void launch_norm_backward(int64_t M, RowScale r, const act_t *x, RowStat s, const stat_t *u,
                          const act_t *from, act_t *dx, cudaStream_t stream);
// qkv[m] *= r, then q and k heads rotated.   qkv [M, R] in, out
void launch_rope(int64_t M, RopeShape shape, RowScale r, act_t *qkv, cudaStream_t stream);
// RopeBackwardOp's kernel.
void launch_rope_backward(int64_t M, RopeShape shape, RowScale r, const act_t *qkv, act_t *dqkv,
                          RowStat *s, cudaStream_t stream);
// The same into the copies of `out`, dqkv'' [M, R]; d and R multiples of 16.   dqkv [M, R] in
void launch_rope_backward_fp8(int64_t M, RopeShape shape, RowScale r, const act_t *qkv,
                              const act_t *dqkv, Operand out, Scaling *scaling, RowStat *s,
                              cudaStream_t stream);

// SwiGLU: z here is the product x W'^T before the row scale r, which these kernels apply as
// they read it: so the forward pass need not write z again.
// y = silu(r gate) * r up, in natural order.   z [M, 2F] in, y [M, F] out
void launch_swiglu(int64_t M, int64_t F, RowScale r, const act_t *z, act_t *y, cudaStream_t stream);
// dz' = r d(silu(gate) up) dy; s = row sum of dz' (r z).
//   z [M, 2F], dy [M, F] in; dz [M, 2F] out, may be z; s out
void launch_swiglu_backward(int64_t M, int64_t F, RowScale r, const act_t *z, const act_t *dy,
                            act_t *dz, RowStat *s, cudaStream_t stream);
// The same into copies alone, F a multiple of 16, and with z in e4m3 (kernels/ops.h).
//   product [M, 2F] in; z [M, 2F] out
void launch_swiglu_fp8(int64_t M, int64_t F, RowScale r, const act_t *product, act_t *z, Operand y,
                       Scaling *scaling, cudaStream_t stream);
//   z [M, 2F] in
void launch_swiglu_backward_fp8(int64_t M, int64_t F, RowScale r, const act_t *z, const act_t *dy,
                                Operand dz, Scaling *scaling, RowStat *s, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
