// The embedding: rows gathered, with their sums of squares, and their gradient.
//
// Backward, dE[v] (+)= sum of dx[m] over the tokens m that are v, in ascending m: the same bits
// every time, without atomics on floats.
//
// First the tokens' positions are grouped by token. Integer atomics give every token a bucket;
// which one differs from run to run, but the order inside does not: a position's rank is the number
// of equal tokens before it in its stretch of STRETCH positions, found by comparing with each, and
// of those in earlier stretches, found in the token's list of (stretch, count), which has one entry
// a stretch however frequent the token is. Nothing is proportional to V but the zeroing.
//
// Then each bucket is summed in pieces of PIECE rows, in rank order: a bucket of one piece goes
// straight to dE, the pieces of a longer one to scratch in fp32, and one more kernel adds those up
// in order. So the work for a token that fills the batch is spread over the whole GPU like any
// other.
#include "base/memory.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/common.cuh"

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

void cuda_embed(Backend *be, int64_t M, const int32_t *tokens, const act_t *E, Operand x,
                RowStat *sumsq) {
  Cuda *c = cuda_of(be);
  by_width(c->base.spec.D, [&](auto width, int lanes) {
    embed_kernel<decltype(width)::value><<<row_blocks(M, lanes), ROW_THREADS, 0, c->gpu.stream>>>(
        M, (int)c->base.spec.D, lanes, tokens, bits(E), bits(x.data), one_part(sumsq));
  });
  if (x.by_row) cuda_cast_rows(c, M, c->base.spec.D, x, *sumsq, nullptr);
}

// ---- Backward
enum { PIECE = 32, THREADS = 256, STRETCH = THREADS, AHEAD = 4, COUNTERS = 4 };
// Blocks of sum_pieces_kernel: four on each multiprocessor of an H200. Smaller GPUs run them in
// turns.
static const int64_t RESIDENT_BLOCKS = 4 * 132;

struct Entry { // of a token's list
  int32_t stretch, count;
};

struct __align__(16) Piece {
  int32_t token, first, rows; // slots [first, first + rows) of its bucket
  int32_t partial;            // row of `pieces` for its sum, or -1: the bucket's only piece
};

struct Buckets {
  // Zeroed together before each call:
  int32_t *count;        // [V] tokens in v's bucket
  int32_t *entries;      // [V] stretches that have v
  int32_t *cursor;       // [1] slots assigned so far
  int32_t *entry_cursor; // [1] list entries assigned so far
  int32_t *piece_count;  // [1]
  int32_t *long_count;   // [1] buckets of more than PIECE
  int32_t *start;        // [V] the bucket's first slot
  int32_t *entry_start;  // [V] the list's first entry
  int32_t *long_tokens;  // [M / PIECE] tokens of the long buckets, in any order
  int32_t *rank;         // [M] equal tokens before it in its stretch
  int32_t *arrival;      // [M] of a stretch's first occurrence: place in the list; otherwise -1
  int32_t *in_stretch;   // [M] of a stretch's first occurrence: how often it occurs there
  Entry *lists;          // [M]
  Piece *work;           // [M] the pieces, in any order
  int32_t *sorted;       // [M] positions by bucket, ascending in it
  float *pieces;         // [M / 16 + 1, D] sums of the pieces of long buckets
};

// Lays the buckets out in an arena; returns its size.
static size_t lay_out(Buckets *b, char *scratch, int64_t M, int64_t V, int64_t D) {
  Arena arena = {scratch, 0};
  const auto ints = [&](int64_t n) { return (int32_t *)arena_take(&arena, (size_t)n * 4); };
  b->count = ints(2 * V + COUNTERS);
  b->entries = b->count + V;
  b->cursor = b->count + 2 * V;
  b->entry_cursor = b->cursor + 1;
  b->long_count = b->cursor + 2;
  b->piece_count = b->cursor + 3;
  b->start = ints(V);
  b->entry_start = ints(V);
  b->long_tokens = ints(M / PIECE + 1);
  b->rank = ints(M);
  b->arrival = ints(M);
  b->in_stretch = ints(M);
  b->lists = (Entry *)arena_take(&arena, (size_t)M * sizeof(Entry));
  b->work = (Piece *)arena_take(&arena, (size_t)M * sizeof(Piece));
  b->sorted = ints(M);
  b->pieces = (float *)ints((M / 16 + 1) * D);
  return arena.used;
}

size_t cuda_embed_scratch(int64_t max_tokens, int64_t V, int64_t D) {
  Buckets b;
  return lay_out(&b, nullptr, max_tokens, V, D);
}

// ---- Grouping. Launch of each: a thread a position.
static __device__ __forceinline__ int64_t thread_index(void) {
  return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

// Launch: a block a stretch.
static __global__ __launch_bounds__(STRETCH) void rank_kernel(int64_t M, const int32_t *tokens,
                                                              Buckets b) {
  __shared__ int32_t stretch[STRETCH];
  const int64_t m = thread_index();
  const int32_t token = m < M ? tokens[m] : -1;
  stretch[threadIdx.x] = token;
  __syncthreads();
  if (m >= M) return;
  int before = 0, all = 0;
#pragma unroll 16
  for (int j = 0; j < STRETCH; j++) {
    const bool equal = stretch[j] == token;
    all += equal;
    before += equal && j < (int)threadIdx.x;
  }
  b.rank[m] = before;
  b.arrival[m] = -1;
  if (before > 0) return;
  b.in_stretch[m] = all;
  b.arrival[m] = atomicAdd(&b.entries[token], 1);
  atomicAdd(&b.count[token], all);
}

// Places in a list for a warp's lanes, `n` each, with one atomic.
static __device__ __forceinline__ int32_t reserve(int32_t *cursor, int32_t n) {
  const int lane = (int)threadIdx.x % 32;
  int32_t sum = n;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += other;
  }
  int32_t base = 0;
  if (lane == 31) base = atomicAdd(cursor, sum);
  return __shfl_sync(0xffffffffu, base, 31) + sum - n;
}

// A token's bucket, its list's place, and its pieces: by the thread of the token's first arrival.
static __global__ void start_kernel(int64_t M, const int32_t *tokens, Buckets b) {
  const int64_t m = thread_index();
  const bool first = m < M && b.arrival[m] == 0; // others reserve nothing, with their warp
  const int32_t token = first ? tokens[m] : 0, count = first ? b.count[token] : 0;
  const int32_t pieces = (count + PIECE - 1) / PIECE;
  const int32_t start = reserve(b.cursor, count);
  const int32_t entry = reserve(b.entry_cursor, first ? b.entries[token] : 0);
  const int32_t piece = reserve(b.piece_count, pieces);
  if (!first) return;
  b.start[token] = start;
  b.entry_start[token] = entry;
  // A bucket of more than PIECE has at most count / 16 pieces, so the rows of `pieces` from start /
  // 16 on are its own.
  for (int k = 0; k < pieces; k++)
    b.work[piece + k] = {token, start + k * PIECE, min((int)PIECE, count - k * PIECE),
                         pieces > 1 ? start / 16 + k : -1};
  if (pieces > 1) b.long_tokens[atomicAdd(b.long_count, 1)] = token;
}

static __global__ void list_kernel(int64_t M, const int32_t *tokens, Buckets b) {
  const int64_t m = thread_index();
  if (m >= M || b.arrival[m] < 0) return;
  b.lists[b.entry_start[tokens[m]] + b.arrival[m]] = {(int32_t)(m / STRETCH), b.in_stretch[m]};
}

static __global__ void sort_kernel(int64_t M, const int32_t *tokens, Buckets b) {
  const int64_t m = thread_index();
  if (m >= M) return;
  const int32_t token = tokens[m], mine = (int32_t)(m / STRETCH), entries = b.entries[token];
  const Entry *list = b.lists + b.entry_start[token];
  int rank = b.rank[m];
#pragma unroll 8
  for (int j = 0; j < entries; j++) {
    const Entry e = list[j];
    if (e.stretch < mine) rank += e.count;
  }
  b.sorted[b.start[token] + rank] = (int32_t)m;
}

// ---- Summing
template <int N, typename T>
static __device__ __forceinline__ void add_pack(T *to, Pack<N> sum, bool accumulate) {
  if (accumulate) {
    const Pack<N> before = load_pack<N>(to);
#pragma unroll
    for (int i = 0; i < N; i++) sum.v[i] += before.v[i];
  }
  store_pack(to, sum);
}

// Launch: as many warps as fit on the GPU; each takes pieces, or strips of 32 N columns of pieces,
// in turn.
template <int N, typename Grad>
static __global__ __launch_bounds__(THREADS) void sum_pieces_kernel(int D, const bf16_bits *dx,
                                                                    Buckets b, Grad *dE,
                                                                    bool accumulate) {
  const int lane = (int)threadIdx.x % 32, strips = (D + 32 * N - 1) / (32 * N);
  const int64_t items = (int64_t)*b.piece_count * strips,
                warps = (int64_t)gridDim.x * (THREADS / 32);
  for (int64_t item = thread_index() / 32; item < items; item += warps) {
    const Piece piece = b.work[item / strips];
    const int k = (int)(item % strips) * 32 * N + lane * N;
    const int32_t mine = lane < piece.rows ? b.sorted[piece.first + lane] : 0;
    Pack<N> sum = {};
    for (int j0 = 0; j0 < piece.rows; j0 += AHEAD) {
      Pack<N> p[AHEAD];
#pragma unroll
      for (int j = 0; j < AHEAD; j++) {
        const int64_t row = __shfl_sync(0xffffffffu, mine, (j0 + j) % 32);
        if (j0 + j < piece.rows && k < D) p[j] = load_pack<N>(dx + row * D + k);
      }
#pragma unroll
      for (int j = 0; j < AHEAD; j++)
        if (j0 + j < piece.rows && k < D) {
#pragma unroll
          for (int e = 0; e < N; e++) sum.v[e] += p[j].v[e];
        }
    }
    if (k >= D) continue;
    if (piece.partial < 0)
      add_pack(dE + (int64_t)piece.token * D + k, sum, accumulate);
    else
      add_pack(b.pieces + (int64_t)piece.partial * D + k, sum, false);
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
  Pack<1> sum = {};
#pragma unroll 8
  for (int j = 0; j < pieces; j++) sum.v[0] += from[(int64_t)j * D];
  add_pack(dE + (int64_t)token * D + k, sum, accumulate);
}

void cuda_embed_backward(Backend *be, int64_t M, const int32_t *tokens, const act_t *dx, grad_t *dE,
                         bool accumulate) {
  const Cuda *c = cuda_of(be);
  const int64_t V = c->base.spec.V, D = c->base.spec.D;
  const bool fp32 = c->base.spec.grads_fp32;
  const cudaStream_t stream = c->gpu.stream;
  const unsigned blocks = blocks_for(M, THREADS);
  Buckets b;
  lay_out(&b, (char *)c->embed_scratch, M, V, D);
  if (!accumulate) CUDA_CHECK(cudaMemsetAsync(dE, 0, (size_t)(V * D) * (fp32 ? 4 : 2), stream));
  CUDA_CHECK(cudaMemsetAsync(b.count, 0, (size_t)(2 * V + COUNTERS) * 4, stream));
  rank_kernel<<<blocks, STRETCH, 0, stream>>>(M, tokens, b);
  start_kernel<<<blocks, THREADS, 0, stream>>>(M, tokens, b);
  list_kernel<<<blocks, THREADS, 0, stream>>>(M, tokens, b);
  sort_kernel<<<blocks, THREADS, 0, stream>>>(M, tokens, b);
  LAUNCHED();
  const int64_t most = M * blocks_for(D, 256) / (THREADS / 32) + 1; // blocks, if all tokens differ
  const int64_t most_long = M / (PIECE + 1);
  by_gradient(fp32, [&](auto *type) {
    const auto to = (decltype(type))dE;
    by_width(D, [&](auto width, int) {
      sum_pieces_kernel<decltype(width)::value>
          <<<(unsigned)min(most, RESIDENT_BLOCKS), THREADS, 0, stream>>>((int)D, bits(dx), b, to,
                                                                         accumulate);
    });
    const dim3 grid((unsigned)most_long, blocks_for(D, THREADS));
    if (most_long > 0) join_pieces_kernel<<<grid, THREADS, 0, stream>>>((int)D, b, to, accumulate);
    LAUNCHED();
  });
}
