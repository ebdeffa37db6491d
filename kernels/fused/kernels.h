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

// ---- head.cu: what is around programs/probabilities.cu, see head.h
// Where each row aims, from its target's logit r x W[target].
//   x [M, D], W [V, D] in, of which FP8 copies are read where both have them, with `scalings`;
//   targets [M]; aim [AIM_PARTS, stride] out
void launch_head_aim(int64_t M, RowScale r, Operand x, Operand W, const Scaling *scalings,
                     const int32_t *targets, RowStat aim, cudaStream_t stream);

// Each row's loss, and what the gradient needs.
typedef struct HeadFinish {
  int64_t M;
  RowScale r;
  RowStat sum, entropy;  // of P and P log2(P), as the program leaves them
  float scale;           // dlogits = scale (p - onehot)
  float *row_loss;       // [M] out; NaN above 106 nats
  HeadGradient gradient; // p in, all else out; without u: the loss only, without ux: no u x
  // Of a gradient:
  const int32_t *targets; // [M]
  const act_t *x;         // [M, D], D a multiple of 8
} HeadFinish;
void launch_head_finish(const HeadFinish *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
