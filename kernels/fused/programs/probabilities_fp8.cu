// probabilities.cu in FP8.
//   beside what is said there: args.a, b, row_scale of A
#include "kernels/fused/define.cuh"
#include "kernels/fused/probabilities.cuh"

struct ScaledHeadRow : HeadRow {
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[COUNT]) {
    HeadRow::compute(args, row, M, values);
#pragma unroll
    for (int i = 0; i < 4; i++)
      values[SCALE][i] *= product_scale(args) / row_scale(args, row + 32 * i, M);
  }
};

struct ProbabilitiesFp8 : Probabilities {
  static constexpr GemmFormats FORMATS = GEMM_E4M3;
  using RowValues = ScaledHeadRow;
};
DEFINE_PROGRAM(ProbabilitiesFp8, probabilities_fp8)
