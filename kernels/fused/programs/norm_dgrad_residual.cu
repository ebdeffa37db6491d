// A dgrad through RMSNorm into the residual stream: dx = A B - (r / D) s x + residual. gate_up's
// and qkv's.
//   args.in[0] sums of squares of x's rows, in[1] s, inverse_D, eps
//   loads[0] x [M, N]   loads[1] residual [M, N]   stores[0] dx [M, N], may be residual
#include "kernels/fused/define.cuh"
#include "kernels/fused/norm_dgrad.cuh"

struct NormDgradResidual : Pairs<NormDgradResidual> {
  static constexpr GemmForm FORM = GEMM_NN;
  using Loads = Chunks<64, 64>; // x, residual
  using RowValues = NormFactor;

  template <class S>
  DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t x, uint32_t residual) const {
    const float f = s.row_value(i);
    return bf16_two(fmaf(f, bf16_low(x), v.x + bf16_low(residual)),
                    fmaf(f, bf16_high(x), v.y + bf16_high(residual)));
  }
};
DEFINE_PROGRAM(NormDgradResidual, norm_dgrad_residual)
