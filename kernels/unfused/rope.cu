// RoPE on the packed rows of qkv, forward (with RMSNorm's row scale) and backward (with the row sum
// that RMSNorm's backward needs). arXiv 2104.09864; columns (2j, 2j + 1) of a head rotate together.
//   forward    q, k = rotate(r z), v = r z                               in place
//   backward   s = r sum of dqkv qkv; dq, dk = rotate^-1(r dqkv)        in place
// The sum may be taken before rotating back, against qkv after rotation: a rotation keeps the
// product. Launch: one warp a row, 8 warps a block. A lane's 8 values are 4 pairs, whose 4 cosines
// and sines are 32 bytes of the table; the rows of one position read them for each head, from the
// first-level cache.
#include "kernels/unfused/common.cuh"

enum { WARPS = 8 };

// direction: 1 forward, -1 back.
static __device__ __forceinline__ void rotate_pack(Pack<8> &p, const float4 *angles,
                                                   float direction) {
  const float4 a = __ldg(angles), b = __ldg(angles + 1);
  rope_rotate(&p.v[0], &p.v[1], a.x, direction * a.y);
  rope_rotate(&p.v[2], &p.v[3], a.z, direction * a.w);
  rope_rotate(&p.v[4], &p.v[5], b.x, direction * b.y);
  rope_rotate(&p.v[6], &p.v[7], b.z, direction * b.w);
}

// Where the angles of the head columns at `column` lie, row `position` of the table.
static __device__ __forceinline__ const float4 *angles_at(const RopeShape &s, int64_t m,
                                                          int column_in_head) {
  const int64_t position = s.first + m % s.T;
  return reinterpret_cast<const float4 *>(s.table + position * s.d + column_in_head);
}

static __global__ void rope_kernel(int64_t M, RopeShape shape, RowScale r, bf16_bits *qkv) {
  const int64_t m = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (m >= M) return;
  const float scale = row_rstd(r, m);
  const int R = (int)shape.R, rotated = (int)shape.rotated, d = (int)shape.d;
  const float4 *angles = angles_at(shape, m, 0);
  bf16_bits *row = qkv + m * R;
#pragma unroll 4
  for (int c = threadIdx.x % 32 * 8; c < R; c += 256) {
    Pack<8> p = load_pack<8>(row + c);
#pragma unroll
    for (int i = 0; i < 8; i++) p.v[i] *= scale;
    if (c < rotated) rotate_pack(p, angles + c % d / 4, 1);
    store_pack(row + c, p);
  }
}

static __global__ void rope_backward_kernel(int64_t M, RopeShape shape, RowScale r,
                                            const bf16_bits *qkv, bf16_bits *dqkv, float *s) {
  const int64_t m = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
  if (m >= M) return;
  const float scale = row_rstd(r, m);
  const int R = (int)shape.R, rotated = (int)shape.rotated, d = (int)shape.d;
  const float4 *angles = angles_at(shape, m, 0);
  bf16_bits *row = dqkv + m * R;
  float sum = 0;
#pragma unroll 4
  for (int c = threadIdx.x % 32 * 8; c < R; c += 256) {
    const Pack<8> z = load_pack<8>(qkv + m * R + c);
    Pack<8> p = load_pack<8>(row + c);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      p.v[i] *= scale;
      sum += p.v[i] * z.v[i];
    }
    if (c < rotated) rotate_pack(p, angles + c % d / 4, -1);
    store_pack(row + c, p);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) s[m] = sum;
}

void unfused_rope(int64_t M, RopeShape shape, RowScale r, bf16_bits *qkv, cudaStream_t stream) {
  rope_kernel<<<blocks_for(M, WARPS), WARPS * 32, 0, stream>>>(M, shape, r, qkv);
  LAUNCHED();
}

void unfused_rope_backward(int64_t M, RopeShape shape, RowScale r, const bf16_bits *qkv,
                           bf16_bits *dqkv, float *s, cudaStream_t stream) {
  rope_backward_kernel<<<blocks_for(M, WARPS), WARPS * 32, 0, stream>>>(M, shape, r, qkv, dqkv, s);
  LAUNCHED();
}
