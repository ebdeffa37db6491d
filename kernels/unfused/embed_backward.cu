// dE[v] (+)= sum of dx[m] over the tokens m that are v, in ascending m: the same bits every time,
// without atomics on floats.
//
// First the tokens' positions are grouped by token. Integer atomics give every token a bucket and a
// place in it; which bucket and which place differ from run to run, but then each position counts
// the smaller ones in its bucket, and that rank does not. Nothing is proportional to V but the
// zeroing. Then each bucket is summed in pieces of PIECE rows, in rank order: a bucket of one piece
// goes straight to dE, the pieces of a longer one to scratch in fp32, and one more kernel adds
// those up in order. So a token that fills the batch is shared out over the whole GPU like any
// other.
#include "kernels/unfused/common.cuh"

enum { PIECE = 32, THREADS = 256 };

struct Buckets {
  int32_t *count;       // [V] tokens in v's bucket
  int32_t *start;       // [V] its first slot
  int32_t *cursor;      // [1] slots given out
  int32_t *long_count;  // [1] buckets of more than PIECE
  int32_t *long_tokens; // [M / PIECE] their tokens, in any order
  int32_t *place;       // [M] order of arrival inside the bucket
  int32_t *slot;        // [M] positions by bucket, unordered
  int32_t *sorted;      // [M] positions by bucket, ascending in it
  float *pieces;        // [M / 16 + 1, D] sums of the pieces of long buckets
};

static size_t aligned(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

static size_t lay_out(Buckets *b, char *scratch, int64_t M, int64_t V, int64_t D) {
  size_t used = 0;
  const auto take = [&](size_t bytes) {
    char *p = scratch + used;
    used += aligned(bytes);
    return p;
  };
  b->count = (int32_t *)take((size_t)(V + 2) * 4); // and the two counters, zeroed with it
  b->cursor = b->count + V;
  b->long_count = b->count + V + 1;
  b->long_tokens = (int32_t *)take((size_t)(M / PIECE + 1) * 4);
  b->start = (int32_t *)take((size_t)V * 4);
  b->place = (int32_t *)take((size_t)M * 4);
  b->slot = (int32_t *)take((size_t)M * 4);
  b->sorted = (int32_t *)take((size_t)M * 4);
  b->pieces = (float *)take((size_t)((M / 16 + 1) * D) * 4);
  return used;
}

size_t unfused_embed_backward_scratch(int64_t max_tokens, int64_t V, int64_t D) {
  Buckets b;
  return lay_out(&b, nullptr, max_tokens, V, D);
}

// ---- Grouping. Launch of each: a thread a token.
static __device__ __forceinline__ int64_t thread_index(void) {
  return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __global__ void count_kernel(int64_t M, const int32_t *tokens, Buckets b) {
  const int64_t m = thread_index();
  if (m < M) b.place[m] = atomicAdd(&b.count[tokens[m]], 1);
}

static __global__ void start_kernel(int64_t M, const int32_t *tokens, Buckets b) {
  const int64_t m = thread_index();
  if (m >= M || b.place[m] != 0) return;
  const int32_t token = tokens[m], count = b.count[token];
  b.start[token] = atomicAdd(b.cursor, count);
  if (count > PIECE) b.long_tokens[atomicAdd(b.long_count, 1)] = token;
}

static __global__ void fill_kernel(int64_t M, const int32_t *tokens, Buckets b) {
  const int64_t m = thread_index();
  if (m < M) b.slot[b.start[tokens[m]] + b.place[m]] = (int32_t)m;
}

static __global__ void rank_kernel(int64_t M, const int32_t *tokens, Buckets b) {
  const int64_t i = thread_index();
  if (i >= M) return;
  const int32_t m = b.slot[i], start = b.start[tokens[m]], count = b.count[tokens[m]];
  int rank = 0;
#pragma unroll 8
  for (int j = 0; j < count; j++) rank += b.slot[start + j] < m;
  b.sorted[start + rank] = m;
}

// ---- Summing
static __device__ __forceinline__ void add_to(float *to, float value, bool accumulate) {
  *to = accumulate ? *to + value : value;
}
static __device__ __forceinline__ void add_to(bf16_bits *to, float value, bool accumulate) {
  *to = bf16_from_float(accumulate ? bf16_to_float(*to) + value : value);
}

template <int N>
static __device__ __forceinline__ void add_pack(float *to, const float *sum, bool accumulate) {
#pragma unroll
  for (int i = 0; i < N; i++) add_to(to + i, sum[i], accumulate);
}
template <int N>
static __device__ __forceinline__ void add_pack(bf16_bits *to, const float *sum, bool accumulate) {
  Pack<N> p;
  if (accumulate) p = load_pack<N>(to);
#pragma unroll
  for (int i = 0; i < N; i++) p.v[i] = accumulate ? p.v[i] + sum[i] : sum[i];
  store_pack(to, p);
}

// Launch: a warp a slot; it works where a piece begins.
template <int N, typename Grad>
static __global__ void sum_pieces_kernel(int64_t M, int D, const int32_t *tokens,
                                         const bf16_bits *dx, Buckets b, Grad *dE,
                                         bool accumulate) {
  const int64_t i = thread_index() / 32;
  if (i >= M) return;
  const int32_t token = tokens[b.sorted[i]], start = b.start[token], count = b.count[token];
  const int rank = (int)(i - start);
  if (rank % PIECE != 0) return;
  const int rows = min(PIECE, count - rank);
  for (int k = (int)threadIdx.x % 32 * N; k < D; k += 32 * N) {
    float sum[N] = {};
#pragma unroll 4
    for (int j = 0; j < rows; j++) {
      const Pack<N> p = load_pack<N>(dx + (int64_t)b.sorted[i + j] * D + k);
#pragma unroll
      for (int e = 0; e < N; e++) sum[e] += p.v[e];
    }
    if (count <= PIECE) {
      add_pack<N>(dE + (int64_t)token * D + k, sum, accumulate);
    } else {
      // A bucket of more than PIECE has at most count / 16 pieces, so these rows are its own.
      float *to = b.pieces + (start / 16 + rank / PIECE) * (int64_t)D + k;
#pragma unroll
      for (int e = 0; e < N; e++) to[e] = sum[e];
    }
  }
}

// Launch: a block a long bucket and 256 columns, in a grid for as many buckets as there can be.
template <typename Grad>
static __global__ void join_pieces_kernel(int D, Buckets b, Grad *dE, bool accumulate) {
  if ((int)blockIdx.x >= *b.long_count) return;
  const int32_t token = b.long_tokens[blockIdx.x], start = b.start[token];
  const int pieces = (b.count[token] + PIECE - 1) / PIECE;
  const int k = (int)(blockIdx.y * blockDim.x + threadIdx.x);
  if (k >= D) return;
  const float *from = b.pieces + start / 16 * (int64_t)D + k;
  float sum = 0;
#pragma unroll 8
  for (int j = 0; j < pieces; j++) sum += from[(int64_t)j * D];
  add_to(dE + (int64_t)token * D + k, sum, accumulate);
}

template <typename Grad>
static void sum_buckets(int64_t M, int64_t D, const int32_t *tokens, const bf16_bits *dx,
                        const Buckets &b, Grad *dE, bool accumulate, cudaStream_t stream) {
  const unsigned blocks = blocks_for(M, THREADS / 32);
  if (D % 8 == 0)
    sum_pieces_kernel<8><<<blocks, THREADS, 0, stream>>>(M, (int)D, tokens, dx, b, dE, accumulate);
  else
    sum_pieces_kernel<1><<<blocks, THREADS, 0, stream>>>(M, (int)D, tokens, dx, b, dE, accumulate);
  LAUNCHED();
  const int64_t most_long = M / (PIECE + 1);
  if (most_long == 0) return;
  const dim3 grid((unsigned)most_long, blocks_for(D, THREADS));
  join_pieces_kernel<<<grid, THREADS, 0, stream>>>((int)D, b, dE, accumulate);
  LAUNCHED();
}

void unfused_embed_backward(int64_t M, int64_t V, int64_t D, const int32_t *tokens,
                            const bf16_bits *dx, void *dE, bool grads_fp32, bool accumulate,
                            void *scratch, cudaStream_t stream) {
  Buckets b;
  lay_out(&b, (char *)scratch, M, V, D);
  const unsigned blocks = blocks_for(M, THREADS);
  if (!accumulate)
    CUDA_CHECK(cudaMemsetAsync(dE, 0, (size_t)(V * D) * (grads_fp32 ? 4 : 2), stream));
  CUDA_CHECK(cudaMemsetAsync(b.count, 0, (size_t)(V + 2) * 4, stream));
  count_kernel<<<blocks, THREADS, 0, stream>>>(M, tokens, b);
  LAUNCHED();
  start_kernel<<<blocks, THREADS, 0, stream>>>(M, tokens, b);
  LAUNCHED();
  fill_kernel<<<blocks, THREADS, 0, stream>>>(M, tokens, b);
  LAUNCHED();
  rank_kernel<<<blocks, THREADS, 0, stream>>>(M, tokens, b);
  LAUNCHED();
  if (grads_fp32)
    sum_buckets(M, D, tokens, dx, b, (float *)dE, accumulate, stream);
  else
    sum_buckets(M, D, tokens, dx, b, (bf16_bits *)dE, accumulate, stream);
}
