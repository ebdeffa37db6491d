// The fused backend's kernels that are not programs, as C sees them. What kernels/cuda/kernels.h
// says of launches holds.
#pragma once
#include "kernels/cuda/kernels.h"
#include "kernels/fused/program.h"

#ifdef __cplusplus
extern "C" {
#endif

// Elements of a row of the table that programs/rope.cu reads, for heads of d: a step's 64 columns
// from any of a head's first d, which are multiples of 8.
static inline int64_t rope_table_cols(int64_t d) {
  return d + 56;
}

// ---- rope_table.cu
// to[i, c] = from[i % period, c % d] as fp16.
//   from [positions, d] fp32, cosines and sines of pairs in turns; to [rows, rope_table_cols(d)]
void launch_rope_table(int64_t rows, int64_t d, int64_t period, const float *from, uint16_t *to,
                       cudaStream_t stream);

// ---- cross_entropy.cu
// row_loss[m] = log-sum-exp of row m - its target's logit; and where s is not NULL the logits
// become dlogits' = r grad_scale (softmax - onehot(target)), and s the row sums of dlogits' logits.
// One pass over the logits, or none.
//   softmax: of MaxSum, as programs/logits.cu leaves them
//   logits [M, V], V a multiple of 8, with r; targets [M]; row_loss [M] out, s out or NULL
void launch_fused_cross_entropy(int64_t M, int64_t V, RowStat softmax, RowScale r, float grad_scale,
                                act_t *logits, const int32_t *targets, float *row_loss, RowStat *s,
                                cudaStream_t stream);

// ---- head.cu: what is around programs/probabilities.cu, see head.h
// Where each row aims, from its target's logit r x W[target].
//   x [M, D], W [V, D] in, D a multiple of 8; targets [M]; aim [AIM_PARTS, stride] out
void launch_head_aim(int64_t M, RowScale r, const act_t *x, const act_t *W, const int32_t *targets,
                     RowStat aim, cudaStream_t stream);

// Each row's loss, and where there is to be a gradient, what its head_dgrad and wgrad need.
typedef struct HeadFinish {
  int64_t M, stride; // of P's rows
  RowScale r;
  RowStat sum, entropy;   // of P and P log2(P), as the program leaves them
  float scale;            // dlogits = scale (p - onehot)
  float *row_loss;        // [M] out; NaN above 117 nats
  float *u, *s;           // [M] out, or u NULL: the loss only
  bf16_bits *P;           // [M, stride]; the targets' columns out, with u
  const int32_t *targets; // [M]
  const bf16_bits *x;     // [M, D]
  bf16_bits *ux;          // [M, D] out: u x, or NULL
} HeadFinish;
void launch_head_finish(const HeadFinish *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
