// qkv = r (A B^T), then the pairs of the q and k heads rotated by their row's position.
//   args.in[0] sums of squares of A's rows, inverse_D, eps, and those of Rotated (bases.cuh)
//   stores[0] qkv [M, N]
//   FP8: args.a, b, row_scale of A
#include "kernels/fused/define.cuh"

template <class In> struct Rope : Rotated<Rope<In>, In> {
  using RowValues = Rstd<In>;

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t halves) const {
    const float2 angle = this->angle_of(halves);
    v.x *= s.row_value(i), v.y *= s.row_value(i);
    if (this->is_rotated(s, i)) rope_rotate(&v.x, &v.y, angle.x, angle.y);
    return bf16_two(v.x, v.y);
  }
};
DEFINE_PROGRAM(Rope<Bf16>, rope)
DEFINE_PROGRAM(Rope<E4m3<>>, rope_fp8)
