// A product's columns rotated by their row's position.
#pragma once
#include <cuda_fp16.h>
#include "kernels/fused/bases.cuh"
#include "kernels/fused/rope.h"

struct Rope : Pairs<Rope> {
  using Loads = Chunks<64>;
  using RowValues = Rstd;
  static DEVICE void load_position(const ProgramArgs &args, int, int &row, int &column) {
    row = args.params[ROPE_FIRST].i + row % args.params[ROPE_PERIOD].i;
    column = column % args.params[ROPE_HEAD_DIM].i;
  }

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t halves) const {
    const float2 angle = __half22float2(*reinterpret_cast<const __half2 *>(&halves));
    v.x *= s.row_value(i), v.y *= s.row_value(i);
    if (s.column(i) < s.block.args.params[ROPE_ROTATED].i)
      rope_rotate(&v.x, &v.y, angle.x, angle.y);
    return bf16_two(v.x, v.y);
  }
};
