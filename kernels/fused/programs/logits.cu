// logits = r (A B^T), and of the values as stored, for each row and tile of columns, the largest
// and the sum of exp(value - largest): parts of the row's log-sum-exp. (The target's logit is one
// element that the loss reads.)
//   args.in[0] sums of squares of A's rows, inverse_D, eps   stores[0] logits [M, N]
//   args.out[0] parts of MaxSum, or data NULL
#include "kernels/fused/define.cuh"
#include "kernels/fused/logits.cuh"

DEFINE_PROGRAM(Logits, logits)
