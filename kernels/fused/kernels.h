// The fused backend's kernels that are not programs, as C sees them. The rules for launches in
// kernels/cuda/kernels.h apply.
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

// ---- RoPE's table, of programs/rope.cu
// to[i, c] = from[i % period, c % d] as fp16.
//   from [positions, d] fp32, cosines and sines of pairs in turns; to [rows, rope_table_cols(d)]
void launch_rope_table(int64_t rows, int64_t d, int64_t period, const float *from, uint16_t *to,
                       cudaStream_t stream);

// ---- The head: the kernels around programs/probabilities.cu. The softmax is folded like RMSNorm's
// r.
//
// With z = r x W'^T, the probabilities p of a row are exp(z - lse). The program stores
//     P = exp(z - c)     with a row's c known before: z_t + ln 2^AIM, z_t its target's logit
// and 0 in the target's column, and writes the row's sums
//     S = sum P          A = sum P log2(P)
// of the unrounded values. lse is known once all columns are computed, so that only row scales
// remain:
//     exp(lse - c) = S + 2^-AIM             loss = lse - z_t = log(1 + S 2^AIM)
//     dlogits' = u P                        u = scale r / (S + 2^-AIM)
//     s = sum dlogits' z = u ln2 (A + AIM S)
// In the target's column p - 1 is exactly -S / (S + 2^-AIM), so -S replaces the 0 there: no digits
// cancel where p is near 1. c moves with the row, so neither large logits nor a mean that drifts
// matter: a row's P goes out of range only where its loss does. S up to 2^MOST, a loss of 106 nats,
// keeps u and its products in range; above the loss is NaN, and the update is skipped.
// Probabilities below 2^(-126 + AIM) of the target's become 0. A row without a target has a c from
// which all P become 0, so S, A and its loss are 0, and so are u and s.
enum { HEAD_AIM = 64, HEAD_MOST = 90 };

// The parts of a row's aim: its target's column (-1: none), and the exponent of 2 from which P
// starts.
enum { AIM_EXPONENT, AIM_TARGET, AIM_PARTS };

// Computes each row's aim from its target's logit r x W[target].
//   x [M, D], W [V, D] in, of which FP8 copies are read where both have them, with `scalings`;
//   targets [M], negative: none; aim [AIM_PARTS, stride] out
void launch_head_aim(int64_t M, RowScale r, Operand x, Operand W, const Scaling *scalings,
                     const int32_t *targets, RowStat aim, cudaStream_t stream);

// Computes each row's loss, and the gradient's row scales.
typedef struct HeadFinish {
  int64_t M;
  RowScale r;
  RowStat sum, entropy;   // of P and P log2(P), as the program writes them
  float scale;            // dlogits = scale (p - onehot)
  const int32_t *targets; // [M], negative: none
  float *row_loss;        // [M] out; NaN above 106 nats
  HeadGradient gradient;  // p in, all else out; without u: the loss only, without ux: no u x
  const act_t *x;         // of a gradient: [M, D], D a multiple of 8
} HeadFinish;
void launch_head_finish(const HeadFinish *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
