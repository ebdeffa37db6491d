// An activation that the next product reads in FP8: z = A B^T + b, and copies of silu(z) of z as
// stored, by rows and by columns.
//   args.columns[0] b [N], a, b, row_scale of A   stores[0] z [M, N]   copies of silu(z) [M, N]
#include "kernels/fused/define.cuh"

template <class In> struct SiluCopies : Pairs<SiluCopies<In>, In> {
  static constexpr int STATIC_COLS = 192;
  using Copies = CopyChunks<64>;
  using RowValues = ProductScale<In>;
  using ColumnValues = Vectors<float>;

  template <class S> DEVICE StoredAndCopied pair(const S &s, int i, float2 v) const {
    const float2 b = s.column_values(i);
    const uint32_t z = bf16_two(fmaf(v.x, s.row_value(i), b.x), fmaf(v.y, s.row_value(i), b.y));
    const float x = bf16_low(z), y = bf16_high(z);
    return {z, {x * sigmoid(x), y * sigmoid(y)}};
  }
};
DEFINE_PROGRAM(SiluCopies<E4m3<>>, silu_copies_fp8)
