// Kernels that walk over rows: sums of squares, RMSNorm's backward term, RoPE, SwiGLU.
#include "kernels/cuda/copies.cuh"
#include "kernels/unfused/unfused.h"

// ---- Sums of squares, RMSNorm's backward

enum { AHEAD = 4 }; // loads in flight before the first is used

template <int N>
static __global__ void row_sumsq_kernel(int64_t M, int D, int lanes, const bf16_bits *x,
                                        float *sumsq) {
  const Lane l = my_lane(M, lanes);
  float sum = 0;
  const int stride = lanes * N, end = l.exists ? D : 0;
  for (int k = l.lane * N; k < end; k += AHEAD * stride) {
    Pack<N> p[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
      if (k + j * stride < end) p[j] = load_pack<N>(x + l.m * D + k + j * stride);
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
      if (k + j * stride < end) sum += square_sum(p[j]);
  }
  sum = group_sum(sum, lanes);
  if (l.lane == 0 && l.exists) sumsq[l.m] = sum;
}

template <int N>
static __global__ void
norm_backward_kernel(int64_t M, int lanes, RowScale r, const bf16_bits *__restrict__ x, RowStat s,
                     const float *__restrict__ u, const bf16_bits *__restrict__ from,
                     bf16_bits *__restrict__ dx) {
  const Lane l = my_lane(M, lanes);
  const int D = (int)r.D;
  const float of_s = row_share(s, l.m, l.exists, l.lane, lanes),
              of_r = row_share(r.sumsq, l.m, l.exists, l.lane, lanes);
  const float factor = rstd_from_shares(r, of_r, lanes) / (float)D * group_sum(of_s, lanes);
  if (!l.exists) return;
  const float scale = u ? u[l.m] : 1;
#pragma unroll 4
  for (int k = l.lane * N; k < D; k += lanes * N) {
    const Pack<N> a = load_pack<N>(x + l.m * D + k);
    Pack<N> g = load_pack<N>(from + l.m * D + k);
#pragma unroll
    for (int i = 0; i < N; i++) g.v[i] = scale * g.v[i] - factor * a.v[i];
    store_pack(dx + l.m * D + k, g);
  }
}

void launch_row_sumsq(int64_t M, int64_t D, const act_t *x, RowStat *sumsq, cudaStream_t stream) {
  by_width(D, [&](auto width, int lanes) {
    row_sumsq_kernel<decltype(width)::value><<<row_blocks(M, lanes), ROW_THREADS, 0, stream>>>(
        M, (int)D, lanes, bits(x), one_part(sumsq));
  });
}

void launch_norm_backward(int64_t M, RowScale r, const act_t *x, RowStat s, const stat_t *u,
                          const act_t *from, act_t *dx, cudaStream_t stream) {
  by_width(r.D, [&](auto width, int lanes) {
    norm_backward_kernel<decltype(width)::value><<<row_blocks(M, lanes), ROW_THREADS, 0, stream>>>(
        M, lanes, r, bits(x), s, reinterpret_cast<const float *>(u), bits(from), bits(dx));
  });
}

// In FP8: dx = q product - (r / D) q s x + residual, in bf16 and as copies.
struct NormBackward {
  static constexpr bool STORES = true, STOCHASTIC = false, SUMS = false;
  struct Row {
    float of_product, of_x;
  };
  using Column = int;
  struct Raw {
    uint2 product, x, residual;
  };
  RowScale r;
  RowStat s;
  const float *q;
  const bf16_bits *product, *x, *residual; // residual: or NULL

  __device__ Row row(int64_t m) const {
    return {q[m], row_rstd(r, m) / (float)r.D * q[m] * row_sum(s, m)};
  }
  __device__ void skip(int64_t m) {
    product += m * r.D;
    x += m * r.D;
    if (residual) residual += m * r.D;
  }
  __device__ Column column(int c) const {
    return c;
  }
  __device__ Raw load(unsigned row, Column c) const {
    const unsigned before = row * (unsigned)r.D;
    return {*reinterpret_cast<const uint2 *>(product + c + before),
            *reinterpret_cast<const uint2 *>(x + c + before),
            residual ? *reinterpret_cast<const uint2 *>(residual + c + before) : uint2{}};
  }
  __device__ float4 four(const Row &row, Column, Raw raw, float *) const {
    const Pack<4> a = widen(raw.product), b = widen(raw.x), c = widen(raw.residual);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = a.v[i] * row.of_product - b.v[i] * row.of_x + c.v[i];
    return {v[0], v[1], v[2], v[3]};
  }
};

void launch_norm_backward_fp8(int64_t M, RowScale r, Operand x, RowStat s, const act_t *residual,
                              const act_t *product, Operand dx, Scaling *scaling,
                              cudaStream_t stream) {
  const NormBackward source = {r,
                               s,
                               reinterpret_cast<const float *>(x.row_scale),
                               bits(product),
                               bits((const act_t *)x.data),
                               bits(residual)};
  Copies to = copies_of(M, r.D, dx, scaling);
  to.data = bits(dx.data);
  launch_copies(source, to, stream);
}

// ---- RoPE on the packed rows of qkv: the forward applies RMSNorm's row scale, and the backward
// computes the row sum for RMSNorm's backward. arXiv 2104.09864; columns (2j, 2j + 1) of a head
// rotate together.
//   forward    q, k = rotate(r z), v = r z                               in place
//   backward   s = r sum of dqkv qkv; dq, dk = rotate^-1(r dqkv)        in place
// The sum may be computed before rotating back, with the rotated qkv: a rotation keeps the product.
// A lane's 8 values are 4 pairs, whose 4 cosines and sines are 32 bytes of the table; the rows of
// one position read them for each head, from the first-level cache.

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
  return reinterpret_cast<const float4 *>(s.table + (s.first + m % s.T) * s.d);
}

// A lane's loop over a row: column c, and its position in its head. It needs no division by d,
// since the position advances by a known step.
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
    bf16_bits *row = x + l.m * R;
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

// The same, away from dqkv and into FP8 copies. Four columns are two pairs that rotate.
struct RopeBackward {
  static constexpr bool STORES = false, STOCHASTIC = false, SUMS = true;
  struct Row {
    float scale;
    uint32_t angles; // their index in the table
  };
  struct Column {
    int at, in_head; // in_head < 0 where they are not rotated
  };
  struct Raw {
    uint2 gradient, z;
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
    const unsigned before = row * (unsigned)shape.R;
    return {*reinterpret_cast<const uint2 *>(gradient + c.at + before),
            *reinterpret_cast<const uint2 *>(z + c.at + before)};
  }
  __device__ float4 four(const Row &row, Column c, Raw raw, float *s) const {
    Pack<4> v = widen(raw.gradient);
    const Pack<4> of_z = widen(raw.z);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      v.v[i] *= row.scale;
      *s += v.v[i] * of_z.v[i];
    }
    if (c.in_head >= 0) {
      const float4 angles =
          __ldg(reinterpret_cast<const float4 *>(shape.table + row.angles + c.in_head));
      rope_rotate(&v.v[0], &v.v[1], angles.x, -angles.y);
      rope_rotate(&v.v[2], &v.v[3], angles.z, -angles.w);
    }
    return {v.v[0], v.v[1], v.v[2], v.v[3]};
  }
};

void launch_rope_backward_fp8(int64_t M, RopeShape shape, RowScale r, const act_t *qkv,
                              const act_t *dqkv, Operand out, Scaling *scaling, RowStat *s,
                              cudaStream_t stream) {
  const RopeBackward source = {shape, r, bits(dqkv), bits(qkv)};
  Copies to = copies_of(M, shape.R, out, scaling);
  to.sums = sums_of_copies(shape.R, s);
  launch_copies(source, to, stream);
}

// ---- SwiGLU over the column pairs of z, forward and backward. gate = r z[2p], up = r z[2p + 1]
// (kernels/math.h):
//   forward    y = silu(gate) up
//   backward   dz' = r (dgate, dup) for dy, s = row sum of dz' (gate, up)
// z holds the plain product x W'^T: r is applied here, so the forward pass reads z and writes y
// only. In FP8 the forward writes e4m3 of r z besides, which the backward reads.
//
// Feature order: inside a group of 8 pairs (32 bytes of z, 16 of y) pairs 0 to 3 hold features 0 2
// 4 6 and pairs 4 to 7 features 1 3 5 7. So that every access of a warp covers whole lines, a lane
// loads half a group: lanes 2i and 2i + 1 hold group i of the first 512 columns of a tile and group
// 16 + i of the next 512. They exchange halves by a shuffle: then the even lane has all of y's
// first group, and the odd lane all of its second.
// Where F is no multiple of 8, the plain kernels at the end run, with a thread per pair.

enum { TILE = 64 }; // 16-byte vectors of z that a warp loads at a time, two per lane

struct Pairs { // four column pairs of z, scaled by r
  float gate[4], up[4];
};

static __device__ __forceinline__ Pairs load_pairs(const bf16_bits *z, float r) {
  const Pack<8> p = load_pack<8>(z);
  Pairs q;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    q.gate[i] = p.v[2 * i] * r;
    q.up[i] = p.v[2 * i + 1] * r;
  }
  return q;
}

static __device__ __forceinline__ uint2 swiglu_four(const Pairs &q) {
  Pack<4> y;
#pragma unroll
  for (int i = 0; i < 4; i++) y.v[i] = swiglu(q.gate[i], q.up[i]);
  return narrow(y);
}

// The two lanes of a pair exchange halves: each sends the half that the other one stores, and
// receives the half that it stores itself.
static __device__ __forceinline__ uint2 trade(uint2 first, uint2 second, bool odd) {
  const uint2 give = odd ? first : second;
  return {__shfl_xor_sync(0xffffffffu, give.x, 1), __shfl_xor_sync(0xffffffffu, give.y, 1)};
}

// y's group from the halves with its even and its odd features.
static __device__ __forceinline__ uint4 interleave(uint2 even, uint2 odd) {
  return {__byte_perm(even.x, odd.x, 0x5410), __byte_perm(even.x, odd.x, 0x7632),
          __byte_perm(even.y, odd.y, 0x5410), __byte_perm(even.y, odd.y, 0x7632)};
}

// Stores y's groups of a tile. first, second: this lane's halves in the tile's two parts.
static __device__ __forceinline__ void store_y(bf16_bits *y_row, int vector, int vectors,
                                               uint2 first, uint2 second) {
  const bool odd = threadIdx.x & 1;
  const uint2 got = trade(first, second, odd);
  const uint4 group = odd ? interleave(got, second) : interleave(first, got);
  const int mine = odd ? vector + TILE / 2 : vector; // a vector of the group that this lane stores
  if (mine < vectors) *reinterpret_cast<uint4 *>(y_row + mine / 2 * 8) = group;
}

// Launch: one warp a tile.
static __global__ void swiglu_kernel(int64_t M, int vectors, int tiles, RowScale r,
                                     const bf16_bits *z, bf16_bits *y) {
  const int64_t warp = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int64_t m = warp / tiles;
  if (m >= M) return;
  const int vector = (int)(warp - m * tiles) * TILE + threadIdx.x % 32;
  const float scale = row_rstd(r, m);
  const bf16_bits *row = z + m * vectors * 8;
  uint2 first = {0, 0}, second = {0, 0};
  if (vector < vectors) first = swiglu_four(load_pairs(row + vector * 8, scale));
  if (vector + TILE / 2 < vectors)
    second = swiglu_four(load_pairs(row + (vector + TILE / 2) * 8, scale));
  store_y(y + m * vectors * 4, vector, vectors, first, second);
}

// Gradients of four pairs for their dy, stored to dz; returns their part of s.
static __device__ __forceinline__ float backward_four(const Pairs &q, uint2 dy_bits, float r,
                                                      bf16_bits *dz) {
  const Pack<4> dy = widen(dy_bits);
  Pack<8> g;
#pragma unroll
  for (int i = 0; i < 4; i++)
    swiglu_backward(q.gate[i], q.up[i], r * dy.v[i], &g.v[2 * i], &g.v[2 * i + 1]);
  store_pack(dz, g);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) sum += g.v[2 * i] * q.gate[i] + g.v[2 * i + 1] * q.up[i];
  return sum;
}

// Launch: one block a row, at most 8 warps.
static __global__ void swiglu_backward_kernel(int vectors, RowScale r, const bf16_bits *z,
                                              const bf16_bits *dy, bf16_bits *dz, float *s) {
  __shared__ float scratch[32];
  const int64_t m = blockIdx.x;
  const float scale = row_rstd(r, m);
  const bf16_bits *z_row = z + m * vectors * 8, *dy_row = dy + m * vectors * 4;
  bf16_bits *dz_row = dz + m * vectors * 8;
  const bool odd = threadIdx.x & 1;
  float sum = 0;
  for (int base = (int)(threadIdx.x / 32) * TILE; base < vectors;
       base += (int)blockDim.x / 32 * TILE) {
    const int vector = base + (int)(threadIdx.x % 32), next = vector + TILE / 2;
    const int mine = odd ? next : vector;
    uint4 d = {0, 0, 0, 0};
    Pairs a = {}, b = {};
    if (mine < vectors) d = *reinterpret_cast<const uint4 *>(dy_row + mine / 2 * 8);
    if (vector < vectors) a = load_pairs(z_row + vector * 8, scale);
    if (next < vectors) b = load_pairs(z_row + next * 8, scale);
    const uint2 evens = {__byte_perm(d.x, d.y, 0x5410), __byte_perm(d.z, d.w, 0x5410)},
                odds = {__byte_perm(d.x, d.y, 0x7632), __byte_perm(d.z, d.w, 0x7632)};
    const uint2 got = trade(evens, odds, odd); // an odd lane gives the even features of its group
    if (vector < vectors) sum += backward_four(a, odd ? got : evens, scale, dz_row + vector * 8);
    if (next < vectors) sum += backward_four(b, odd ? odds : got, scale, dz_row + next * 8);
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) s[m] = sum;
}

// ---- Any F. Launch: one block of 256 threads a row. out: y, or BACK dz.
template <bool BACK>
static __global__ void swiglu_any_kernel(int64_t F, RowScale r, const bf16_bits *z,
                                         const bf16_bits *dy, bf16_bits *out, float *s) {
  __shared__ float scratch[32];
  const int64_t m = blockIdx.x;
  const float scale = row_rstd(r, m);
  float sum = 0;
  for (int64_t p = threadIdx.x; p < F; p += blockDim.x) {
    const int64_t at = m * 2 * F + 2 * p, feature = m * F + feature_of_pair(p, F);
    const float gate = scale * bf16_to_float(z[at]), up = scale * bf16_to_float(z[at + 1]);
    if (!BACK) {
      out[feature] = bf16_from_float(swiglu(gate, up));
      continue;
    }
    float dgate, dup;
    swiglu_backward(gate, up, scale * bf16_to_float(dy[feature]), &dgate, &dup);
    out[at] = bf16_from_float(dgate);
    out[at + 1] = bf16_from_float(dup);
    sum += bf16_to_float(out[at]) * gate + bf16_to_float(out[at + 1]) * up;
  }
  if (!BACK) return;
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) s[m] = sum;
}

// Tiles of a row of z.
static int tiles_of(int64_t F) {
  return (int)((F / 4 + TILE - 1) / TILE);
}

void launch_swiglu(int64_t M, int64_t F, RowScale r, const act_t *z, act_t *y,
                   cudaStream_t stream) {
  if (F % 8 == 0)
    swiglu_kernel<<<blocks_for(M * tiles_of(F), 8), 256, 0, stream>>>(M, (int)(F / 4), tiles_of(F),
                                                                      r, bits(z), bits(y));
  else
    swiglu_any_kernel<false>
        <<<(unsigned)M, 256, 0, stream>>>(F, r, bits(z), nullptr, bits(y), nullptr);
  LAUNCHED();
}

void launch_swiglu_backward(int64_t M, int64_t F, RowScale r, const act_t *z, const act_t *dy,
                            act_t *dz, RowStat *s, cudaStream_t stream) {
  if (F % 8 == 0)
    swiglu_backward_kernel<<<(unsigned)M, 32 * min(tiles_of(F), 8), 0, stream>>>(
        (int)(F / 4), r, bits(z), bits(dy), bits(dz), one_part(s));
  else
    swiglu_any_kernel<true>
        <<<(unsigned)M, 256, 0, stream>>>(F, r, bits(z), bits(dy), bits(dz), one_part(s));
  LAUNCHED();
}

// ---- In FP8: y and dz' as copies, and z as kernels/formats.h has it. F is a multiple of 16.

// Features f .. f + 3 are pairs p, p + 4, p + 1 and p + 5 of a group, and eight neighbouring bytes
// of z.
struct SwigluCopies {
  static constexpr bool STORES = false, STOCHASTIC = false, SUMS = false;
  struct Row {
    uint8_t *z;
    float r;
  };
  using Column = int; // p; past the last feature at least F
  struct Raw {
    uint2 even, odd;
  };
  int F;
  RowScale r;
  const bf16_bits *product;
  uint8_t *z;

  __device__ Row row(int64_t m) const {
    return {z + m * 2 * F, row_rstd(r, m)};
  }
  __device__ void skip(int64_t m) {
    product += m * 2 * F;
  }
  __device__ Column column(int f) const {
    return f < F ? (int)pair_of_feature(f, F) : f;
  }
  __device__ Raw load(unsigned row, Column p) const {
    const bf16_bits *pairs = product + 2 * p + row * 2 * (unsigned)F;
    return {*reinterpret_cast<const uint2 *>(pairs), *reinterpret_cast<const uint2 *>(pairs + 8)};
  }
  __device__ float4 four(const Row &row, Column p, Raw raw, float *) const {
    const Pack<4> a = widen(raw.even), b = widen(raw.odd);
    const float s = row.r / Z_DIVISOR;
    if (row.z && p < F)
      *reinterpret_cast<uint2 *>(row.z + fp8_column_place(2 * p)) = {
          e4m3_four(a.v[0] * s, a.v[1] * s, b.v[0] * s, b.v[1] * s),
          e4m3_four(a.v[2] * s, a.v[3] * s, b.v[2] * s, b.v[3] * s)};
    return {swiglu(a.v[0] * row.r, a.v[1] * row.r), swiglu(b.v[0] * row.r, b.v[1] * row.r),
            swiglu(a.v[2] * row.r, a.v[3] * row.r), swiglu(b.v[2] * row.r, b.v[3] * row.r)};
  }
};

void launch_swiglu_fp8(int64_t M, int64_t F, RowScale r, const act_t *product, act_t *z, Operand y,
                       Scaling *scaling, cudaStream_t stream) {
  launch_copies(SwigluCopies{(int)F, r, bits(product), reinterpret_cast<uint8_t *>(z)},
                copies_of(M, F, y, scaling), stream);
}

struct SwigluBackward { // four columns are gate and up of the features f and f + 2
  static constexpr bool STORES = false, STOCHASTIC = false, SUMS = true;
  struct Row {
    float r;
  };
  struct Column {
    int at, feature;
  };
  struct Raw {
    uint16_t z[2]; // of the features' pairs
    bf16_bits dy[2];
  };
  int F;
  RowScale r;
  const uint8_t *z;
  const bf16_bits *dy;

  __device__ Row row(int64_t m) const {
    return {row_rstd(r, m)};
  }
  __device__ void skip(int64_t m) {
    z += m * 2 * F;
    dy += m * F;
  }
  __device__ Column column(int c) const {
    return {c, (int)feature_of_pair(c / 2, F)};
  }
  __device__ Raw load(unsigned row, Column c) const {
    const bf16_bits *of_row = dy + c.feature + row * (unsigned)F;
    const uint16_t *pairs =
        reinterpret_cast<const uint16_t *>(z + fp8_column_place(c.at) + row * 2 * (unsigned)F);
    return {{pairs[0], pairs[2]}, {of_row[0], of_row[2]}};
  }
  __device__ float4 four(const Row &row, Column, Raw raw, float *s) const {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const __half2 pair = half2_of_e4m3(raw.z[i / 2]);
      const float gate = Z_DIVISOR * __low2float(pair), up = Z_DIVISOR * __high2float(pair);
      swiglu_backward(gate, up, row.r * bf16_to_float(raw.dy[i / 2]), &v[i], &v[i + 1]);
      *s += v[i] * gate + v[i + 1] * up;
    }
    return {v[0], v[1], v[2], v[3]};
  }
};

void launch_swiglu_backward_fp8(int64_t M, int64_t F, RowScale r, const act_t *z, const act_t *dy,
                                Operand dz, Scaling *scaling, RowStat *s, cudaStream_t stream) {
  Copies to = copies_of(M, 2 * F, dz, scaling);
  to.sums = sums_of_copies(2 * F, s);
  launch_copies(SwigluBackward{(int)F, r, reinterpret_cast<const uint8_t *>(z), bits(dy)}, to,
                stream);
}
