// Kernels that walk over rows: sums of squares, RMSNorm's backward term, row scaling.
#include "kernels/cuda/copies.cuh"
#include "kernels/unfused/kernels.h"

enum { AHEAD = 4 }; // loads under way before the first is used

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

static __global__ void scale_row_kernel(int64_t n, RowScale r, bf16_bits *x) {
  const int64_t k = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
  if (k < n) x[k] = bf16_from_float(row_rstd(r, 0) * bf16_to_float(x[k]));
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

void launch_scale_row(int64_t N, RowScale r, act_t *x, cudaStream_t stream) {
  scale_row_kernel<<<blocks_for(N, ROW_THREADS), ROW_THREADS, 0, stream>>>(N, r, bits(x));
  LAUNCHED();
}

// ---- In FP8: dx = q product - (r / D) q s x + residual, in bf16 and as copies.
struct NormBackward {
  static constexpr bool STORES = true, STOCHASTIC = false;
  struct Row {
    float of_product, of_x;
  };
  using Column = int;
  struct Raw {
    uint32_t product, x, residual;
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
    const unsigned at = row * (unsigned)r.D + (unsigned)c;
    return {*reinterpret_cast<const uint32_t *>(product + at),
            *reinterpret_cast<const uint32_t *>(x + at),
            residual ? *reinterpret_cast<const uint32_t *>(residual + at) : 0};
  }
  __device__ float2 pair(Row row, Column, Raw raw, float *) const {
    return {bf16_low(raw.product) * row.of_product - bf16_low(raw.x) * row.of_x +
                bf16_low(raw.residual),
            bf16_high(raw.product) * row.of_product - bf16_high(raw.x) * row.of_x +
                bf16_high(raw.residual)};
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
