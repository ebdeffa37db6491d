// residual_fp8.cu for a long K.
#include "kernels/fused/define.cuh"
#include "kernels/fused/residual_fp8.cuh"

struct ResidualPromotedFp8 : CopiedResidual<4> {};
DEFINE_PROGRAM(ResidualPromotedFp8, residual_promoted_fp8)
