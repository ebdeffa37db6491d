// A dgrad through RMSNorm into the residual stream: dx = A B - (r / D) s x + residual. gate_up's
// and qkv's.
//   args.in[0] sums of squares of x's rows, in[1] s, inverse_D, eps
//   loads[0] x [M, N]   loads[1] residual [M, N]   stores[0] dx [M, N], may be residual
#include "kernels/fused/define.cuh"
#include "kernels/fused/norm_dgrad.cuh"

struct NormDgradResidual : NormDgradOf<true> {};
DEFINE_PROGRAM(NormDgradResidual, norm_dgrad_residual)
