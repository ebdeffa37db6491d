// out = x + A B^T; the sum of squares of out's rows, as stored. Attention's output and the MLP's
// down projection.
//   loads[0] x [M, N]   stores[0] out [M, N]   args.sums
#include "kernels/fused/define.cuh"

struct Residual : ProgramDefaults {
  using Loads = Chunks<64>;
  using Stores = Chunks<64>;
  float sums[2] = {};

  template <class S> __device__ __forceinline__ void step(const S &s) {
#pragma unroll
    for (int first = 0; first < 16; first += 4) { // few values at a time need few registers
      uint32_t pairs[4];
      s.template load<0>(pairs, first);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 v = s.product(first + j);
        pairs[j] = bf16_two(v.x + bf16_low(pairs[j]), v.y + bf16_high(pairs[j]));
        const float a = bf16_low(pairs[j]), b = bf16_high(pairs[j]);
        sums[j & 1] += a * a + b * b;
      }
      s.template store<0>(pairs, first);
    }
  }
  __device__ __forceinline__ void end(const RowBlock &block) const {
    block.store_row_sums(block.args.sums, sums);
  }
};
DEFINE_PROGRAM(Residual, residual)
