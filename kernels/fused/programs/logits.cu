// logits = r (A B^T), and of the values as stored, for each row and tile of columns, the largest
// and the sum of exp(value - largest): parts of the row's log-sum-exp. (The target's logit is one
// element that the loss reads.)
//   args.sumsq, inverse_D, eps, softmax, softmax_stride   stores[0] logits [M, N]
#include "kernels/fused/define.cuh"

struct Logits : ProgramDefaults {
  using Stores = Chunks<64>;
  static constexpr bool ROW_VALUE = true;
  static __device__ __forceinline__ void row_values(const ProgramArgs &args, int row, int M,
                                                    FourRows &r) {
    rstd_of_rows(args, row, M, r);
  }
  static constexpr uint32_t MINUS_INFINITIES = 0xff80ff80; // two bf16
  OnlineSoftmax rows[2];

  template <class S> __device__ __forceinline__ void step(const S &s) {
#pragma unroll
    for (int first = 0; first < 16; first += 8) {
      uint32_t out[8];
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const float2 v = s.product(first + j);
        out[j] = s.inside(first + j) ? bf16_two(v.x * s.row_value(j), v.y * s.row_value(j))
                                     : MINUS_INFINITIES;
      }
      s.template store<0>(out, first);
#pragma unroll
      for (int h = 0; h < 2; h++) rows[h].add_every_second(out, h);
    }
  }
  __device__ __forceinline__ void end(const RowBlock &block) const {
    if (!block.args.softmax) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const OnlineSoftmax all = rows[h].across_quad();
      if (block.leads() && block.row(h) < block.M)
        block.args.softmax[block.column_tile * block.args.softmax_stride + block.row(h)] = {
            all.max, all.sum};
    }
  }
};
DEFINE_PROGRAM(Logits, logits)
