// RoPE on the packed rows of qkv, forward (with RMSNorm's row scale) and backward (with the row sum
// that RMSNorm's backward needs). arXiv 2104.09864; columns (2j, 2j + 1) of a head rotate together.
//   forward    q, k = rotate(r z), v = r z                               in place
//   backward   s = r sum of dqkv qkv; dq, dk = rotate^-1(r dqkv)        in place
// The sum may be taken before rotating back, against qkv after rotation: a rotation keeps the
// product. A lane's 8 values are 4 pairs, whose 4 cosines and sines are 32 bytes of the table; the
// rows of one position read them for each head, from the first-level cache.
#include "kernels/cuda/copies.cuh"
#include "kernels/unfused/kernels.h"

// direction: 1 forward, -1 back.
static __device__ __forceinline__ void rotate_pack(Pack<8> &p, const float4 *angles,
                                                   float direction) {
  const float4 a = __ldg(angles), b = __ldg(angles + 1);
  rope_rotate(&p.v[0], &p.v[1], a.x, direction * a.y);
  rope_rotate(&p.v[2], &p.v[3], a.z, direction * a.w);
  rope_rotate(&p.v[4], &p.v[5], b.x, direction * b.y);
  rope_rotate(&p.v[6], &p.v[7], b.z, direction * b.w);
}

// The angles of row m, two a float4.
static __device__ __forceinline__ const float4 *angles_at(const RopeShape &s, int64_t m) {
  const int64_t position = s.position ? *s.position : s.first + m % s.T;
  return reinterpret_cast<const float4 *>(s.table + position * s.d);
}

// A lane's walk over a row: column c, and its place in its head. No division by d: the step's is
// known.
struct Walk {
  int c, in_head, step, step_in_head;
};
static __device__ __forceinline__ Walk walk_start(int lane, int lanes, int d) {
  return {lane * 8, lane * 8 % d, lanes * 8, lanes * 8 % d};
}
static __device__ __forceinline__ void walk_on(Walk &w, int d) {
  w.c += w.step;
  w.in_head += w.step_in_head;
  if (w.in_head >= d) w.in_head -= d;
}

// BACK: x is dqkv, and z is qkv; s its result. Otherwise x is qkv.
template <bool BACK>
static __global__
__launch_bounds__(ROW_THREADS, BACK ? 4 : THREADS_AN_SM / ROW_THREADS) void rope_kernel(
    int64_t M, int lanes, RopeShape shape, RowScale r, const bf16_bits *__restrict__ z,
    bf16_bits *__restrict__ x, float *s) {
  const Lane l = my_lane(M, lanes); // lanes of rows past the end stay for the sums of their warp
  const float rstd = rstd_from_shares(r, row_share(r.sumsq, l.m, l.exists, l.lane, lanes), lanes),
              scale = r.q && l.exists ? rstd / r.q[l.m] : rstd;
  float sum = 0;
  if (l.exists) {
    const int R = (int)shape.R, rotated = (int)shape.rotated, d = (int)shape.d;
    const float4 *angles = angles_at(shape, l.m);
    const bf16_bits *z_row = z + l.m * R;
    bf16_bits *row = x + (shape.position ? *shape.position : l.m) * R;
    Walk w = walk_start(l.lane, lanes, d);
#pragma unroll 4
    for (; w.c < R; walk_on(w, d)) {
      Pack<8> of_z;
      if (BACK) of_z = load_pack<8>(z_row + w.c);
      Pack<8> p = load_pack<8>(row + w.c);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        p.v[i] *= scale;
        if (BACK) sum += p.v[i] * of_z.v[i];
      }
      if (w.c < rotated) rotate_pack(p, angles + w.in_head / 4, BACK ? -1 : 1);
      store_pack(row + w.c, p);
    }
  }
  if (!BACK) return;
  sum = group_sum(sum, lanes);
  if (l.lane == 0 && l.exists) s[l.m] = sum;
}

void launch_rope(int64_t M, RopeShape shape, RowScale r, act_t *qkv, cudaStream_t stream) {
  const int lanes = lanes_a_row(shape.R / 8);
  rope_kernel<false><<<row_blocks(M, lanes), ROW_THREADS, 0, stream>>>(M, lanes, shape, r, nullptr,
                                                                       bits(qkv), nullptr);
  LAUNCHED();
}

void launch_rope_backward(int64_t M, RopeShape shape, RowScale r, const act_t *qkv, act_t *dqkv,
                          RowStat *s, cudaStream_t stream) {
  const int lanes = lanes_a_row(shape.R / 8);
  rope_kernel<true><<<row_blocks(M, lanes), ROW_THREADS, 0, stream>>>(M, lanes, shape, r, bits(qkv),
                                                                      bits(dqkv), one_part(s));
  LAUNCHED();
}

// The same, away from dqkv and into FP8 copies. A lane's two columns are one pair that rotates.
struct RopeBackward {
  static constexpr bool STORES = false, STOCHASTIC = false;
  struct Row {
    float scale;
    uint32_t angles; // where they are in the table
  };
  struct Column {
    int at, in_head; // in_head < 0: not rotated
  };
  struct Raw {
    uint32_t gradient, z;
  };
  RopeShape shape;
  RowScale r;
  const bf16_bits *gradient, *z;

  __device__ Row row(int64_t m) const {
    return {row_rstd(r, m), (uint32_t)((shape.first + m % shape.T) * shape.d)};
  }
  __device__ void skip(int64_t m) {
    gradient += m * shape.R;
    z += m * shape.R;
  }
  __device__ Column column(int c) const {
    return {c, c < (int)shape.rotated ? c % (int)shape.d : -1};
  }
  __device__ Raw load(unsigned row, Column c) const {
    const unsigned at = row * (unsigned)shape.R + (unsigned)c.at;
    return {*reinterpret_cast<const uint32_t *>(gradient + at),
            *reinterpret_cast<const uint32_t *>(z + at)};
  }
  __device__ float2 pair(Row row, Column c, Raw raw, float *s) const {
    float2 v = {bf16_low(raw.gradient) * row.scale, bf16_high(raw.gradient) * row.scale};
    *s += v.x * bf16_low(raw.z) + v.y * bf16_high(raw.z);
    if (c.in_head < 0) return v;
    const float2 angle =
        __ldg(reinterpret_cast<const float2 *>(shape.table + (row.angles + (uint32_t)c.in_head)));
    rope_rotate(&v.x, &v.y, angle.x, -angle.y);
    return v;
  }
};

void launch_rope_backward_fp8(int64_t M, RopeShape shape, RowScale r, const act_t *qkv,
                              const act_t *dqkv, Operand out, Scaling *scaling, RowStat *s,
                              cudaStream_t stream) {
  const RopeBackward source = {shape, r, bits(dqkv), bits(qkv)};
  Copies to = copies_of(M, shape.R, out, scaling);
  to.sums = one_part(s);
  launch_copies(source, to, stream);
}
