// qkv = r (A B^T), then the pairs of the q and k heads rotated by their row's position: arXiv
// 2104.09864.
//   args.in[0] sums of squares of A's rows, inverse_D, eps, params (rope.h)
//   stores[0] qkv [M, N]
//   loads[0] cosines and sines of pairs as fp16, [positions, columns]: row p holds, at columns c
//   and c + 1, those of position p and of the pair at c % head_dim. A step takes 64 x 64 of it, so
//   rows up to first + period + 62 and columns up to head_dim + 63 are read; beyond may lie
//   anything.
//   FP8: args.a, b, row_scale of A
#include <cuda_fp16.h>
#include "kernels/fused/define.cuh"
#include "kernels/fused/rope.h"

template <class In> struct Rope : Pairs<Rope<In>, In> {
  using Loads = Chunks<64>;
  using RowValues = Rstd<In>;
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
DEFINE_PROGRAM(Rope<Bf16>, rope)
DEFINE_PROGRAM(Rope<E4m3<>>, rope_fp8)
