// lm_head's dgrad through RMSNorm: dx = u (A B) - (r / D) s x, where A's rows are u times too small
// (head.h).
//   args.in[0] sums of squares of x's rows, in[1] s, inverse_D, eps, row_scale u, NULL: 1
//   loads[0] x [M, N]   stores[0] dx [M, N]
#include "kernels/fused/define.cuh"
#include "kernels/fused/norm_dgrad.cuh"

struct HeadFactors {
  static constexpr int COUNT = 2;
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[COUNT]) {
    FourRows norm[1];
    NormFactor::compute(args, row, M, norm);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      values[0][i] = norm[0][i];
      values[1][i] = row_scale(args, row + 32 * i, M);
    }
  }
};

struct NormDgrad : Pairs<NormDgrad> {
  static constexpr GemmForm FORM = GEMM_NN;
  using Loads = Chunks<64>;
  using RowValues = HeadFactors;

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t x) const {
    const float factor = s.row_value(i, 0), u = s.row_value(i, 1);
    return bf16_two(fmaf(factor, bf16_low(x), u * v.x), fmaf(factor, bf16_high(x), u * v.y));
  }
};
DEFINE_PROGRAM(NormDgrad, norm_dgrad)
