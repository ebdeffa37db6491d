// A product after RMSNorm, and the parts of its rows' log-sum-exp.
#pragma once
#include "kernels/fused/bases.cuh"

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
