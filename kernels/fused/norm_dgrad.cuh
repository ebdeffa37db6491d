// dx = A B - (r / D) s x (+ residual): a dgrad through RMSNorm, whose scale r is in A already.
#pragma once
#include "kernels/fused/epilogue.cuh"

template <bool RESIDUAL> struct NormDgradOf : ProgramDefaults {
  static constexpr GemmForm FORM = GEMM_NN;
  using Loads = Chunks<64, RESIDUAL ? 64 : 0>; // x, residual
  using Stores = Chunks<64>;
  static constexpr bool ROW_VALUE = true;
  static __device__ __forceinline__ void row_values(const ProgramArgs &args, int row, int M,
                                                    FourRows &factor) {
    FourRows s;
    sum_of_parts<2>(args.s, row, M, s); // with more ahead the warp runs out of registers
    rstd_of_rows<2>(args, row, M, factor);
#pragma unroll
    for (int i = 0; i < 4; i++) factor[i] *= -args.inverse_D * s[i];
  }

  template <class S> __device__ __forceinline__ void step(const S &s) const {
#pragma unroll
    for (int first = 0; first < 16; first += 4) {
      uint32_t x[4], residual[4] = {};
      s.template load<0>(x, first);
      if constexpr (RESIDUAL) s.template load<1>(residual, first);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 v = s.product(first + j);
        const float f = s.row_value(j);
        x[j] = bf16_two(fmaf(f, bf16_low(x[j]), v.x + bf16_low(residual[j])),
                        fmaf(f, bf16_high(x[j]), v.y + bf16_high(residual[j])));
      }
      s.template store<0>(x, first);
    }
  }
};
