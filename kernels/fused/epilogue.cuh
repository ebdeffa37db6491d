// What programs are written with: the five primitives, and the one place that says which thread
// holds what.
//
// A warpgroup's tile of the product (64 or 128 rows) is worked off in steps of 64 rows x
// Program::COLUMNS columns. In a step a thread holds 16 pairs of neighbouring columns (8 where
// COLUMNS is 32): see Step::column. Tile operands come and go as chunks of the same
// 64 rows in shared memory, brought and taken by the copy engine; a chunk of 64 columns gives a
// thread 16 bf16 pairs, which lie as the product's do, one of 32 columns 8.
#pragma once
#include "kernels/cuda/bf16.cuh"
#include "kernels/fused/program.h"
#include "kernels/fused/ptx.cuh"
#include "kernels/program_math.h"

// Columns of the chunks of a program's tile operands: Chunks<>, Chunks<64>, Chunks<64, 32>.
template <int FIRST = 0, int SECOND = 0> struct Chunks {
  static constexpr int COUNT = (FIRST > 0) + (SECOND > 0);
  static __host__ __device__ constexpr int width(int i) {
    return i == 0 ? FIRST : SECOND;
  }
  static __host__ __device__ constexpr int offset(int i) { // in the step's slot, bytes
    return i == 0 ? 0 : 64 * FIRST * 2;
  }
  static constexpr int BYTES = 64 * (FIRST + SECOND) * 2;
};

// Chunks that are stored take the place of chunks that were loaded: a warp rewrites only what it
// has read itself, if the two are the same bytes.
template <class Loads, class Stores> constexpr bool chunks_match() {
  for (int l = 0; l < Loads::COUNT; l++)
    for (int t = 0; t < Stores::COUNT; t++) {
      const int load_end = Loads::offset(l) + 128 * Loads::width(l),
                store_end = Stores::offset(t) + 128 * Stores::width(t);
      const bool apart = load_end <= Stores::offset(t) || store_end <= Loads::offset(l);
      const bool same =
          Loads::offset(l) == Stores::offset(t) && Loads::width(l) == Stores::width(t);
      if (!apart && !same) return false;
    }
  return true;
}

// Values of four rows, 32 apart, as a lane of the warp that computes row values has them.
typedef float FourRows[4];

// Adds up the rows' parts in their order. AHEAD parts of all four rows are under way together: with
// fewer, the warp falls behind the tensor cores.
template <int AHEAD = 4>
static __device__ __forceinline__ void sum_of_parts(const RowParts &p, int row, int M,
                                                    FourRows &sums) {
  const float *from = p.data + row;
#pragma unroll
  for (int i = 0; i < 4; i++) sums[i] = 0;
#pragma unroll 1
  for (int part = 0; part < p.parts; part += AHEAD) {
    FourRows next[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++, from += p.stride)
#pragma unroll
      for (int i = 0; i < 4; i++)
        next[j][i] = part + j < p.parts && row + 32 * i < M ? __ldg(from + 32 * i) : 0.0f;
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) sums[i] += next[j][i];
  }
}
// RMSNorm's r of rows of A.
template <int AHEAD = 4>
static __device__ __forceinline__ void rstd_of_rows(const ProgramArgs &args, int row, int M,
                                                    FourRows &r) {
  sum_of_parts<AHEAD>(args.sumsq, row, M, r);
#pragma unroll
  for (int i = 0; i < 4; i++) r[i] = rsqrtf(r[i] * args.inverse_D + args.eps);
}

// Over the four neighbouring threads that share a row.
static __device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

// Running maximum and sum of exp(value - maximum).
struct OnlineSoftmax {
  float max = -INFINITY, sum = 0;

  static __device__ __forceinline__ float scale(float from, float to) { // exp(from - to)
    return from == -INFINITY ? 0.0f : __expf(from - to);
  }
  // bf16 pairs first, first + 2, ...: of a step's, those of one of a thread's rows.
  template <int N>
  __device__ __forceinline__ void add_every_second(const uint32_t (&pairs)[N], int first) {
    float top = max;
#pragma unroll
    for (int i = 0; i < N; i += 2)
      top = fmaxf(top, fmaxf(bf16_low(pairs[i + first]), bf16_high(pairs[i + first])));
    sum *= scale(max, top);
    max = top;
    if (top == -INFINITY) return;
#pragma unroll
    for (int i = 0; i < N; i += 2)
      sum += __expf(bf16_low(pairs[i + first]) - top) + __expf(bf16_high(pairs[i + first]) - top);
  }
  __device__ __forceinline__ void merge(const OnlineSoftmax &other) {
    const float top = fmaxf(max, other.max);
    sum = sum * scale(max, top) + other.sum * scale(other.max, top);
    max = top;
  }
  __device__ __forceinline__ OnlineSoftmax across_quad() const {
    OnlineSoftmax all = *this;
#pragma unroll
    for (int lanes = 1; lanes <= 2; lanes *= 2) {
      OnlineSoftmax other;
      other.max = __shfl_xor_sync(0xffffffffu, all.max, lanes);
      other.sum = __shfl_xor_sync(0xffffffffu, all.sum, lanes);
      all.merge(other);
    }
    return all;
  }
};

// A block of 64 rows of a warpgroup's tile, as end sees it. A thread holds pairs of two of its
// rows, 0 and 1.
struct RowBlock {
  const ProgramArgs &args;
  int thread; // 0 .. 127
  int first_row, column_tile, column_tiles;
  int64_t M, N;

  __device__ __forceinline__ int64_t row(int h) const {
    return first_row + (thread >> 5) * 16 + ((thread & 31) >> 2) + h * 8;
  }
  // Of the four threads that share their rows, the one that writes for them.
  __device__ __forceinline__ bool leads() const {
    return (thread & 3) == 0;
  }
  // Block reduction: this tile's part of a sum over each row; `sums` holds this thread's shares.
  __device__ __forceinline__ void store_row_sums(const RowParts &to, const float (&sums)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float sum = quad_sum(sums[h]);
      if (!leads() || row(h) >= M) continue;
      to.data[column_tile * to.stride + row(h)] = sum;
      if (column_tile == column_tiles - 1)
        for (int part = column_tiles; part < to.parts; part++)
          to.data[part * to.stride + row(h)] = 0;
    }
  }
};

// What a program starts from, and may redefine.
struct ProgramDefaults {
  static constexpr GemmForm FORM = GEMM_NT;
  static constexpr int COLUMNS = 64;
  using Loads = Chunks<>; // tile operands in; they are under way while the product is computed
  using Stores =
      Chunks<>; // tile operands out; chunk i takes the place of the chunk i that was loaded
  // Rows have a value, computed a tile ahead by a warp that has nothing else to do: row_values
  // gives those of rows row, row + 32, row + 64 and row + 96 of M.
  static constexpr bool ROW_VALUE = false;
  static __device__ __forceinline__ void row_values(const ProgramArgs &, int, int, FourRows &) {}
  // Where in the matrix of load i the chunk for the step at (row, column) starts.
  static __device__ __forceinline__ void load_position(const ProgramArgs &, int, int &, int &) {}
  // Called after the last step of 64 rows of a tile; the program starts anew for the next 64.
  __device__ __forceinline__ void end(const RowBlock &) {}
};

// A step, as Program::step sees it.
template <class Program> struct Step {
  const RowBlock &block;
  const float *accumulators;    // of this thread, in this step
  const float (&row_values)[2]; // of its two rows
  int first_column;             // of the product
  uint32_t slot;                // the step's chunks in shared memory

  // ---- The mapping of pairs to rows and columns
  // Pair i lies in the thread's row i & 1, at columns column(i) and the next.
  __device__ __forceinline__ int column(int i) const {
    return first_column + 8 * (i >> 1) + 2 * (block.thread & 3);
  }
  // Whether pair i lies inside of the product; a multiple of 8 columns does or does not.
  __device__ __forceinline__ bool inside(int i) const {
    return first_column + 8 * (i >> 1) < block.N;
  }

  // ---- The product, and the row's value
  __device__ __forceinline__ float2 product(int i) const {
    return {accumulators[2 * i], accumulators[2 * i + 1]};
  }
  __device__ __forceinline__ float row_value(int i) const {
    static_assert(Program::ROW_VALUE, "the program has to say ROW_VALUE = true");
    return row_values[i & 1];
  }

  // ---- Tiles. What a chunk's pairs are stored over has to be loaded before.
  // Pairs first to first + N - 1 of a chunk; `first` a multiple of 4, known where this is expanded.
  template <int OPERAND, int N>
  __device__ __forceinline__ void load(uint32_t (&pairs)[N], int first = 0) const {
    constexpr int WIDTH = Program::Loads::width(OPERAND);
    static_assert(N % 4 == 0 && N <= WIDTH / 4, "whole matrices, inside of the chunk");
    const uint32_t chunk = slot + Program::Loads::offset(OPERAND);
#pragma unroll
    for (int i = 0; i < N / 4; i++)
      load_matrices(address<WIDTH>(chunk, first / 4 + i), pairs[4 * i], pairs[4 * i + 1],
                    pairs[4 * i + 2], pairs[4 * i + 3]);
  }
  // Pairs first to first + N - 1 of the chunk; `first` a multiple of 4, known where this is
  // expanded.
  template <int OPERAND, int N>
  __device__ __forceinline__ void store(const uint32_t (&pairs)[N], int first = 0) const {
    constexpr int WIDTH = Program::Stores::width(OPERAND);
    static_assert(N % 4 == 0 && N <= WIDTH / 4, "whole matrices, inside of the chunk");
    const uint32_t chunk = slot + Program::Stores::offset(OPERAND);
#pragma unroll
    for (int i = 0; i < N / 4; i++)
      store_matrices(address<WIDTH>(chunk, first / 4 + i), pairs[4 * i], pairs[4 * i + 1],
                     pairs[4 * i + 2], pairs[4 * i + 3]);
  }

private:
  // Where this lane's row of matrices 4i to 4i + 3 of the chunk lies: a 16-byte column c of row
  // `row` is at c ^ swizzle, as the copy engine puts it with CU_TENSOR_MAP_SWIZZLE_128B (rows of
  // 128 bytes) and _64B (of 64). No bank conflicts.
  template <int WIDTH> __device__ __forceinline__ uint32_t address(uint32_t chunk, int i) const {
    const int lane = block.thread & 31, row = (block.thread >> 5) * 16 + (lane & 15);
    const int swizzle = WIDTH == 64 ? row & 7 : (row >> 1) & 3;
    return chunk + row * (WIDTH * 2) + (((2 * i + (lane >> 4)) ^ swizzle) << 4);
  }
};
