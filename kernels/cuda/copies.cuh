// Row kernels that write a matrix as FP8 copies, in both orders of kernels/formats.h, with its
// largest value and a sum over each row. A *source* computes the matrix; kernels/cuda/scales.cu has
// the simplest one. It has
//     STORES                       whether it is stored in bf16, too
//     STOCHASTIC                   whether it is rounded so; rows then have a folded key and its
//                                  dither
//     SUMS                         whether it sums over rows
//     Row row(m)                   what all of row m needs, by one thread; Row {} past the last row
//     void skip(m)                 makes row m the first that load knows
//     Column column(c)             what the columns c .. c + 3 need, c a multiple of 4
//     Raw load(row, column)        what is read for these four; Raw {} where there is nothing
//     float4 four(row, column, raw, &sum)   their values, 0 for Row {} and Raw {}; adds to the sum
// A warp has 16 rows and 256 columns at a time. A lane has eight of these columns, those of which
// by_row holds eight neighbouring bytes: so it needs no other lane's values for either copy. A warp
// reads pieces of 512 bytes of a row and stores by_row in pieces of 256, and a block stores by_col,
// through shared memory, in pieces of 64.
#pragma once
#include "kernels/cuda/common.cuh"

enum {
  COPY_GROUPS = 4, // of 16 rows, each a warp's
  COPY_THREADS = 32 * COPY_GROUPS,
  COPY_ROWS = 16 * COPY_GROUPS,
  COPY_COLS = 256,                       // that a block has at a time
  COPY_CHUNKS = COPY_COLS * COPY_GROUPS, // of 16 rows of a column
};
static_assert(COPY_WALK % COPY_COLS == 0, "a block has whole strips of columns");

struct Copies {
  int64_t M;
  int N;            // a multiple of FP8_GROUP
  bf16_bits *data;  // [M, N] of a source that stores: the copies are of the rounded values
  uint8_t *by_row;  // [M, N], or NULL
  uint8_t *by_col;  // [N, stride], zeros up to whole groups of rows; or NULL
  int64_t stride;   // at least M in whole groups
  Scaling *scaling; // NULL: there are no copies
  RowStat sums;     // of a source that has them, a part for every COPY_WALK columns

  // Makes row m the first: offsets inside of a block then fit in 32 bits.
  __device__ __forceinline__ void skip(int64_t m) {
    M -= m;
    if (data) data += m * N;
    if (by_row) by_row += m * N;
    if (by_col) by_col += m;
    if (sums.data) sums.data = reinterpret_cast<stat_t *>(reinterpret_cast<float *>(sums.data) + m);
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
static inline RowStat sums_of_copies(int64_t N, RowStat *s) {
  s->parts = (int32_t)copy_parts(N);
  return *s;
}

// Where the chunk of a column's group lies in shared memory. Columns' bits are mixed in, so that
// neither the stores of eight lanes, whose columns differ in bits 2, 4 and 5, nor the loads of all
// groups of two columns, which differ in bit 3, meet in a bank. All is linear: the place of a ^ b
// is that of a, ^ that of b in group 0.
static __device__ __forceinline__ int copy_place(int column, int group) {
  return (column * COPY_GROUPS + group) ^ (column >> 3 & 6) ^ (column >> 2 & 1) ^ (column >> 1 & 4);
}

static __device__ __forceinline__ float largest_of_four(float4 v) {
  return max_with_nan(max_with_nan(fabsf(v.x), fabsf(v.y)), max_with_nan(fabsf(v.z), fabsf(v.w)));
}

// Eight bytes of a row of by_row: the columns c, c + 1, c + 8, c + 9, and those two on.
struct CopyBytes {
  uint32_t word[2];
};

// One lane's part of a warp's copies.
template <class Source> struct CopyLane {
  using Row = typename Source::Row;
  using Raw = typename Source::Raw;
  const Copies &to; // from the warp's first row on, as the source is
  const Source &source;
  const Row *values; // of the warp's rows
  int rows;          // that exist
  float scale, largest;
  float sums[16];
  int column;  // c
  bool inside; // it is one of the matrix
  typename Source::Column at[2];
  uint32_t noise; // what it adds to a row's key

  __device__ __forceinline__ void move_to(int c) {
    column = c;
    inside = c < to.N;
    at[0] = source.column(c);
    at[1] = source.column(c + 8);
    if (Source::STOCHASTIC) noise = noise_fold((uint32_t)c / 4);
  }

  // To bf16 and back.
  __device__ __forceinline__ void store(float4 &v, unsigned r, int c, bool exists) const {
    const uint2 b = {bf16_two(v.x, v.y), bf16_two(v.z, v.w)};
    if (exists) *reinterpret_cast<uint2 *>(to.data + c + r * (unsigned)to.N) = b;
    v = {bf16_low(b.x), bf16_high(b.x), bf16_low(b.y), bf16_high(b.y)};
  }

  // Of a row's two fours.
  __device__ __forceinline__ CopyBytes convert(float4 a, float4 b, const Row &of) const {
    if constexpr (Source::STOCHASTIC) {
      const uint32_t key = of.key ^ noise, of_a = noise_spread(key), of_b = noise_spread(key ^ 2);
      const auto two = [&](float x, float y, uint32_t bits) {
        return e4m3_stochastic(fmaf(x, scale, of.dither), fmaf(y, scale, -of.dither), bits);
      };
      return {{__byte_perm(two(a.x, a.y, of_a), two(b.x, b.y, of_b), 0x7531),
               __byte_perm(two(a.z, a.w, of_a >> 8), two(b.z, b.w, of_b >> 8), 0x7531)}};
    } else {
      return {{e4m3_four(a.x * scale, a.y * scale, b.x * scale, b.y * scale),
               e4m3_four(a.z * scale, a.w * scale, b.z * scale, b.w * scale)}};
    }
  }

  // raw: of a row's two fours. Stores the row's bytes of by_row.
  template <bool WHOLE> __device__ __forceinline__ CopyBytes row(unsigned r, const Raw (&raw)[2]) {
    const bool exists = WHOLE || (inside && (int)r < rows);
    const Row of = values[r];
    float4 a = source.four(of, at[0], raw[0], &sums[r]),
           b = source.four(of, at[1], raw[1], &sums[r]);
    if (Source::STORES) {
      store(a, r, column, exists);
      store(b, r, column + 8, exists);
    }
    largest = max_with_nan(largest, max_with_nan(largest_of_four(a), largest_of_four(b)));
    const CopyBytes bytes = convert(a, b, of);
    if (WHOLE || (exists && to.by_row))
      *reinterpret_cast<uint2 *>(to.by_row + (column + column % 16) +
                                 r * (unsigned)to.N) = {bytes.word[0], bytes.word[1]};
    return bytes;
  }

  // Rows r, r + 8, r + 1, r + 9, r even: four bytes of each column's chunk. words: of the columns
  // c, c + 1, c + 8, c + 9, c + 2, c + 3, c + 10, c + 11.
  template <bool WHOLE> __device__ __forceinline__ void quarter(unsigned r, uint32_t (&words)[8]) {
    Raw raw[4][2];
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
      const unsigned i = r + j / 2 + j % 2 * 8;
      const bool exists = WHOLE || (inside && (int)i < rows);
      if (!WHOLE) raw[j][0] = raw[j][1] = {};
      if (exists) raw[j][0] = source.load(i, at[0]);
      if (exists) raw[j][1] = source.load(i, at[1]);
    }
    CopyBytes bytes[4];
#pragma unroll
    for (unsigned j = 0; j < 4; j++) bytes[j] = row<WHOLE>(r + j / 2 + j % 2 * 8, raw[j]);
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const uint32_t a = bytes[0].word[k], b = bytes[1].word[k], c = bytes[2].word[k],
                     d = bytes[3].word[k];
      const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140),
                     ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
      words[4 * k] = __byte_perm(ab, cd, 0x5410);
      words[4 * k + 1] = __byte_perm(ab, cd, 0x7632);
      words[4 * k + 2] = __byte_perm(ab_high, cd_high, 0x5410);
      words[4 * k + 3] = __byte_perm(ab_high, cd_high, 0x7632);
    }
  }

  // The warp's 16 rows of 256 columns. place: of the lane's first column.
  template <bool WHOLE> __device__ __forceinline__ void tile(uint4 *chunks, int place) {
#pragma unroll
    for (unsigned r = 0; r < 8; r += 4) {
      uint32_t even[8], odd[8];
      quarter<WHOLE>(r, even);
      quarter<WHOLE>(r + 2, odd);
#pragma unroll
      for (int i = 0; i < 8; i++)
        reinterpret_cast<uint2 *>(
            &chunks[place ^ copy_place(i / 4 * 2 + i % 4 / 2 * 8 + i % 2, 0)])[r / 4] = {even[i],
                                                                                         odd[i]};
    }
  }
};

// The block's columns from c0 on, of all its rows. A thread has eight neighbours.
template <bool WHOLE>
static __device__ __forceinline__ void store_columns(const Copies &to, int rows,
                                                     const uint4 *chunks, int c0) {
  const int group = (int)threadIdx.x % COPY_GROUPS, column = (int)threadIdx.x / COPY_GROUPS * 8,
            place = copy_place(column, group);
  uint8_t *at = to.by_col + (c0 + column) * to.stride + group * 16;
  if (!WHOLE && (group * 16 >= rows || c0 + column >= to.N)) return;
#pragma unroll
  for (int i = 0; i < 8; i++, at += to.stride)
    *reinterpret_cast<uint4 *>(at) = chunks[place ^ copy_place(i, 0)];
}

// Sums and wide loads take more registers than 5 blocks leave.
template <class Source>
constexpr int COPY_BLOCKS = Source::SUMS || sizeof(typename Source::Raw) > 8 ? 4 : 5;

// A block has COPY_WALK columns of its rows.
template <class Source>
static __global__
__launch_bounds__(COPY_THREADS, COPY_BLOCKS<Source>) void copies_kernel(Source source, Copies to) {
  __shared__ typename Source::Row values[COPY_ROWS];
  __shared__ uint4 chunks[2][COPY_CHUNKS]; // two stages, taken in turns
  __shared__ uint32_t largest_of_block;
  const int64_t block_row = (int64_t)blockIdx.x * COPY_ROWS;
  const int rows = (int)min((int64_t)COPY_ROWS, to.M - block_row);
  const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
  if (threadIdx.x < COPY_ROWS) {
    values[threadIdx.x] = {};
    if ((int)threadIdx.x < rows) values[threadIdx.x] = source.row(block_row + threadIdx.x);
  }
  if (threadIdx.x == 0) largest_of_block = 0;
  __syncthreads();

  Copies of_warp = to;
  to.skip(block_row);
  of_warp.skip(block_row + warp * 16);
  source.skip(block_row + warp * 16);
  CopyLane<Source> mine = {of_warp, source, values + warp * 16, rows - warp * 16};
  mine.scale = to.scaling ? to.scaling->scale : 1;
  if (Source::STOCHASTIC) mine.scale *= 0x1p-8f;
  const int begin = (int)blockIdx.y * COPY_WALK, end = min(begin + COPY_WALK, to.N);
  const int in_block = lane / 2 * 16 + lane % 2 * 4, place = copy_place(in_block, warp);
  const bool whole = rows == COPY_ROWS && to.by_row && to.by_col;
  int stage = 0;
  for (int c0 = begin; c0 < end; c0 += COPY_COLS, stage ^= 1) {
    mine.move_to(c0 + in_block);
    if (whole && c0 + COPY_COLS <= to.N) {
      mine.template tile<true>(chunks[stage], place);
      __syncthreads(); // the other stage is free: all are past its loads
      store_columns<true>(to, rows, chunks[stage], c0);
    } else {
      mine.template tile<false>(chunks[stage], place);
      if (!to.by_col) continue;
      __syncthreads();
      store_columns<false>(to, rows, chunks[stage], c0);
    }
  }
  if (Source::SUMS) {
    float *sums = reinterpret_cast<float *>(of_warp.sums.data) + blockIdx.y * of_warp.sums.stride;
#pragma unroll
    for (int r = 0; r < 16; r++) {
      const float sum = warp_sum(mine.sums[r]);
      if (lane == r && r < mine.rows) sums[r] = sum;
    }
  }
  const uint32_t largest = __reduce_max_sync(0xffffffffu, __float_as_uint(mine.largest));
  if (lane == 0) atomicMax(&largest_of_block, largest);
  __syncthreads();
  if (threadIdx.x == 0 && to.scaling)
    atomicMax(&to.scaling->maxima[(blockIdx.x + blockIdx.y) % MAXIMA], largest_of_block);
}

template <class Source>
static void launch_copies(const Source &source, const Copies &to, cudaStream_t stream) {
  const dim3 grid(blocks_for(to.M, COPY_ROWS), (unsigned)copy_parts(to.N));
  copies_kernel<<<grid, COPY_THREADS, 0, stream>>>(source, to);
  LAUNCHED();
}
