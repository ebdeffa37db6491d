// Kernels that walk over rows: embedding, sums of squares, RMSNorm's backward term, row scaling. A
// row is shared by a group of 4 to 32 lanes (lanes_a_row), so that narrow rows leave few lanes
// idle. Launch: blocks of 256 threads, a thread for each lane of each row.
#include "kernels/unfused/common.cuh"

enum { THREADS = 256, AHEAD = 4 }; // AHEAD: loads under way before the first is used

// The lane's place: row m, and which of the row's lanes. Lanes of rows past the end stay for the
// sums of their warp.
struct Lane {
  int64_t m;
  int lane;
  bool exists;
};
static __device__ __forceinline__ Lane my_lane(int64_t M, int lanes) {
  const int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  const int64_t m = thread >> (31 - __clz(lanes));
  return {m, (int)(threadIdx.x & (unsigned)(lanes - 1)), m < M};
}

template <int N> static __device__ __forceinline__ float square_sum(const Pack<N> &p) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < N; i++) sum += p.v[i] * p.v[i];
  return sum;
}

// The vocabulary row is read and written once; sumsq as a by-product.
template <int N>
static __global__ void embed_kernel(int64_t M, int D, int lanes, const int32_t *tokens,
                                    const bf16_bits *__restrict__ E, bf16_bits *__restrict__ x,
                                    float *sumsq) {
  const Lane l = my_lane(M, lanes);
  const bf16_bits *from = E + (l.exists ? (int64_t)tokens[l.m] * D : 0);
  float sum = 0;
#pragma unroll 4
  for (int k = l.lane * N; k < D && l.exists; k += lanes * N) {
    Pack<N> p = load_pack<N>(from + k);
    sum += square_sum(p);
    store_pack(x + l.m * D + k, p);
  }
  sum = group_sum(sum, lanes);
  if (l.lane == 0 && l.exists) sumsq[l.m] = sum;
}

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
norm_backward_kernel(int64_t M, int lanes, RowScale r, const bf16_bits *__restrict__ x, RowSums s,
                     const bf16_bits *__restrict__ from, bf16_bits *__restrict__ dx) {
  const Lane l = my_lane(M, lanes);
  const int D = (int)r.D;
  const float of_s = row_share(s, l.m, l.exists, l.lane, lanes),
              of_r = rstd_share(r, l.m, l.exists, l.lane, lanes);
  const float factor = rstd_from_shares(r, of_r, lanes) / (float)D * group_sum(of_s, lanes);
  if (!l.exists) return;
#pragma unroll 4
  for (int k = l.lane * N; k < D; k += lanes * N) {
    const Pack<N> a = load_pack<N>(x + l.m * D + k);
    Pack<N> g = load_pack<N>(from + l.m * D + k);
#pragma unroll
    for (int i = 0; i < N; i++) g.v[i] -= factor * a.v[i];
    store_pack(dx + l.m * D + k, g);
  }
}

// Rows may be very long here (logits) and few (generation), so a block takes a stretch of one row.
template <int N> static __global__ void scale_rows_kernel(int64_t n, RowScale r, bf16_bits *x) {
  const int64_t m = blockIdx.y;
  const float scale = row_rstd(r, m);
  const int64_t k = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
  if (k >= n) return;
  Pack<N> p = load_pack<N>(x + m * n + k);
#pragma unroll
  for (int i = 0; i < N; i++) p.v[i] *= scale;
  store_pack(x + m * n + k, p);
}

void unfused_embed(int64_t M, int64_t D, const int32_t *tokens, const bf16_bits *E, bf16_bits *x,
                   float *sumsq, cudaStream_t stream) {
  if (D % 8 == 0) {
    const int lanes = lanes_a_row(D / 8);
    embed_kernel<8><<<blocks_for(M * lanes, THREADS), THREADS, 0, stream>>>(M, (int)D, lanes,
                                                                            tokens, E, x, sumsq);
  } else {
    embed_kernel<1>
        <<<blocks_for(M * 32, THREADS), THREADS, 0, stream>>>(M, (int)D, 32, tokens, E, x, sumsq);
  }
  LAUNCHED();
}

void unfused_row_sumsq(int64_t M, int64_t D, const bf16_bits *x, float *sumsq,
                       cudaStream_t stream) {
  if (D % 8 == 0) {
    const int lanes = lanes_a_row(D / 8);
    row_sumsq_kernel<8>
        <<<blocks_for(M * lanes, THREADS), THREADS, 0, stream>>>(M, (int)D, lanes, x, sumsq);
  } else {
    row_sumsq_kernel<1>
        <<<blocks_for(M * 32, THREADS), THREADS, 0, stream>>>(M, (int)D, 32, x, sumsq);
  }
  LAUNCHED();
}

void unfused_norm_backward(int64_t M, RowScale r, const bf16_bits *x, RowSums s,
                           const bf16_bits *from, bf16_bits *dx, cudaStream_t stream) {
  const int64_t D = r.D;
  if (D % 8 == 0) {
    const int lanes = lanes_a_row(D / 8);
    norm_backward_kernel<8>
        <<<blocks_for(M * lanes, THREADS), THREADS, 0, stream>>>(M, lanes, r, x, s, from, dx);
  } else {
    norm_backward_kernel<1>
        <<<blocks_for(M * 32, THREADS), THREADS, 0, stream>>>(M, 32, r, x, s, from, dx);
  }
  LAUNCHED();
}

void unfused_scale_rows(int64_t M, int64_t N, RowScale r, bf16_bits *x, cudaStream_t stream) {
  const int64_t GRID_ROWS = 65535;
  for (int64_t m = 0; m < M; m += GRID_ROWS) { // the grid's y dimension has 16 bits
    const int64_t rows = M - m < GRID_ROWS ? M - m : GRID_ROWS;
    RowScale from = r;
    from.sumsq += m;
    if (N % 8 == 0)
      scale_rows_kernel<8>
          <<<dim3(blocks_for(N / 8, THREADS), (unsigned)rows), THREADS, 0, stream>>>(N, from,
                                                                                     x + m * N);
    else
      scale_rows_kernel<1><<<dim3(blocks_for(N, THREADS), (unsigned)rows), THREADS, 0, stream>>>(
          N, from, x + m * N);
    LAUNCHED();
  }
}
