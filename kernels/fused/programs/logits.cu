// logits = r (A B^T), and of the values as stored, for each row and tile of columns, the largest
// and the sum of exp(value - largest): parts of the row's log-sum-exp. (The target's logit is one
// element that the loss reads.)
//   args.sumsq, inverse_D, eps, softmax, softmax_stride   stores[0] logits [M, N]
#include "kernels/fused/define.cuh"

struct Logits : ProgramDefaults {
  using Stores = Chunks<64>;
  static constexpr bool ROW_VALUE = true;
  static __device__ __forceinline__ float row_value(const ProgramArgs &args, int64_t row) {
    return rstd_of_row(args, row);
  }
  static constexpr uint32_t MINUS_INFINITIES = 0xff80ff80; // two bf16
  OnlineSoftmax rows[MAX_THREAD_ROWS];

  template <class S> __device__ __forceinline__ void step(const S &s) {
    float r[2];
    s.load_row_values(r);
    uint32_t out[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const float2 v = s.product(i);
      out[i] = s.inside(i) ? bf16_two(v.x * r[i & 1], v.y * r[i & 1]) : MINUS_INFINITIES;
    }
    s.template store<0>(out);
    rows[s.thread_row(0)].add_every_second(out, 0);
    rows[s.thread_row(1)].add_every_second(out, 1);
  }
  template <class T> __device__ __forceinline__ void end(const T &tile) const {
    if (!tile.args.softmax) return;
#pragma unroll
    for (int t = 0; t < MAX_THREAD_ROWS; t++) {
      if (t >= tile.thread_rows) break;
      const OnlineSoftmax all = rows[t].across_quad();
      if (tile.leads() && tile.row(t) < tile.M)
        tile.args.softmax[tile.column_tile * tile.args.softmax_stride + tile.row(t)] = {all.max,
                                                                                        all.sum};
    }
  }
};
DEFINE_PROGRAM(Logits, logits)
