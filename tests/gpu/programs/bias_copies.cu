// A product with a bias as FP8 copies, by rows and by columns, and nothing else.
//   args.columns[0] b [N], a, b, row_scale of A   copies of A B^T + b [M, N]
#include "kernels/fused/define.cuh"

template <class In> struct BiasCopies : Pairs<BiasCopies<In>, In> {
  using Stores = Chunks<>;
  using Copies = CopyChunks<64>;
  using RowValues = ProductScale<In>;
  using ColumnValues = Vectors<float>;

  template <class S> DEVICE float2 pair(const S &s, int i, float2 v) const {
    const float2 b = s.column_values(i);
    return {fmaf(v.x, s.row_value(i), b.x), fmaf(v.y, s.row_value(i), b.y)};
  }
};
DEFINE_PROGRAM(BiasCopies<E4m3<>>, bias_copies_fp8)
