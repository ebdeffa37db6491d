// The head in training and validation: P = exp(r (A B^T) - c) of each row's c, the softmax before
// its normaliser, 0 in the column of the row's target; and the row's sums of P and of P log2(P):
// see kernels.h.
//   args.in[0] sums of squares of A's rows, in[1] aims of rows (kernels.h), inverse_D, eps
//   stores[0] P [M, N or more columns, which become 0]   out[0] sums of P, out[1] of P log2(P)
//   FP8: args.a, b, row_scale of A
#include "kernels/fused/define.cuh"

// r log2(e), the exponent to start from and the target's column of each row.
template <class In> struct HeadRow {
  static constexpr int COUNT = 3;
  enum { SCALE, EXPONENT, TARGET };
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[COUNT]) {
    rstd_of_rows<2>(args, row, M, values[SCALE]);
    const RowStat aim = args.in[1];
    const float *from = reinterpret_cast<const float *>(aim.data) + row;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const bool exists = row + 32 * i < M;
      values[SCALE][i] *= LOG2_E;
      values[EXPONENT][i] = exists ? from[32 * i] : 0;
      values[TARGET][i] = exists ? from[aim.stride + 32 * i] : 0;
    }
    In::scale_rows(args, row, M, values[SCALE]);
  }
};

template <class In> struct Probabilities : ProgramDefaults<In> {
  using Stores = Chunks<64>;
  using RowValues = HeadRow<In>;
  static constexpr int TOGETHER = 8;
  static constexpr float NOTHING = -1e4f; // 2^NOTHING is 0, and so is their product
  RowSum sum, entropy;

  // Columns that do not belong to the sums, a target's or past N, are rare. A warp that has none
  // takes a step that does not test for them: without branches more exponentials overlap.
  template <class S> DEVICE void step(const S &s) {
    constexpr int LAST = 57; // a thread's last column in a step, counted from its first
    const int first_column = s.column(0), end = (int)s.block.N - first_column;
    const int target[2] = {(int)s.row_value(0, RowValues::TARGET) - first_column,
                           (int)s.row_value(1, RowValues::TARGET) - first_column};
    const bool some = (unsigned)target[0] <= LAST || (unsigned)target[1] <= LAST || end <= LAST;
    if (__any_sync(0xffffffffu, some)) // since a warp stores together
      add<true>(s, target, end);
    else
      add<false>(s, target, end);
  }
  DEVICE void end(const RowBlock &block) const {
    sum.store(block, block.args.out[0]);
    entropy.store(block, block.args.out[1]);
  }

private:
  // The thread's columns at `target` and from `end` on are left out, if SOME are.
  template <bool SOME, class S> DEVICE void add(const S &s, const int (&target)[2], int end) {
#pragma unroll
    for (int first = 0; first < 16; first += TOGETHER) {
      float exponents[2 * TOGETHER];
#pragma unroll
      for (int j = 0; j < TOGETHER; j++) {
        const float2 v = s.product(first + j);
        const float scale = s.row_value(j, RowValues::SCALE),
                    c = s.row_value(j, RowValues::EXPONENT);
        exponents[2 * j] = fmaf(v.x, scale, -c);
        exponents[2 * j + 1] = fmaf(v.y, scale, -c);
      }
      if constexpr (SOME) {
#pragma unroll
        for (int k = 0; k < 2 * TOGETHER; k++) {
          const int i = first + k / 2, column = 8 * (i >> 1) + k % 2;
          if (column == target[i & 1] || column >= end) exponents[k] = NOTHING;
        }
      }
      uint32_t stored[TOGETHER];
#pragma unroll
      for (int j = 0; j < TOGETHER; j++) {
        const float x = exp2_fast(exponents[2 * j]), y = exp2_fast(exponents[2 * j + 1]);
        sum.add(j, x);
        sum.add(j, y);
        entropy.add_product(j, x, exponents[2 * j]);
        entropy.add_product(j, y, exponents[2 * j + 1]);
        stored[j] = bf16_two(x, y);
      }
#ifdef __CUDA_ARCH__ // else the compiler puts the sums off, and keeps what they add in registers
#pragma unroll
      for (int h = 0; h < 2; h++) asm volatile("" : "+f"(sum.rows[h]), "+f"(entropy.rows[h]));
#endif
      s.template store<0>(stored, first);
    }
  }
};
DEFINE_PROGRAM(Probabilities<Bf16>, probabilities)
DEFINE_PROGRAM(Probabilities<E4m3<>>, probabilities_fp8)
