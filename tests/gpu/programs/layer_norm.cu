// out = LayerNorm(x) W^T + b with A = x, B = W: r (A B^T - mean w) + b, where w[n] is the sum of
// W's row n. The norm's gain is folded into W, its shift into b. And of out's rows, as stored, the
// sums and the sums of squares for the next norm. arXiv 1607.06450.
//   args.in[0] sums of squares of A's rows, in[1] their sums, inverse_D, eps, columns[0] w [N]
//   fp32, columns[1] b [N] bf16   stores[0] out [M, N]   args.out[0] sums of squares, out[1] sums
#include "kernels/fused/define.cuh"

struct MeanAndRstd {
  static constexpr int COUNT = 2;
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[COUNT]) {
    FourRows &mean = values[0], &r = values[1];
    row_totals<RowSum, 2>(args.in[1], row, M, mean);
    row_totals<RowSum, 2>(args.in[0], row, M, r);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      mean[i] *= args.inverse_D;
      r[i] = rsqrtf(r[i] * args.inverse_D - mean[i] * mean[i] + args.eps);
    }
  }
};

struct LayerNorm : Pairs<LayerNorm> {
  using RowValues = MeanAndRstd;
  using ColumnValues = Vectors<float, uint16_t>;
  RowSum squares, sums;

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v) {
    const float2 w = s.column_values(i, 0), b = s.column_values(i, 1);
    const float mean = s.row_value(i, 0), r = s.row_value(i, 1);
    const uint32_t out = bf16_two(fmaf(r, v.x - mean * w.x, b.x), fmaf(r, v.y - mean * w.y, b.y));
    squares.add_squares(i, out);
    sums.add(i, bf16_low(out) + bf16_high(out));
    return out;
  }
  DEVICE void end(const RowBlock &block) const {
    squares.store(block, block.args.out[0]);
    sums.store(block, block.args.out[1]);
  }
};
DEFINE_PROGRAM(LayerNorm, layer_norm)
