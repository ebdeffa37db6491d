// Row kernels that write a matrix as FP8 copies, in both orders of kernels/formats.h, with its
// largest value and a sum over each row. A *source* computes the matrix; kernels/cuda/scales.cu has
// the simplest one. It has
//     STORES                       whether it is stored in bf16, too
//     STOCHASTIC                   whether it is rounded so; rows then have a key and its dither
//     Row row(m)                   what all of row m needs, by one thread; Row {} past the last row
//     void skip(m)                 makes row m the first that load knows
//     Column column(c)             what the columns c and c + 1 need, c even
//     Raw load(row, column)        what is read for these two; Raw {} where there is nothing
//     float2 pair(row, column, raw, &sum)   their values, 0 for Row {} and Raw {}; adds to the sum
// A block has 32 rows. A warp has 16 of them at a time, and 64 columns; a lane has two columns. So
// a load or a bf16 store of a warp covers 128 bytes of a row, by_row is stored in pieces of 64
// bytes, and by_col, through shared memory, in pieces of 32.
#pragma once
#include "kernels/cuda/common.cuh"

enum {
  COPY_THREADS = 256,
  COPY_GROUPS = 2, // of 16 rows
  COPY_ROWS = 16 * COPY_GROUPS,
  COPY_STRIPS = COPY_THREADS / 32 / COPY_GROUPS, // of 64 columns
  COPY_COLS = 64 * COPY_STRIPS,                  // that a block has at a time
  COPY_CHUNKS = COPY_COLS * COPY_GROUPS,         // of 16 tokens of a column
};

struct Copies {
  int64_t M;
  int N;            // a multiple of FP8_GROUP
  bf16_bits *data;  // [M, N] of a source that stores: the copies are of the rounded values
  uint8_t *by_row;  // [M, N], or NULL
  uint8_t *by_col;  // [N, stride], zeros up to whole groups of rows; or NULL
  int64_t stride;   // at least M in whole groups
  Scaling *scaling; // NULL: there are no copies
  float *sums;      // [M] row sums, or NULL

  // Makes row m the first: offsets inside of a block then fit in 32 bits.
  __device__ __forceinline__ void skip(int64_t m) {
    M -= m;
    if (data) data += m * N;
    if (by_row) by_row += m * N;
    if (by_col) by_col += m;
    if (sums) sums += m;
  }
};

static inline Copies copies_of(int64_t M, int64_t N, const Operand &x, Scaling *scaling) {
  Copies to = {};
  to.M = M;
  to.N = (int)N;
  to.by_row = reinterpret_cast<uint8_t *>(x.by_row);
  to.by_col = reinterpret_cast<uint8_t *>(x.by_col);
  to.stride = x.stride;
  to.scaling = x.by_row ? scaling : nullptr;
  return to;
}

// Where a chunk lies in shared memory: neither its stores, a column a lane, nor its loads, in the
// order of chunks, meet in a bank.
static __device__ __forceinline__ int copy_place(int chunk) {
  return chunk ^ (chunk / (2 * COPY_GROUPS) & 7);
}

// The larger of both, or NaN.
static __device__ __forceinline__ float max_or_nan(float a, float b) {
  float largest;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(largest) : "f"(a), "f"(b));
  return largest;
}

// One lane's part of a block's copies. WHOLE: the block has all of its rows.
template <class Source, bool WHOLE> struct CopyLane {
  const Copies &to;
  const Source &source;
  const typename Source::Row *values; // of the block's rows
  unsigned rows, first;               // that the block has; the warp's first of them
  unsigned lane, column;
  bool inside; // the column is one of the matrix
  float scale, largest;
  float sums[16];

  __device__ __forceinline__ bool exists(unsigned row) const {
    return inside && (WHOLE || row < rows);
  }

  // FP8 of two values, in the upper byte of each half where they are rounded stochastically; in
  // bf16 first where that is stored, too.
  __device__ __forceinline__ uint32_t convert(float2 v, unsigned row) {
    if (Source::STORES) {
      const uint32_t two = bf16_two(v.x, v.y);
      if (exists(row))
        *reinterpret_cast<uint32_t *>(to.data + (row * (unsigned)to.N + column)) = two;
      v = {bf16_low(two), bf16_high(two)};
    }
    largest = max_or_nan(max_or_nan(largest, fabsf(v.x)), fabsf(v.y));
    if constexpr (Source::STOCHASTIC) {
      const typename Source::Row &of = values[row];
      return e4m3_stochastic(fmaf(v.x, scale, of.dither), fmaf(v.y, scale, -of.dither),
                             fp8_noise(of.key, column));
    } else {
      return e4m3_two(v.x * scale, v.y * scale);
    }
  }

  // a, b: two columns of rows r and r + 8 in the words' lower and upper halves, and of rows r + 1
  // and r + 9. 4 lanes on is the lane with the columns 8 on, and four bytes of a copy's row are of
  // both: one of them stores rows r and r + 1, the other the rows 8 below.
  __device__ __forceinline__ void store_rows(uint32_t a, uint32_t b, unsigned r) const {
    const bool second = lane & 4;
    const uint32_t give = __byte_perm(a, b, second ? 0x5410 : 0x7632),
                   got = __shfl_xor_sync(0xffffffffu, give, 4);
    const unsigned row = first + r + (second ? 8 : 0),
                   at = row * (unsigned)to.N + column - column % 16 + column % 8 * 2;
    if (!to.by_row) return;
    if (exists(row))
      *reinterpret_cast<uint32_t *>(to.by_row + at) = __byte_perm(a, got, second ? 0x3254 : 0x5410);
    if (exists(row + 1))
      *reinterpret_cast<uint32_t *>(to.by_row + (at + (unsigned)to.N)) =
          __byte_perm(b, got, second ? 0x3276 : 0x7610);
  }

  // Rows r .. r + 3 and r + 8 .. r + 11, r 0 or 4: half of the chunks of the two columns.
  __device__ __forceinline__ void half(unsigned r, uint2 *const (&chunks)[2]) {
    const typename Source::Column at = source.column((int)column);
    typename Source::Raw raw[8];
#pragma unroll
    for (unsigned j = 0; j < 8; j++) {
      const unsigned row = first + r + j % 4 + j / 4 * 8;
      raw[j] = {};
      if (exists(row)) raw[j] = source.load(row, at);
    }
    uint32_t w[4];
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
      const unsigned up = r + j, low = up + 8;
      const float2 v = source.pair(values[first + up], at, raw[j], &sums[up]),
                   u = source.pair(values[first + low], at, raw[j + 4], &sums[low]);
      const uint32_t a = convert(v, first + up), b = convert(u, first + low);
      w[j] = Source::STOCHASTIC ? __byte_perm(a, b, 0x7531) : a | b << 16;
    }
    store_rows(w[0], w[1], r);
    store_rows(w[2], w[3], r + 2);
    chunks[0][r / 4] = {__byte_perm(w[0], w[1], 0x6420), __byte_perm(w[2], w[3], 0x6420)};
    chunks[1][r / 4] = {__byte_perm(w[0], w[1], 0x7531), __byte_perm(w[2], w[3], 0x7531)};
  }
};

// The block's columns from c0 on, of all its rows.
static __device__ __forceinline__ void store_columns(const Copies &to, int rows,
                                                     const uint4 *chunks, int c0) {
#pragma unroll
  for (int i = 0; i < COPY_CHUNKS; i += COPY_THREADS) {
    const int chunk = i + (int)threadIdx.x, c = c0 + chunk / COPY_GROUPS;
    const int row = chunk % COPY_GROUPS * 16;
    if (c < to.N && row < rows)
      *reinterpret_cast<uint4 *>(to.by_col + c * to.stride + row) = chunks[copy_place(chunk)];
  }
}

// Adds up the sums of the block's rows: lanes, then strips of columns in their order.
static __device__ __forceinline__ void store_sums(const Copies &to, int rows,
                                                  const float (&sums)[16]) {
  __shared__ float parts[COPY_STRIPS][COPY_ROWS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 16; r++) {
    const float sum = warp_sum(sums[r]);
    if (lane == r) parts[warp % COPY_STRIPS][warp / COPY_STRIPS * 16 + r] = sum;
  }
  __syncthreads();
  if ((int)threadIdx.x >= rows) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < COPY_STRIPS; i++) sum += parts[i][threadIdx.x];
  to.sums[threadIdx.x] = sum;
}

// `chunks`: two stages, taken in turns.
template <class Source, bool WHOLE>
static __device__ __forceinline__ void copy_block(const Source &source, const Copies &to, int count,
                                                  const typename Source::Row *rows,
                                                  uint4 (&chunks)[2][COPY_CHUNKS]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = warp / COPY_STRIPS, strip = warp % COPY_STRIPS;
  const int in_block = strip * 64 + lane * 2, chunk = in_block * COPY_GROUPS + group;
  float scale = to.scaling ? to.scaling->scale : 1;
  if (Source::STOCHASTIC) scale *= 0x1p-8f;
  CopyLane<Source, WHOLE> mine = {
      to,    source, rows, (unsigned)count, (unsigned)group * 16, (unsigned)lane, 0, false,
      scale, 0,      {}};
  int stage = 0;
  for (int c0 = 0; c0 < to.N; c0 += COPY_COLS, stage ^= 1) {
    uint2 *const mine_of[2] = {
        reinterpret_cast<uint2 *>(&chunks[stage][copy_place(chunk)]),
        reinterpret_cast<uint2 *>(&chunks[stage][copy_place(chunk + COPY_GROUPS)])};
    mine.column = (unsigned)(c0 + in_block);
    mine.inside = c0 + in_block < to.N;
    mine.half(0, mine_of);
    mine.half(4, mine_of);
    if (!to.by_col) continue;
    __syncthreads(); // the other stage is free: all are past its loads
    store_columns(to, count, chunks[stage], c0);
  }
  if (to.sums) store_sums(to, count, mine.sums);
  const uint32_t largest = __reduce_max_sync(0xffffffffu, __float_as_uint(mine.largest));
  if (lane == 0 && to.scaling)
    atomicMax(&to.scaling->maxima[(blockIdx.x * 8 + (unsigned)warp) % MAXIMA], largest);
}

template <class Source>
static __global__ __launch_bounds__(COPY_THREADS, 3) void copies_kernel(Source source, Copies to) {
  __shared__ typename Source::Row rows[COPY_ROWS];
  __shared__ uint4 chunks[2][COPY_CHUNKS];
  const int64_t first = (int64_t)blockIdx.x * COPY_ROWS;
  const int count = (int)min((int64_t)COPY_ROWS, to.M - first);
  if (threadIdx.x < COPY_ROWS) {
    rows[threadIdx.x] = {};
    if ((int)threadIdx.x < count) rows[threadIdx.x] = source.row(first + threadIdx.x);
  }
  __syncthreads();
  source.skip(first);
  to.skip(first);
  if (count == COPY_ROWS)
    copy_block<Source, true>(source, to, count, rows, chunks);
  else
    copy_block<Source, false>(source, to, count, rows, chunks);
}

template <class Source>
static void launch_copies(const Source &source, const Copies &to, cudaStream_t stream) {
  copies_kernel<<<blocks_for(to.M, COPY_ROWS), COPY_THREADS, 0, stream>>>(source, to);
  LAUNCHED();
}
