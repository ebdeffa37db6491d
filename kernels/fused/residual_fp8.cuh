// out = x + A B^T in FP8, its sums of squares as stored, and copies of q out. q of a row is the
// power of two below RMSNorm's r of x, one addition earlier than out: near out's own, and known.
#pragma once
#include "kernels/fused/bases.cuh"

struct ScaleAhead {
  static constexpr int COUNT = 2; // the product's scale, q
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[COUNT]) {
    FourRows r;
    Rstd::of_rows(args, row, M, r);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      values[0][i] = product_scale(args);
      values[1][i] = power_of_two_below(r[i]);
      // The same from every tile of columns.
      if (args.row_scale_out && row + 32 * i < M) args.row_scale_out[row + 32 * i] = values[1][i];
    }
  }
};

// STAGES: as ProgramDefaults::PROMOTE.
template <int STAGES> struct CopiedResidual : CopiedPairs<CopiedResidual<STAGES>> {
  static constexpr int PROMOTE = STAGES, COPY_ROW_VALUE = 1;
  static constexpr bool FITS_256 = false, FITS_192 = STAGES > 0; // in turns it spills
  using Loads = Chunks<64>;
  using RowValues = ScaleAhead;
  RowSum squares;

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t x) {
    const float scale = s.row_value(0);
    const uint32_t out = bf16_two(fmaf(v.x, scale, bf16_low(x)), fmaf(v.y, scale, bf16_high(x)));
    squares.add_squares(i, out);
    return out;
  }
  DEVICE void end(const RowBlock &block) const {
    squares.store(block, block.args.out[0]);
    this->largest.store(block);
  }
};
