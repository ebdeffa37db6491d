// y = A B^T / a, where a is the largest magnitude in A's row; and the largest magnitudes in y's
// rows, as stored, for the program that reads y.
//   args.in[0] largest magnitudes in A's rows, params[0].f the least a   stores[0] y [M, N]
//   args.out[0] largest magnitudes in y's rows
#include "kernels/fused/define.cuh"

struct InverseMax {
  static constexpr int COUNT = 1;
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[COUNT]) {
    row_totals<RowMax>(args.in[0], row, M, values[0]);
#pragma unroll
    for (int i = 0; i < 4; i++) values[0][i] = 1 / max_with_nan(values[0][i], args.params[0].f);
  }
};

struct Absmax : Pairs<Absmax> {
  using RowValues = InverseMax;
  RowMax largest;

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v) {
    const uint32_t y = bf16_two(v.x * s.row_value(i), v.y * s.row_value(i));
    largest.add(i, fabsf(bf16_low(y)));
    largest.add(i, fabsf(bf16_high(y)));
    return y;
  }
  DEVICE void end(const RowBlock &block) const {
    largest.store(block, block.args.out[0]);
  }
};
DEFINE_PROGRAM(Absmax, absmax)
