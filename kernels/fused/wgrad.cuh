// dW = A^T B, a weight gradient over all tokens of a step, and what would otherwise take a pass
// over it: the sum of its squares, for clipping, and where a norm weight w is folded into W (W' = W
// w)
//     dW = dW' w        and, over 16 rows each, the column sums of dW' W', which are w dw
// dW' stays in fp32 for both. Where w is too small to divide by, dW' itself is stored, without its
// squares, and unfused/grads.cu finishes the column.
#pragma once
#include "kernels/fused/epilogue.cuh"

template <bool FOLDED> struct WgradOf : ProgramDefaults {
  static constexpr GemmForm FORM = GEMM_TN;
  using Loads = Chunks<FOLDED ? 64 : 0>; // W'
  using Stores = Chunks<64>;
  float squares = 0;

  template <class S> __device__ __forceinline__ void step(const S &s) {
#pragma unroll
    for (int first = 0; first < 16; first += 4) { // rows 0 and 1 of one pair of columns, of another
      uint32_t pairs[4] = {};
      if constexpr (FOLDED) s.template load<0>(pairs, first);
      float2 sums[2] = {};
#pragma unroll
      for (int group = 0; group < 2; group++) {
        const float2 w =
            FOLDED ? s.column_values(s.block.args.norm, first + 2 * group) : float2{1, 1};
        const bool weak_x = FOLDED && norm_weight_is_weak(w.x),
                   weak_y = FOLDED && norm_weight_is_weak(w.y);
#pragma unroll
        for (int j = 2 * group; j < 2 * group + 2; j++) {
          const float2 v = s.product(first + j);
          sums[group].x = fmaf(v.x, bf16_low(pairs[j]), sums[group].x);
          sums[group].y = fmaf(v.y, bf16_high(pairs[j]), sums[group].y);
          pairs[j] = bf16_two(weak_x ? v.x : v.x * w.x, weak_y ? v.y : v.y * w.y);
          const float x = weak_x ? 0.0f : bf16_low(pairs[j]),
                      y = weak_y ? 0.0f : bf16_high(pairs[j]);
          squares += x * x + y * y;
        }
      }
      s.template store<0>(pairs, first);
      if constexpr (FOLDED) s.store_column_sums(s.block.args.column_sums, first, sums);
    }
  }
  __device__ __forceinline__ void end(const RowBlock &block) const {
    block.store_sum(block.args.squares, squares);
  }
};
