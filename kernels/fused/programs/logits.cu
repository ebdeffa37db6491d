// logits = r (A B^T), and of the values as stored, for each row and tile of columns, the largest
// and the sum of exp(value - largest): parts of the row's log-sum-exp. (The target's logit is one
// element that the loss reads.)
//   args.in[0] sums of squares of A's rows, inverse_D, eps   stores[0] logits [M, N]
//   args.out[0] parts of MaxSum, or data NULL
#include "kernels/fused/define.cuh"

struct Logits : Pairs<Logits, 8> {
  using RowValues = Rstd;
  RowSoftmax softmax;

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v) const {
    if (!s.inside(i)) return RowSoftmax::MINUS_INFINITIES;
    return bf16_two(v.x * s.row_value(i), v.y * s.row_value(i));
  }
  DEVICE void stored(const uint32_t (&logits)[8]) {
    softmax.add(logits);
  }
  DEVICE void end(const RowBlock &block) const {
    if (block.args.out[0].data) softmax.store(block, block.args.out[0]);
  }
};
DEFINE_PROGRAM(Logits, logits)
