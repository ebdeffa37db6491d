// rope.cu in FP8.
//   beside what is said there: args.a, b, row_scale of A
#include "kernels/fused/define.cuh"
#include "kernels/fused/rope.cuh"

struct RopeFp8 : Rope {
  static constexpr GemmFormats FORMATS = GEMM_E4M3;
  using RowValues = ScaledRstd;
};
DEFINE_PROGRAM(RopeFp8, rope_fp8)
