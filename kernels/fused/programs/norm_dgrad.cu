// A dgrad through RMSNorm: dx = A B - (r / D) s x. lm_head's.
//   args.in[0] sums of squares of x's rows, in[1] s, inverse_D, eps
//   loads[0] x [M, N]   stores[0] dx [M, N]
#include "kernels/fused/define.cuh"
#include "kernels/fused/norm_dgrad.cuh"

struct NormDgrad : NormDgradOf<false> {};
DEFINE_PROGRAM(NormDgrad, norm_dgrad)
