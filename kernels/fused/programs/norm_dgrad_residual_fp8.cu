// norm_dgrad_residual.cu in FP8, for a short K, whose sums need no promotion.
//   args as for norm_dgrad_fp8.cu   loads[0] residual [M, N]   loads[1] x [M, N]
//   stores[0] dx [M, N], may be residual; copies of it
#include "kernels/fused/define.cuh"
#include "kernels/fused/norm_dgrad.cuh"

struct NormDgradResidualFp8 : CopiedNormDgradOf<true, 0> {};
DEFINE_PROGRAM(NormDgradResidualFp8, norm_dgrad_residual_fp8)
