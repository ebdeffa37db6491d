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

// ---- In FP8, where A has r / q in it and s its sums: dx = q (A B^T) - (r / D) q s x (+ residual)

// q times the product's scale; -(r / D) q s.
struct ScaledNormFactor {
  static constexpr int COUNT = 2;
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[COUNT]) {
    FourRows factor[1];
    NormFactor::compute(args, row, M, factor);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float q = row_scale(args, row + 32 * i, M);
      values[0][i] = product_scale(args) * q;
      values[1][i] = factor[0][i] * q;
    }
  }
};

// STAGES: as ProgramDefaults::PROMOTE.
template <bool RESIDUAL, int STAGES>
struct CopiedNormDgradOf : CopiedPairs<CopiedNormDgradOf<RESIDUAL, STAGES>> {
  static constexpr int PROMOTE = STAGES;
  static constexpr bool FITS_256 = false, FITS_192 = STAGES > 0; // in turns it spills
  using Loads = Chunks<64, RESIDUAL ? 64 : 0>;                   // (residual,) x
  using RowValues = ScaledNormFactor;

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t x) const {
    return pair(s, i, v, 0, x);
  }
  template <class S>
  DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t residual, uint32_t x) const {
    const float k = s.row_value(i, 0), f = s.row_value(i, 1);
    return bf16_two(fmaf(f, bf16_low(x), fmaf(k, v.x, bf16_low(residual))),
                    fmaf(f, bf16_high(x), fmaf(k, v.y, bf16_high(residual))));
  }
};
