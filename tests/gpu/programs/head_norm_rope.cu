// qkv = r (A B^T), then RMSNorm of each of the q and k heads, of D columns, with a gain for each
// column, and their rotation, as Qwen3 has it: arXiv 2505.09388.
//   args.in[0] sums of squares of A's rows, inverse_D, eps, of the heads' norms, too;
//   columns[0] gains [N]; and those of Rotated (kernels/fused/bases.cuh)   stores[0] qkv [M, N]
//   FP8: args.a, b, row_scale of A
#include "kernels/fused/define.cuh"

template <int D, class In> struct HeadNormRope : Rotated<HeadNormRope<D, In>, In> {
  static constexpr int GROUP = D;
  using GroupValues = GroupSquares;
  using RowValues = Rstd<In>;
  using ColumnValues = Vectors<float>;

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t halves) const {
    const ProgramArgs &args = s.block.args;
    const float2 angle = this->angle_of(halves);
    float r = s.row_value(i);
    if (!this->is_rotated(s, i)) return bf16_two(v.x * r, v.y * r);
    r *= rsqrtf(s.group_value(i) * (r * r / D) + args.eps);
    const float2 gain = s.column_values(i);
    v = {v.x * r * gain.x, v.y * r * gain.y};
    rope_rotate(&v.x, &v.y, angle.x, angle.y);
    return bf16_two(v.x, v.y);
  }
};
template <class In> using HeadNormRope64 = HeadNormRope<64, In>;
template <class In> using HeadNormRope128 = HeadNormRope<128, In>;
DEFINE_PROGRAM(HeadNormRope64<Bf16>, head_norm_rope_64)
DEFINE_PROGRAM(HeadNormRope128<Bf16>, head_norm_rope_128)
DEFINE_PROGRAM(HeadNormRope64<E4m3<>>, head_norm_rope_64_fp8)
DEFINE_PROGRAM(HeadNormRope128<E4m3<>>, head_norm_rope_128_fp8)
