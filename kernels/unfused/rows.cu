// Kernels that walk over rows, one warp a row: embedding, sums of squares, RMSNorm's backward term,
// row scaling. Launch: blocks of 8 warps, rows / 8 blocks. Each lane has up to four 16-byte loads
// in flight.
#include "kernels/unfused/common.cuh"

enum { WARPS = 8 };

static __device__ __forceinline__ int64_t warp_row(void) {
  return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
}

template <int N> static __device__ __forceinline__ float square_sum(const Pack<N> &p) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < N; i++) sum += p.v[i] * p.v[i];
  return sum;
}

// The vocabulary row is read and written once; sumsq as a by-product.
template <int N>
static __global__ void embed_kernel(int64_t M, int D, const int32_t *tokens, const bf16_bits *E,
                                    bf16_bits *x, float *sumsq) {
  const int64_t m = warp_row();
  if (m >= M) return;
  const bf16_bits *from = E + (int64_t)tokens[m] * D;
  bf16_bits *to = x + m * D;
  float sum = 0;
#pragma unroll 4
  for (int k = threadIdx.x % 32 * N; k < D; k += 32 * N) {
    Pack<N> p = load_pack<N>(from + k);
    sum += square_sum(p);
    store_pack(to + k, p);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sumsq[m] = sum;
}

template <int N>
static __global__ void row_sumsq_kernel(int64_t M, int D, const bf16_bits *x, float *sumsq) {
  const int64_t m = warp_row();
  if (m >= M) return;
  float sum = 0;
#pragma unroll 8
  for (int k = threadIdx.x % 32 * N; k < D; k += 32 * N)
    sum += square_sum(load_pack<N>(x + m * D + k));
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sumsq[m] = sum;
}

template <int N>
static __global__ void norm_backward_kernel(int64_t M, RowScale r, const bf16_bits *x,
                                            const float *s, bf16_bits *dx) {
  const int64_t m = warp_row();
  if (m >= M) return;
  const int D = (int)r.D;
  const float factor = row_rstd(r, m) / (float)D * s[m];
#pragma unroll 4
  for (int k = threadIdx.x % 32 * N; k < D; k += 32 * N) {
    const Pack<N> a = load_pack<N>(x + m * D + k);
    Pack<N> g = load_pack<N>(dx + m * D + k);
#pragma unroll
    for (int i = 0; i < N; i++) g.v[i] -= factor * a.v[i];
    store_pack(dx + m * D + k, g);
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
  const unsigned blocks = blocks_for(M, WARPS);
  if (D % 8 == 0)
    embed_kernel<8><<<blocks, WARPS * 32, 0, stream>>>(M, (int)D, tokens, E, x, sumsq);
  else
    embed_kernel<1><<<blocks, WARPS * 32, 0, stream>>>(M, (int)D, tokens, E, x, sumsq);
  LAUNCHED();
}

void unfused_row_sumsq(int64_t M, int64_t D, const bf16_bits *x, float *sumsq,
                       cudaStream_t stream) {
  const unsigned blocks = blocks_for(M, WARPS);
  if (D % 8 == 0)
    row_sumsq_kernel<8><<<blocks, WARPS * 32, 0, stream>>>(M, (int)D, x, sumsq);
  else
    row_sumsq_kernel<1><<<blocks, WARPS * 32, 0, stream>>>(M, (int)D, x, sumsq);
  LAUNCHED();
}

void unfused_norm_backward(int64_t M, RowScale r, const bf16_bits *x, const float *s, bf16_bits *dx,
                           cudaStream_t stream) {
  const unsigned blocks = blocks_for(M, WARPS);
  if (r.D % 8 == 0)
    norm_backward_kernel<8><<<blocks, WARPS * 32, 0, stream>>>(M, r, x, s, dx);
  else
    norm_backward_kernel<1><<<blocks, WARPS * 32, 0, stream>>>(M, r, x, s, dx);
  LAUNCHED();
}

void unfused_scale_rows(int64_t M, int64_t N, RowScale r, bf16_bits *x, cudaStream_t stream) {
  const int64_t THREADS = 256, GRID_ROWS = 65535;
  for (int64_t m = 0; m < M; m += GRID_ROWS) { // the grid's y dimension has 16 bits
    const int64_t rows = M - m < GRID_ROWS ? M - m : GRID_ROWS;
    RowScale from = r;
    from.sumsq += m;
    if (N % 8 == 0)
      scale_rows_kernel<8>
          <<<dim3(blocks_for(N / 8, THREADS), (unsigned)rows), (unsigned)THREADS, 0, stream>>>(
              N, from, x + m * N);
    else
      scale_rows_kernel<1>
          <<<dim3(blocks_for(N, THREADS), (unsigned)rows), (unsigned)THREADS, 0, stream>>>(
              N, from, x + m * N);
    LAUNCHED();
  }
}
