// Dgrads through RMSNorm, whose scale r is in A already: dx = A B - (r / D) s x, and
//     norm_dgrad            lm_head's, whose A has rows that are u times too small (kernels.h)
//     norm_dgrad_residual   gate_up's and qkv's, into the residual stream: + residual
// In FP8 A has r / q in it and s is its sums: dx = q (A B^T) - (r / D) q s x (+ residual).
//   args.in[0] sums of squares of x's rows, in[1] s, inverse_D, eps, row_scale u, NULL: 1
//   loads[0] x [M, N]   loads[1] residual [M, N]   stores[0] dx [M, N], may be residual
//   FP8: args.a, b, row_scale q of x, copies of dx
#include "kernels/fused/define.cuh"

// -(r / D) s of each row, and the product's factor, if there is one.
template <class In, bool RESIDUAL> struct NormFactors {
  enum { FACTOR, SCALE };
  static constexpr int COUNT = In::COPIES || !RESIDUAL ? 2 : 1;
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[COUNT]) {
    FourRows s;
    row_totals<RowSum, 2>(args.in[1], row, M, s); // more than 2 ahead exceed the registers
    rstd_of_rows<2>(args, row, M, values[FACTOR]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      values[FACTOR][i] *= -args.inverse_D * s[i];
      if constexpr (COUNT > 1) values[SCALE][i] = row_scale(args, row + 32 * i, M);
      if constexpr (In::COPIES) {
        values[FACTOR][i] *= values[SCALE][i];
        values[SCALE][i] *= product_scale(args);
      }
    }
  }
};

template <class In, bool RESIDUAL> struct NormDgrad : Pairs<NormDgrad<In, RESIDUAL>, In> {
  static constexpr GemmForm FORM = In::DGRAD;
  static constexpr bool KEEPS_ZERO = true;
  static constexpr bool FITS_256 = !In::COPIES,
                        FITS_192 = !In::COPIES || In::PROMOTE > 0; // in turns it spills
  using Loads = Chunks<64, RESIDUAL ? 64 : 0>;                     // x, residual
  using Copies = typename In::template Copies<64>;
  using RowValues = NormFactors<In, RESIDUAL>;

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t x) const {
    const float f = s.row_value(i, RowValues::FACTOR), k = s.row_value(i, RowValues::SCALE);
    return bf16_two(fmaf(f, bf16_low(x), k * v.x), fmaf(f, bf16_high(x), k * v.y));
  }
  template <class S>
  DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t x, uint32_t residual) const {
    const float f = s.row_value(i, RowValues::FACTOR);
    float k = 1;
    if constexpr (In::COPIES) k = s.row_value(i, RowValues::SCALE);
    return bf16_two(fmaf(f, bf16_low(x), In::scaled_sum(k, v.x, bf16_low(residual))),
                    fmaf(f, bf16_high(x), In::scaled_sum(k, v.y, bf16_high(residual))));
  }
};
template <class In> using ToHidden = NormDgrad<In, false>;
template <class In> using ToResidual = NormDgrad<In, true>;

DEFINE_PROGRAM(ToHidden<Bf16>, norm_dgrad)
DEFINE_PROGRAM(ToHidden<E4m3<4>>, norm_dgrad_fp8)
DEFINE_PROGRAM(ToResidual<Bf16>, norm_dgrad_residual)
DEFINE_PROGRAM(ToResidual<E4m3<>>, norm_dgrad_residual_fp8)
DEFINE_PROGRAM(ToResidual<E4m3<4>>, norm_dgrad_residual_promoted_fp8) // for a long K
