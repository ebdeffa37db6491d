// norm_dgrad.cu in FP8.
//   args.in[0] sums of squares of x's rows, in[1] s, inverse_D, eps, a, b, row_scale of x, copies
//   loads[0] x [M, N]   stores[0] dx [M, N], copies of it
#include "kernels/fused/define.cuh"
#include "kernels/fused/norm_dgrad.cuh"

struct NormDgradFp8 : CopiedNormDgradOf<false, 4> {};
DEFINE_PROGRAM(NormDgradFp8, norm_dgrad_fp8)
