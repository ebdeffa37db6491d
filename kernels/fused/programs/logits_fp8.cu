// logits.cu in FP8.
//   beside what is said there: args.a, b, row_scale of A
#include "kernels/fused/define.cuh"
#include "kernels/fused/logits.cuh"

struct LogitsFp8 : Logits {
  static constexpr GemmFormats FORMATS = GEMM_E4M3;
  using RowValues = ScaledRstd;
};
DEFINE_PROGRAM(LogitsFp8, logits_fp8)
