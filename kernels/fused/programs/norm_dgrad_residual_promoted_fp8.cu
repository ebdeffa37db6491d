// norm_dgrad_residual_fp8.cu for a long K.
#include "kernels/fused/define.cuh"
#include "kernels/fused/norm_dgrad.cuh"

struct NormDgradResidualPromotedFp8 : CopiedNormDgradOf<true, 4> {};
DEFINE_PROGRAM(NormDgradResidualPromotedFp8, norm_dgrad_residual_promoted_fp8)
