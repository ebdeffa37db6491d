// The primitives from which programs are written, five of them, and the only place that defines
// which thread holds which values. bases.cuh has the loops that most programs share.
//
// A warpgroup's tile of the product (64 or 128 rows) is worked off in steps of 64 rows x
// Program::COLUMNS columns. In a step a thread holds 16 pairs of neighbouring columns, 8 where
// COLUMNS is 32: see Step::column. Tile operands are loaded and stored as chunks of the same 64
// rows in shared memory, which the copy engine moves. A chunk of 64 columns gives a thread 16 bf16
// pairs, which lie as the product's do; a chunk of 32 columns gives it 8.
#pragma once
#include "kernels/cuda/formats.cuh"
#include "kernels/fused/program.h"
#include "kernels/fused/ptx.cuh"
#include "kernels/math.h"

// Columns of the chunks of a program's tile operands: Chunks<>, Chunks<64>, Chunks<64, 32>.
template <int FIRST = 0, int SECOND = 0> struct Chunks {
  static constexpr int COUNT = (FIRST > 0) + (SECOND > 0);
  static __host__ __device__ constexpr int width(int i) {
    return i == 0 ? FIRST : SECOND;
  }
  // Where chunk i begins in the step's slot: bytes for each of the slot's rows.
  static __host__ __device__ constexpr int offset(int i) {
    return i == 0 ? 0 : FIRST * 2;
  }
  static constexpr int ROW_BYTES = (FIRST + SECOND) * 2;
};

// The FP8 copies of a step's result, 64 of its columns, 32 or 0: by rows [rows, WIDTH], and by
// columns [WIDTH, rows], BY_COL bytes a row on. They follow the stored chunks. Where they overlap
// loads, warps store over values that other warps load: `loads_done` separates the two.
template <int WIDTH_ = 0> struct CopyChunks {
  static constexpr int WIDTH = WIDTH_, BY_COL = WIDTH, ROW_BYTES = 2 * BY_COL;
  // The address of 16 bytes of a row's copy, as CU_TENSOR_MAP_SWIZZLE_64B and _32B place them.
  static DEVICE uint32_t row_unit(uint32_t copies, int row, int unit) {
    const int swizzle = WIDTH == 64 ? (row >> 1) & 3 : (row >> 2) & 1;
    return copies + row * WIDTH + ((unit ^ swizzle) << 4);
  }
  // The address of 16 bytes of a column's copy: rows 16 unit to 16 unit + 15 of the slot's ROWS.
  template <int ROWS> static DEVICE uint32_t column_unit(uint32_t copies, int column, int unit) {
    return copies + BY_COL * ROWS + column * ROWS +
           ((unit ^ ((column >> 1) & (ROWS / 16 - 1))) << 4);
  }
};

// Stored chunks overwrite loaded chunks: a warp writes only bytes that it has read itself, if the
// two have the same layout.
template <class Loads, class Stores> constexpr bool chunks_match() {
  if (Loads::COUNT == 0 || Stores::COUNT == 0) return true;
  const bool both = Loads::COUNT == 2 && Stores::COUNT == 2;
  return Loads::width(0) == Stores::width(0) && (!both || Loads::width(1) == Stores::width(1));
}

// The address of 16 bytes of a chunk's row. The copy engine places them with
// CU_TENSOR_MAP_SWIZZLE_128B (rows of 128 bytes) and _64B (of 64), without bank conflicts.
static DEVICE int chunk_unit(int width, int row, int unit) {
  return unit ^ (width == 64 ? row & 7 : (row >> 1) & 3);
}

// A block of 64 rows of a warpgroup's tile, 16 of a warp's, as end sees it. A thread holds pairs of
// two of its rows, 0 and 1.
struct RowBlock {
  const ProgramArgs &args;
  int thread; // 0 .. 127 of a warpgroup, 0 .. 31 of a warp
  int first_row, column_tile, column_tiles;
  int64_t M, N;
  int matrix; // of a batch

  DEVICE int64_t row(int h) const {
    return first_row + (thread >> 5) * 16 + ((thread & 31) >> 2) + h * 8;
  }
  // True in the one of the four threads sharing a row that writes the results of row h.
  DEVICE bool writes(int h) const {
    return (thread & 3) == 0 && row(h) < M;
  }
  // The address to which it writes this tile's part of a statistic.
  template <class V> DEVICE V &part(const RowStat &to, int h) const {
    return reinterpret_cast<V *>(to.data)[column_tile * to.stride + row(h)];
  }
};

// ---- Statistics of rows. As a member of a program, a statistic collects the values of the
// thread's two rows that `add` gets; i is the pair's number. The program's end calls `store`: it
// joins the four threads of a row and writes the tile's part.

// The largest |value| of a tensor that has FP8 copies, for its Scaling: before `scale`.
struct Largest {
  float value = 0;

  DEVICE void add(float x) {
    value = max_with_nan(value, fabsf(x));
  }
  DEVICE void store(const RowBlock &block) const {
    if (!block.args.copies) return;
    const unsigned all = __reduce_max_sync(0xffffffffu, __float_as_uint(value));
    unsigned *maxima = block.args.copies->maxima;
    if ((block.thread & 31) == 0)
      atomicMax(&maxima[(block.first_row / 64 + block.column_tile) % MAXIMA], all);
  }
};

// e4m3 of four pairs, in the form that Step::store_copies reads.
static DEVICE void e4m3_of_pairs(const float2 (&v)[4], uint32_t *words) {
#pragma unroll
  for (int h = 0; h < 2; h++) words[h] = e4m3_four(v[h].x, v[h].y, v[2 + h].x, v[2 + h].y);
}

// x clamped to [least, most]; NaN stays NaN.
static DEVICE float clamp_with_nan(float x, float least, float most) {
  return x > most ? most : x < least ? least : x;
}

// The sum over the four threads that share their rows, in all of them.
static DEVICE float quad_sum(float x) {
#pragma unroll
  for (int lanes = 1; lanes <= 2; lanes *= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}

// Sums of columns over the product's rows, such as a bias gradient. As a member of a program, it is
// given all pairs of a step in their order, and stores a part for every 16 rows:
//   to.data [ceil(M / 16), to.stride], fp32, fewer than 2^32 values
struct ColumnSum {
  float2 sums[2]; // of the columns of two neighbouring blocks of 8

  template <class S> DEVICE void add(const S &s, int i, float2 v, const RowStat &to) {
    float2 &sum = sums[i >> 1 & 1];
    if (!s.row_inside(i)) v = {0, 0};
    sum = i & 1 ? float2{sum.x + v.x, sum.y + v.y} : v;
    if (i % 4 == 3) store(s, i - 3, to);
  }

private:
  // Every lane of a column ends with one of its four columns, as each exchange halves their number.
  template <class S> DEVICE void store(const S &s, int first, const RowStat &to) const {
    const int lane = s.block.thread & 31, block = lane >> 4, odd = lane >> 3 & 1;
    const float2 kept = block ? sums[1] : sums[0], given = block ? sums[0] : sums[1];
    const float x = kept.x + __shfl_xor_sync(0xffffffffu, given.x, 16),
                y = kept.y + __shfl_xor_sync(0xffffffffu, given.y, 16);
    float all = (odd ? y : x) + __shfl_xor_sync(0xffffffffu, odd ? x : y, 8);
    all += __shfl_xor_sync(0xffffffffu, all, 4);
    // In 64 bits these take 16 registers more, which tiles of 192 columns do not have.
    const uint32_t part = (uint32_t)s.block.row(0) / 16,
                   column = (uint32_t)(s.column(first + 2 * block) + odd);
    if ((lane & 4) == 0 && 16 * part < (uint32_t)s.block.M && column < (uint32_t)s.block.N)
      reinterpret_cast<float *>(to.data)[part * (uint32_t)to.stride + column] = all;
  }
};

template <class Statistic> struct RowStatistic {
  float rows[2] = {Statistic::NEUTRAL, Statistic::NEUTRAL};

  DEVICE void add(int i, float value) {
    rows[i & 1] = Statistic::join(rows[i & 1], value);
  }
  DEVICE void store(const RowBlock &block, const RowStat &to) const {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float all = rows[h];
#pragma unroll
      for (int lanes = 1; lanes <= 2; lanes *= 2)
        all = Statistic::join(all, __shfl_xor_sync(0xffffffffu, all, lanes));
      if (!block.writes(h)) continue;
      block.part<float>(to, h) = all;
      // Parts that belong to no tile become neutral: a consumer joins all parts of the call.
      if (block.column_tile == block.column_tiles - 1)
        for (int part = block.column_tiles; part < to.parts; part++)
          reinterpret_cast<float *>(to.data)[part * to.stride + block.row(h)] = Statistic::NEUTRAL;
    }
  }
};

struct RowSum : RowStatistic<RowSum> {
  static constexpr float NEUTRAL = 0;
  static DEVICE float join(float a, float b) {
    return a + b;
  }
  DEVICE void add_product(int i, float a, float b) {
    rows[i & 1] = fmaf(a, b, rows[i & 1]);
  }
  DEVICE void multiply(float factor) {
    rows[0] *= factor, rows[1] *= factor;
  }
  DEVICE void add_squares(int i, uint32_t pair) { // of packed bf16
    add_product(i, bf16_low(pair), bf16_low(pair));
    add_product(i, bf16_high(pair), bf16_high(pair));
  }
};

struct RowMax : RowStatistic<RowMax> {
  static constexpr float NEUTRAL = -INFINITY;
  static DEVICE float join(float a, float b) {
    return max_with_nan(a, b);
  }
};

// Running maximum and sum of exp(value - maximum).
struct OnlineSoftmax {
  float max = -INFINITY, sum = 0;

  static DEVICE float scale(float from, float to) { // exp(from - to)
    return from == -INFINITY ? 0.0f : __expf(from - to);
  }
  // bf16 pairs first, first + 2, ...: of a step's, those of one of a thread's rows.
  template <int N> DEVICE void add_every_second(const uint32_t (&pairs)[N], int first) {
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
  DEVICE void merge(const OnlineSoftmax &other) {
    const float top = fmaxf(max, other.max);
    sum = sum * scale(max, top) + other.sum * scale(other.max, top);
    max = top;
  }
  DEVICE OnlineSoftmax across_quad() const {
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

// The parts of a row's log-sum-exp, each a MaxSum. It processes many pairs at a time: its sum is
// scaled to a new maximum once for all of them.
struct RowSoftmax {
  OnlineSoftmax rows[2];

  // Pairs as stored. Those outside of the product have to be MINUS_INFINITIES.
  static constexpr uint32_t MINUS_INFINITIES = 0xff80ff80;
  template <int N> DEVICE void add(const uint32_t (&pairs)[N]) {
#pragma unroll
    for (int h = 0; h < 2; h++) rows[h].add_every_second(pairs, h);
  }
  DEVICE void store(const RowBlock &block, const RowStat &to) const {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const OnlineSoftmax all = rows[h].across_quad();
      if (block.writes(h)) block.part<MaxSum>(to, h) = {all.max, all.sum};
    }
  }
};

// tanh of two fp16 values, to 2^-11.
static DEVICE __half2 half_tanh(__half2 x) {
#ifdef __CUDA_ARCH__
  uint32_t y;
  asm("tanh.approx.f16x2 %0, %1;" : "=r"(y) : "r"(*reinterpret_cast<const uint32_t *>(&x)));
  return *reinterpret_cast<const __half2 *>(&y);
#else
  return __floats2half2_rn(tanhf(__low2float(x)), tanhf(__high2float(x)));
#endif
}

// ---- Values of rows: the types that `using RowValues = ...` may name. A warp with no other work
// computes them a tile ahead; a step reads them with row_value.

// Values of four rows, 32 apart: those of one lane of that warp.
typedef float FourRows[4];

// Joins the rows' parts in their order: row_totals<RowSum>, row_totals<RowMax>. Rows are row,
// row + 32, row + 64 and row + 96; those past M come out neutral. AHEAD parts of all four rows are
// in flight together: with fewer, the warp falls behind the tensor cores.
template <class Statistic, int AHEAD = 4>
static DEVICE void row_totals(const RowStat &p, int row, int M, FourRows &totals) {
  const float *from = reinterpret_cast<const float *>(p.data) + row;
#pragma unroll
  for (int i = 0; i < 4; i++) totals[i] = Statistic::NEUTRAL;
#pragma unroll 1
  for (int part = 0; part < p.parts; part += AHEAD) {
    FourRows next[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++, from += p.stride)
#pragma unroll
      for (int i = 0; i < 4; i++)
        next[j][i] =
            part + j < p.parts && row + 32 * i < M ? __ldg(from + 32 * i) : Statistic::NEUTRAL;
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) totals[i] = Statistic::join(totals[i], next[j][i]);
  }
}

// The log-sum-exp of rows, from the MaxSum parts that Logits writes. It is 0 for rows past M.
static DEVICE void row_log_sum_exp(const RowStat &p, int row, int M, FourRows &lse) {
  const MaxSum *parts = reinterpret_cast<const MaxSum *>(p.data) + row;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    OnlineSoftmax all = {0, 1};
    if (row + 32 * i < M) {
      all = {parts[32 * i].max, parts[32 * i].sum};
#pragma unroll 1
      for (int part = 1; part < p.parts; part++) {
        const MaxSum next = parts[part * p.stride + 32 * i];
        all.merge({next.max, next.sum});
      }
    }
    lse[i] = all.max + __logf(all.sum);
  }
}

struct NoValues {
  static constexpr int COUNT = 0;
};

// ---- Values of columns: the types that `using ColumnValues = ...` may name. The same warp
// computes them once a tile; a step reads them with column_values.

static DEVICE float vector_value(float value) {
  return value;
}
static DEVICE float vector_value(uint16_t bits) { // bf16
  return bf16_to_float(bits);
}

// The vectors args.columns[0] and on, as they are: Vectors<float>, Vectors<float, uint16_t>.
template <class... Types> struct Vectors {
  static constexpr int COUNT = sizeof...(Types); // values a column
  // Of one column, which lies inside of the product.
  static DEVICE void compute(const ProgramArgs &args, int column, float (&values)[COUNT]) {
    int v = 0;
    ((values[v] = vector_value(__ldg((const Types *)args.columns[v] + column)), v++), ...);
  }
};

// ---- Values of groups: the types that `using GroupValues = ...` may name. They are computed from
// the product before the group's first step; a step reads them with group_value.

// The sum of the product's squares.
struct GroupSquares {
  static constexpr int COUNT = 1; // values of a row
  // Of the thread's pairs of row h in 64 columns of the group: h, h + 2, ... 14 + h of the step s.
  template <class S> static DEVICE void compute(const S &s, int h, float (&values)[COUNT]) {
    values[0] = 0;
#pragma unroll
    for (int i = h; i < 16; i += 2) {
      const float2 v = s.product(i);
      values[0] = fmaf(v.x, v.x, fmaf(v.y, v.y, values[0]));
    }
  }
  // Joins those of other columns to them.
  static DEVICE void join(float (&values)[COUNT], const float (&others)[COUNT]) {
    values[0] += others[0];
  }
};

// ---- Precision: the formats of A and B, and whether a program's result has FP8 copies. A program
// is a template over it, and is compiled for both.

struct Bf16 {
  static constexpr GemmFormats FORMATS = GEMM_BF16;
  static constexpr GemmForm DGRAD = GEMM_NN; // of a dgrad: W as the forward has it
  static constexpr int PROMOTE = 0;
  static constexpr bool COPIES = false;
  template <int WIDTH> using Copies = CopyChunks<>;
  // Multiplies row values by the scales of A and B, which FP8's product does not include.
  static DEVICE void scale_rows(const ProgramArgs &, int, int, FourRows &) {}
  // v + x of a product v, in FP8 scale v + x.
  static DEVICE float scaled_sum(float, float v, float x) {
    return v + x;
  }
};

// The factor of the product of FP8 operands.
static DEVICE float product_scale(const ProgramArgs &args) {
  return __ldg(&args.a->inverse) * __ldg(&args.b->inverse);
}
// q of a row: the factor of its copies, a power of two.
static DEVICE float row_scale(const ProgramArgs &args, int row, int M) {
  return args.row_scale && row < M ? __ldg(args.row_scale + row) : 1.0f;
}
// The scale of the copies; 1 where they have none, as in a calibration's first pass.
static DEVICE float copies_scale(const ProgramArgs &args) {
  const float scale = args.copies ? __ldg(&args.copies->scale) : 1.0f;
  return scale > 0 ? scale : 1;
}

// STAGES of K, of 128, after which the tensor cores' sums are promoted to fp32; 0: they never are.
template <int STAGES = 0> struct E4m3 {
  static constexpr GemmFormats FORMATS = GEMM_E4M3;
  static constexpr GemmForm DGRAD = GEMM_NT; // W's copy by columns is its transpose
  static constexpr int PROMOTE = STAGES;
  static constexpr bool COPIES = true;
  template <int WIDTH> using Copies = CopyChunks<WIDTH>;
  // For rows of A that contain q, or rows of a gradient that divides by it.
  static DEVICE void scale_rows(const ProgramArgs &args, int row, int M, FourRows &values) {
#pragma unroll
    for (int i = 0; i < 4; i++) values[i] *= product_scale(args) / row_scale(args, row + 32 * i, M);
  }
  static DEVICE float scaled_sum(float scale, float v, float x) {
    return fmaf(scale, v, x);
  }
};

// ---- Row values that several programs have

// RMSNorm's r of the rows of A, from their sums of squares in args.in[0].
template <int AHEAD = 4>
static DEVICE void rstd_of_rows(const ProgramArgs &args, int row, int M, FourRows &r) {
  row_totals<RowSum, AHEAD>(args.in[0], row, M, r);
#pragma unroll
  for (int i = 0; i < 4; i++) r[i] = rsqrtf(r[i] * args.inverse_D + args.eps);
}

// r as a factor of the product: in FP8 with the scales of A and B.
template <class In = Bf16> struct Rstd {
  static constexpr int COUNT = 1; // values a row
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[COUNT]) {
    rstd_of_rows(args, row, M, values[0]);
    In::scale_rows(args, row, M, values[0]);
  }
};

// Only the scales of A and B.
template <class In> struct ProductScale {
  static constexpr int COUNT = 1;
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[COUNT]) {
#pragma unroll
    for (int i = 0; i < 4; i++) values[0][i] = 1;
    In::scale_rows(args, row, M, values[0]);
  }
};

// ---- A program's defaults, which it may redefine.
template <class In = Bf16> struct ProgramDefaults {
  static constexpr GemmForm FORM = GEMM_NT;
  static constexpr GemmFormats FORMATS = In::FORMATS;
  static constexpr int PROMOTE = In::PROMOTE;
  // True where its registers suffice for a tile of 192 columns; and where its tiles fit in shared
  // memory beside the operands of 256.
  static constexpr bool FITS_192 = true, FITS_256 = true;
  // True where it has a tile of 64 columns, which is for products of no more.
  static constexpr bool FITS_64 = false;
  // The columns of the tile that clusters take in a fixed order, since by tickets (tickets.h) its
  // kernel would spill; 0: none.
  static constexpr int STATIC_COLS = 0;
  static constexpr int COLUMNS = 64;
  // Tile operands in; they are loaded while the product is computed.
  using Loads = Chunks<>;
  // Tile operands out; chunk i overwrites the loaded chunk i.
  using Stores = Chunks<>;
  using RowValues = NoValues;
  using ColumnValues = NoValues;
  // FP8 copies of its result, and their factor: the scale of args.copies, or the row value with
  // this number (such a tensor has no other scale).
  using Copies = CopyChunks<>;
  enum { BY_SCALING = -1 };
  static constexpr int COPY_SCALE = BY_SCALING;
  // True where its result is 0 for a product and loads of 0, so that rows past M need no special
  // case.
  static constexpr bool KEEPS_ZERO = false;
  // 64 or 128: the product's columns come in groups of so many, such as heads, which no tile cuts.
  // 1: they do not.
  static constexpr int GROUP = 1;
  using GroupValues = NoValues;
  // Products of a batch of matrices, one behind the other (ProgramCall.batch); s.batch_factor() is
  // the matrix's own. wgmma's mainloop alone.
  static constexpr bool BATCHED = false;
  // The result is symmetric: half of the tiles are computed, and stored to both sides. Stores has
  // two chunks, of which the second is for the mirror.
  static constexpr bool SYMMETRIC = false;
  Largest largest_copied; // the program's base stores it
  // The start of the chunk for the step at (row, column) in the matrix of load i.
  static DEVICE void load_position(const ProgramArgs &, int, int &, int &) {}
  // Called after the last step of 64 rows of a tile; the next 64 have a new program object.
  DEVICE void end(const RowBlock &) {}
};

// True where a second slot needs the last kilobyte of shared memory.
template <class Program>
constexpr bool takes_all_memory = Program::Stores::COUNT > 0 && Program::Copies::WIDTH == 64;

// Bytes of a step's slot for each of its rows. Results overwrite loads there.
template <class Program> constexpr int slot_row_bytes() {
  constexpr int STORED = Program::Stores::ROW_BYTES + Program::Copies::ROW_BYTES;
  return Program::Loads::ROW_BYTES > STORED ? Program::Loads::ROW_BYTES : STORED;
}

// Elements of K in one stage of A and B.
template <class Program> constexpr int depth_of() {
  return Program::FORMATS == GEMM_BF16 ? DEPTH_BYTES / 2 : DEPTH_BYTES;
}

// True where there is a kernel for tiles of this many columns. A promoted program holds its sums
// twice.
template <class Program> constexpr bool fits(int cols) {
  return cols % Program::GROUP == 0 &&
         (cols == 128 || (cols == 64    ? Program::FITS_64
                          : cols == 192 ? Program::FITS_192
                                        : Program::PROMOTE == 0 && Program::FITS_256));
}

// The values of a thread's two rows, and of the step's group there.
template <class Program> struct TwoRows {
  static constexpr int COUNT = Program::RowValues::COUNT, OF_GROUP = Program::GroupValues::COUNT;
  float values[COUNT > 0 ? COUNT : 1][2];
  float group[2][OF_GROUP > 0 ? OF_GROUP : 1];
};

// Values of the group from step s on, of COLUMNS of its columns in the thread's two rows.
template <class Program, int COLUMNS, class S>
static DEVICE void group_values(const S &s, float (&two)[2][Program::GroupValues::COUNT]) {
  using Values = typename Program::GroupValues;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float others[Values::COUNT];
    Values::compute(s, h, two[h]);
#pragma unroll
    for (int right = 64; right < COLUMNS; right += 64) {
      Values::compute(s.moved(right), h, others);
      Values::join(two[h], others);
    }
#pragma unroll
    for (int lanes = 1; lanes <= 2; lanes *= 2) { // of those that share the row
#pragma unroll
      for (int v = 0; v < Values::COUNT; v++)
        others[v] = __shfl_xor_sync(0xffffffffu, two[h][v], lanes);
      Values::join(two[h], others);
    }
  }
}

// Where a tile's values of columns lie in shared memory, in bytes. `column` is even, and its value
// is followed by the next column's.
template <class Program> static DEVICE constexpr uint32_t column_place(int column, int which = 0) {
  return (column / 2 * Program::ColumnValues::COUNT + which) * 8;
}

// Stores a column's values there.
template <class Program, int COUNT>
static DEVICE void store_column(uint32_t to, int column, const float (&values)[COUNT]) {
#pragma unroll
  for (int v = 0; v < COUNT; v++)
    shared_store(to + column_place<Program>(column & ~1, v) + (column & 1) * 4, values[v]);
}

// A step, as Program::step sees it, of a warpgroup's 64 rows or a warp's 16.
template <class Program, int ROWS = 64> struct Step {
  const RowBlock &block;
  const float *accumulators; // of this thread, in this step
  const TwoRows<Program> &rows;
  int first_column; // of the product
  uint32_t slot;    // the step's chunks in shared memory
  uint32_t columns; // the values of the thread's first two columns there
  float copy_scale; // of the copies' Scaling

  // ---- The mapping of pairs to rows and columns
  // Pair i lies in the thread's row i & 1, at columns column(i) and the next.
  DEVICE int column(int i) const {
    return first_column + 8 * (i >> 1) + 2 * (block.thread & 3);
  }
  // Whether pair i lies inside of the product; a multiple of 8 columns does or does not.
  DEVICE bool inside(int i) const {
    return first_column + 8 * (i >> 1) < block.N;
  }
  DEVICE bool row_inside(int i) const {
    return (int)block.row(i & 1) < (int)block.M;
  }

  // ---- The product, and the values of its rows and columns
  DEVICE float2 product(int i) const {
    return {accumulators[2 * i], accumulators[2 * i + 1]};
  }
  // One of the values that RowValues computes for pair i's row.
  DEVICE float row_value(int i, int which = 0) const {
    static_assert(Program::RowValues::COUNT > 0, "the program has to name its RowValues");
    return rows.values[which][i & 1];
  }
  // One of the values that ColumnValues computes, for pair i's two columns; 0 past N.
  DEVICE float2 column_values(int i, int which = 0) const {
    static_assert(Program::ColumnValues::COUNT > 0, "the program has to name its ColumnValues");
    return shared_load_two(columns + column_place<Program>(8 * (i >> 1), which));
  }
  // One of the values that GroupValues computes for pair i's row in this step's group.
  DEVICE float group_value(int i, int which = 0) const {
    static_assert(Program::GROUP > 1, "the program has to name its GROUP of columns");
    return rows.group[i & 1][which];
  }
  // Where row h's part of a statistic of this step's group goes.
  template <class V> DEVICE V &group_part(const RowStat &to, int h) const {
    return reinterpret_cast<V *>(to.data)[first_column / Program::GROUP * to.stride + block.row(h)];
  }
  // The step whose columns lie so many further right.
  DEVICE Step moved(int right) const {
    Step s = *this;
    s.first_column += right;
    s.accumulators += right / 2;
    s.columns += column_place<Program>(right);
    return s;
  }

  // ---- Tiles. Pairs must be loaded before a chunk's pairs are stored over them.
  // Pairs first to first + N - 1 of a chunk; `first` a multiple of 4, known to the compiler.
  template <int OPERAND, int N> DEVICE void load(uint32_t (&pairs)[N], int first = 0) const {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      load_matrices(address<typename Program::Loads, OPERAND, N>(first + i), &pairs[i]);
  }
  template <int OPERAND, int N> DEVICE void store(const uint32_t (&pairs)[N], int first = 0) const {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      store_matrices(address<typename Program::Stores, OPERAND, N>(first + i), &pairs[i]);
  }
  // ---- FP8 copies, 32 of their columns at a time, from `first` on: 0 or 32. words[2 g + h] has,
  // of the thread's row h and group g of 16 columns, columns c, c + 1, c + 8, c + 9, where the
  // thread's pairs lie at c. A row's copy has this order (kernels/formats.h); in the columns'
  // copies rows h = 0 and 1 are neighbours.
  DEVICE void store_copies(const uint32_t (&words)[4], int first) const {
    using Copies = typename Program::Copies;
    const uint32_t across[4] = {
        __byte_perm(words[0], words[1], 0x5140), __byte_perm(words[0], words[1], 0x7362),
        __byte_perm(words[2], words[3], 0x5140), __byte_perm(words[2], words[3], 0x7362)};
    const int lane = block.thread & 31, warp = block.thread >> 5;
    const int row = warp * 16 + (lane & 15), unit = first / 16 + (lane >> 4);
    const uint32_t copies = slot + ROWS * Program::Stores::ROW_BYTES;
    store_matrices(Copies::row_unit(copies, row, unit), words);
    store_matrices_across(Copies::template column_unit<ROWS>(copies, first + lane, warp), across);
  }
  // The same pairs with rows and columns exchanged, for a symmetric result's other side.
  template <int N> DEVICE void store_mirror(const uint32_t (&pairs)[N], int first) const {
    const int lane = block.thread & 31, warp = block.thread >> 5;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const int row = ((first + i) / 2 + (lane >> 4)) * 8 + (lane & 7),
                unit = warp * 2 + (lane >> 3 & 1);
      store_matrices_across(slot + ROWS * Program::Stores::offset(1) + row * 128 +
                                (chunk_unit(64, row, unit) << 4),
                            &pairs[i]);
    }
  }
  // Of this step's matrix of a batch; 1 where there are none.
  DEVICE float batch_factor() const {
    const float *factors = block.args.factors;
    return factors ? __ldg(factors + block.matrix) : 1.0f;
  }
  // Waits until all warps have loaded the values that the copies overwrite.
  DEVICE void loads_done() const {
    if constexpr (ROWS == 64)
      warpgroup_sync();
    else
      __syncwarp();
  }

private:
  // The address of this lane's row of the four matrices from pair `first` on.
  template <class Chunks, int OPERAND, int N> DEVICE uint32_t address(int first) const {
    constexpr int WIDTH = Chunks::width(OPERAND);
    static_assert(N % 4 == 0 && N <= WIDTH / 4, "whole matrices, inside of the chunk");
    const int lane = block.thread & 31, row = (block.thread >> 5) * 16 + (lane & 15);
    return slot + ROWS * Chunks::offset(OPERAND) + row * (WIDTH * 2) +
           (chunk_unit(WIDTH, row, first / 2 + (lane >> 4)) << 4);
  }
};
