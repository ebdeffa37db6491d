// out = x + A B^T; the sum of squares of out's rows, as stored. Attention's output and the MLP's
// down projection.
//   loads[0] x [M, N]   stores[0] out [M, N]   args.out[0] sums of squares
#include "kernels/fused/define.cuh"

struct Residual : Pairs<Residual> {
  using Loads = Chunks<64>;
  RowSum squares;

  template <class S> DEVICE uint32_t pair(const S &, int i, float2 v, uint32_t x) {
    const uint32_t out = bf16_two(v.x + bf16_low(x), v.y + bf16_high(x));
    squares.add_squares(i, out);
    return out;
  }
  DEVICE void end(const RowBlock &block) const {
    squares.store(block, block.args.out[0]);
  }
};
DEFINE_PROGRAM(Residual, residual)
