// qkv = r (A B^T), then the pairs of the q and k heads rotated by their row's position: arXiv
// 2104.09864.
//   args.sumsq, inverse_D, eps, first, period, head_dim, rotated   stores[0] qkv [M, N]
//   loads[0] cosines and sines of pairs as fp16, [positions, columns]: row p holds, at columns c
//   and c + 1, those of position p and of the pair at c % head_dim. Rows up to first + period + 62
//   and columns up to head_dim + 63 are read (in the order of args.first and period), so that 64 x
//   64 of it are what a step needs; beyond may lie anything.
#include <cuda_fp16.h>
#include "kernels/fused/define.cuh"

struct Rope : ProgramDefaults {
  using Loads = Chunks<64>;
  using Stores = Chunks<64>;
  static constexpr bool ROW_VALUE = true;
  static __device__ __forceinline__ void row_values(const ProgramArgs &args, int row, int M,
                                                    FourRows &r) {
    rstd_of_rows(args, row, M, r);
  }
  static __device__ __forceinline__ void load_position(const ProgramArgs &args, int, int &row,
                                                       int &column) {
    row = args.first + row % args.period;
    column = column % args.head_dim;
  }

  template <class S> __device__ __forceinline__ void step(const S &s) const {
#pragma unroll
    for (int first = 0; first < 16; first += 4) {
      uint32_t pairs[4];
      s.template load<0>(pairs, first);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float2 v = s.product(first + j);
        v.x *= s.row_value(j), v.y *= s.row_value(j);
        const float2 angle = __half22float2(*reinterpret_cast<const __half2 *>(&pairs[j]));
        if (s.column(first + j) < s.block.args.rotated) rope_rotate(&v.x, &v.y, angle.x, angle.y);
        pairs[j] = bf16_two(v.x, v.y);
      }
      s.template store<0>(pairs, first);
    }
  }
};
DEFINE_PROGRAM(Rope, rope)
