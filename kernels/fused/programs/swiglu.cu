// z = r (A B^T), y = silu(gate) up of z's column pairs as stored: arXiv 2002.05202.
//   args.sumsq, inverse_D, eps   stores[0] z [M, N]   stores[1] y [M, N / 2]
#include "kernels/fused/define.cuh"

struct Swiglu : ProgramDefaults {
  using Stores = Chunks<64, 32>;
  static constexpr bool ROW_VALUE = true;
  static __device__ __forceinline__ void row_values(const ProgramArgs &args, int row, int M,
                                                    FourRows &r) {
    rstd_of_rows(args, row, M, r);
  }

  // 16 columns of z at a time. The order of features in a group of 8 pairs (pair_of_feature) makes
  // the pairs that a thread holds of two neighbouring blocks of 8 columns the features of one pair
  // of y.
  template <class S> __device__ __forceinline__ void step(const S &s) const {
    uint32_t y[4];
#pragma unroll
    for (int first = 0; first < 16; first += 4) {
      uint32_t z[4];
      float features[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 v = s.product(first + j);
        z[j] = bf16_two(v.x * s.row_value(j), v.y * s.row_value(j));
        features[j] = swiglu(bf16_low(z[j]), bf16_high(z[j]));
      }
      s.template store<0>(z, first);
      y[first / 2 % 4] = bf16_two(features[0], features[2]);
      y[first / 2 % 4 + 1] = bf16_two(features[1], features[3]);
      if (first % 8 == 4) s.template store<1>(y, first / 2 - 2);
    }
  }
};
DEFINE_PROGRAM(Swiglu, swiglu)
