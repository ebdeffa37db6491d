// dy = A B; dz' = r (dy d(silu(gate) up)) over the column pairs of z; s = row sums of dz' z; y =
// silu(gate) up again.
#pragma once
#include "kernels/fused/epilogue.cuh"

template <bool STORE_Y> struct SwigluBackwardOf : ProgramDefaults {
  static constexpr GemmForm FORM = GEMM_NN;
  static constexpr int COLUMNS = 32; // of dy: 64 of z
  using Loads = Chunks<64>;
  using Stores = Chunks<64, STORE_Y ? 32 : 0>;
  static constexpr bool ROW_VALUE = true;
  static __device__ __forceinline__ void row_values(const ProgramArgs &args, int row, int M,
                                                    FourRows &r) {
    rstd_of_rows(args, row, M, r);
  }
  float sums[2] = {};

  // Pair 4 J + 2 e + h of z is in row h of the step's two and belongs, by the order of features
  // (pair_of_feature), to element e of pair 2 J + h of dy, and of y.
  template <class S> __device__ __forceinline__ void step(const S &s) {
    // Of z at a time: the more, the more of the arithmetic is under way, and the more registers.
    constexpr int PAIRS = STORE_Y ? 4 : 8;
    uint32_t y[4];
#pragma unroll
    for (int first = 0; first < 16; first += PAIRS) {
      uint32_t z[PAIRS];
      float features[PAIRS];
      s.template load<0>(z, first);
#pragma unroll
      for (int j = 0; j < PAIRS; j++) {
        const int h = j & 1, e = j >> 1 & 1;
        const float2 both = s.product((first + j) / 4 * 2 + h);
        const float gate = bf16_low(z[j]), up = bf16_high(z[j]);
        float dgate, dup;
        swiglu_backward(gate, up, s.row_value(h) * (e ? both.y : both.x), &dgate, &dup);
        z[j] = bf16_two(dgate, dup);
        sums[h] = fmaf(dup, up, fmaf(dgate, gate, sums[h]));
        features[j] = swiglu(gate, up);
      }
      s.template store<0>(z, first);
      if constexpr (STORE_Y) {
        y[first / 2 % 4] = bf16_two(features[0], features[2]);
        y[first / 2 % 4 + 1] = bf16_two(features[1], features[3]);
        if (first % 8 == 4) s.template store<1>(y, first / 2 - 2);
      }
    }
  }
  __device__ __forceinline__ void end(const RowBlock &block) const {
    block.store_row_sums(block.args.sums, sums);
  }
};
