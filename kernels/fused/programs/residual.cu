// out = x + A B^T; the sum of squares of out's rows, as stored. Attention's output and the MLP's
// down projection. In FP8 with copies of q out: q of a row is the power of two below RMSNorm's r of
// x, one addition earlier than out: near out's own, and known.
//   loads[0] x [M, N]   stores[0] out [M, N], may be x   args.out[0] sums of squares
//   FP8: args.in[0] sums of squares of x's rows, inverse_D, eps, a, b, copies of q out,
//   row_scale_out q
#include "kernels/fused/define.cuh"

struct ScaleAhead {
  static constexpr int COUNT = 2; // the product's scale, q
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[COUNT]) {
    FourRows r;
    rstd_of_rows(args, row, M, r);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      values[0][i] = product_scale(args);
      values[1][i] = power_of_two_below(r[i]);
      // Every tile of columns writes the same value.
      if (args.row_scale_out && row + 32 * i < M) args.row_scale_out[row + 32 * i] = values[1][i];
    }
  }
};

template <class In> struct Residual : Pairs<Residual<In>, In> {
  static constexpr bool KEEPS_ZERO = true;
  static constexpr bool FITS_256 = !In::COPIES,
                        FITS_192 = !In::COPIES || In::PROMOTE > 0; // in turns it spills
  static constexpr int COPY_SCALE = 1;
  using Loads = Chunks<64>;
  using Copies = typename In::template Copies<64>;
  using RowValues = std::conditional_t<In::COPIES, ScaleAhead, NoValues>;
  RowSum squares;

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t x) {
    float scale = 1;
    if constexpr (In::COPIES) scale = s.row_value(0);
    const uint32_t out =
        bf16_two(In::scaled_sum(scale, v.x, bf16_low(x)), In::scaled_sum(scale, v.y, bf16_high(x)));
    squares.add_squares(i, out);
    return out;
  }
  DEVICE void end(const RowBlock &block) const {
    squares.store(block, block.args.out[0]);
  }
};
DEFINE_PROGRAM(Residual<Bf16>, residual)
DEFINE_PROGRAM(Residual<E4m3<>>, residual_fp8)
DEFINE_PROGRAM(Residual<E4m3<4>>, residual_promoted_fp8) // for a long K
