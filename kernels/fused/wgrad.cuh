// dW = A^T B, a weight gradient over all tokens of a step, and what would otherwise take a pass
// over it: the sum of its squares, for clipping, and where a norm weight w is folded into W (W' = W
// w)
//     dW = dW' w        and, over 16 rows each, the column sums of dW' W', which are w dw
// dW' stays in fp32 for both. Where w is too small to divide by, dW' itself is stored, and
// unfused/grads.cu finishes the column.
#pragma once
#include "kernels/fused/epilogue.cuh"

template <bool FOLDED> struct WgradOf : ProgramDefaults {
  static constexpr GemmForm FORM = GEMM_TN;
  static constexpr int MOST_ACCUMULATORS = FOLDED ? 128 : 192;
  using Loads = Chunks<FOLDED ? 64 : 0>; // W'
  using Stores = Chunks<64>;
  float squares = 0;

  template <class S> __device__ __forceinline__ void step(const S &s) {
#pragma unroll
    for (int first = 0; first < 16; first += 4) { // rows 0 and 1 of one pair of columns, of another
      uint32_t pairs[4] = {};
      if constexpr (FOLDED) s.template load<0>(pairs, first);
#pragma unroll
      for (int group = 0; group < 2; group++) {
        float2 w = {1, 1};
        if constexpr (FOLDED) {
          w = s.column_values(s.block.args.norm, first + 2 * group);
          if (norm_weight_is_weak(w.x)) w.x = 1;
          if (norm_weight_is_weak(w.y)) w.y = 1;
        }
        float2 sum = {};
#pragma unroll
        for (int j = 2 * group; j < 2 * group + 2; j++) {
          const float2 v = s.product(first + j);
          sum.x = fmaf(v.x, bf16_low(pairs[j]), sum.x);
          sum.y = fmaf(v.y, bf16_high(pairs[j]), sum.y);
          pairs[j] = bf16_two(v.x * w.x, v.y * w.y);
          const float x = bf16_low(pairs[j]), y = bf16_high(pairs[j]);
          squares += x * x + y * y;
        }
        if constexpr (FOLDED) s.store_column_sums(s.block.args.column_sums, first + 2 * group, sum);
      }
      s.template store<0>(pairs, first);
    }
  }
  __device__ __forceinline__ void end(const RowBlock &block) const {
    block.store_sum(block.args.squares, squares);
  }
};
