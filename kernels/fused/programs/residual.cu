// out = x + A B^T; the sum of squares of out's rows, as stored. Attention's output and the MLP's
// down projection.
//   loads[0] x [M, N]   stores[0] out [M, N]   args.sums
#include "kernels/fused/define.cuh"

struct Residual : ProgramDefaults {
  using Loads = Chunks<64>;
  using Stores = Chunks<64>;
  float sums[MAX_THREAD_ROWS] = {};

  template <class S> __device__ __forceinline__ void step(const S &s) {
    uint32_t pairs[16];
    s.template load<0>(pairs);
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const float2 v = s.product(i);
      pairs[i] = bf16_two(v.x + bf16_low(pairs[i]), v.y + bf16_high(pairs[i]));
      const float a = bf16_low(pairs[i]), b = bf16_high(pairs[i]);
      sums[s.thread_row(i)] += a * a + b * b;
    }
    s.template store<0>(pairs);
  }
  template <class T> __device__ __forceinline__ void end(const T &tile) const {
    tile.store_row_sums(tile.args.sums, sums);
  }
};
DEFINE_PROGRAM(Residual, residual)
