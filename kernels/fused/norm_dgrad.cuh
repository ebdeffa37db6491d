// dx = A B - (r / D) s x (+ residual): a dgrad through RMSNorm, whose scale r is in A already.
#pragma once
#include "kernels/fused/bases.cuh"

// -(r / D) s of each row.
struct NormFactor {
  static constexpr int COUNT = 1;
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&factor)[COUNT]) {
    FourRows s;
    row_totals<RowSum, 2>(args.in[1], row, M, s); // with more ahead the warp runs out of registers
    Rstd::of_rows<2>(args, row, M, factor[0]);
#pragma unroll
    for (int i = 0; i < 4; i++) factor[0][i] *= -args.inverse_D * s[i];
  }
};

template <bool RESIDUAL> struct NormDgradOf : Pairs<NormDgradOf<RESIDUAL>> {
  static constexpr GemmForm FORM = GEMM_NN;
  using Loads = Chunks<64, RESIDUAL ? 64 : 0>; // x, residual
  using RowValues = NormFactor;

  template <class S>
  DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t x, uint32_t residual = 0) const {
    const float f = s.row_value(i);
    return bf16_two(fmaf(f, bf16_low(x), v.x + bf16_low(residual)),
                    fmaf(f, bf16_high(x), v.y + bf16_high(residual)));
  }
};
