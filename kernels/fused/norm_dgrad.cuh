// dx = A B - (r / D) s x (+ residual): a dgrad through RMSNorm, whose scale r is in A already.
#pragma once
#include "kernels/fused/epilogue.cuh"

template <bool RESIDUAL> struct NormDgradOf : ProgramDefaults {
  static constexpr GemmForm FORM = GEMM_NN;
  using Loads = Chunks<64, RESIDUAL ? 64 : 0>; // x, residual
  using Stores = Chunks<64>;
  static constexpr bool ROW_VALUE = true;
  static __device__ __forceinline__ float row_value(const ProgramArgs &args, int64_t row) {
    return -rstd_of_row(args, row) * args.inverse_D * sum_of_parts(args.s, row);
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
