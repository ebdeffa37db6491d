// Muon's matrices on a GPU: arXiv 2502.16982, kellerjordan.github.io/posts/muon. The momentum's
// launch writes u of every matrix, and Newton-Schulz' iteration makes each orthogonal:
//     X = u / |u|, then MUON_STEPS times   A = X X^T   Z = a + b A + c A A   X = Z X
// (of a tall matrix A = X^T X, X = X Z). Matrices of one shape, a group, lie one behind the other
// and are multiplied in one launch, or in a few where they are large, since Y and S are memory for
// one launch at a time. The fused programs multiply the squares A, Z and Q of several groups in one
// launch, where these have n in common.
//
// cuBLASLt does just that, in three products a step. The fused programs iterate on A instead:
// A, Z and Q, the product of all Z, are polynomials of one symmetric matrix, so they commute, and
//     A_next = Z A Z     X_last = Q X
// need half of the tiles of products of the smaller side alone; X takes part where A is made and at
// the end. But A's rounding error grows with X's small singular values, by a^2 a step, while X's
// does not. So after two steps X = Q X is made, and A anew from it for the other two. A nearly
// square matrix, which has smaller singular values and nothing to gain, makes A in each step. Z and
// Q hold their multiple of the identity: B = Z - a in its place cancels where singular values are
// near 1. And X keeps its factor: A is multiplied by 1 / |u|^2, and the update by 1 / |u|.
#pragma once
#include "kernels/cuda/kernels.h"
#include "kernels/muon_groups.h"

#ifdef __cplusplus
extern "C" {
#endif

// Matrices that are made orthogonal in one launch a product: factors X, from X into X, over Y.
typedef struct MuonBatch {
  int64_t count, rows, cols;
  bf16_bits *X, *Y;    // [count, rows, cols] in and out; scratch
  bf16_bits *const *S; // MUON_SQUARES of [count, n, n], n the smaller side; scratch
  float *factors;      // [count] in: 1 / |X|, out: of the result
} MuonBatch;

// Groups with the same smaller side n. The first one's X, Y and S have room for the n x n matrices
// of all of them.
typedef struct MuonLaunch {
  int shapes;
  MuonBatch batches[MUON_SHAPES];
} MuonLaunch;

// ---- momentum.cu
// Where the update is applied: the momentum of all parts, u as bf16 into their places, and the
// factors; 0 of a part that is noise (MUON_NOISE).
void launch_momentum(const ParamTable *table, bool moments_bf16, const StepState *state,
                     cudaStream_t stream);
// to = factor times from, of each matrix of `elements`; the factors become 1.
//   from, to [count, elements], factors [count]
void launch_normalize(int64_t count, int64_t elements, const bf16_bits *from, float *factors,
                      bf16_bits *to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
