// The fused backend's kernels that are not programs. Each only launches.
#pragma once
#include "kernels/fused/program.h"
#include "kernels/unfused/unfused.h"

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
void fused_rope_table(int64_t rows, int64_t d, int64_t period, const float *from, uint16_t *to,
                      cudaStream_t stream);

// ---- cross_entropy.cu
typedef struct SoftmaxParts {
  const MaxSum *parts; // [count, stride], as programs/logits.cu leaves them
  int32_t count;
  int64_t stride;
} SoftmaxParts;
// row_loss[m] = log-sum-exp of row m - its target's logit; and where s is not NULL the logits
// become dlogits' = r grad_scale (softmax - onehot(target)), and s[m] the row sum of dlogits'
// logits. One pass over the logits, or none.
//   logits [M, V] bf16, V a multiple of 8; targets [M]; row_loss, s [M] out
void fused_cross_entropy(int64_t M, int64_t V, SoftmaxParts softmax, RowScale r, float grad_scale,
                         uint16_t *logits, const int32_t *targets, float *row_loss, float *s,
                         cudaStream_t stream);

#ifdef __cplusplus
}
#endif
