// What programs/*.cu include instead of kernels/fused/define.cuh when they are built for the CPU:
// the same programs, bases and epilogue.cuh, under mma.sync's mainloop, and in place of wgmma's
// under one that is a plain matrix product.
//
// A warp is 32 fibers. Each runs until it exchanges a value with its neighbours, so that a shuffle
// finds what all lanes put there; a shuffle that some lanes do not reach is an error here, as it is
// on a GPU. Tiles go in and out as the copy engine would move them: through the call's tensor maps,
// zeros where there is no matrix, nothing written there.
#pragma once
#include "kernels/fused/mainloop_sync.cuh"

#include <stdio.h>
#include <stdlib.h>

#include <vector>

extern "C" {
#include "kernels/cpu/cpu.h"
}

// What the stand-in for cuTensorMapEncodeTiled puts into a CUtensorMap.
struct EmulatedMap {
  void *data;
  int64_t bytes;              // an element: 2 = bf16, 1 = FP8
  int64_t rows, cols, stride; // in elements
  int64_t box_rows, box_cols;
  int64_t apart; // elements from one matrix of a batch to the next

  static const EmulatedMap &of(const CUtensorMap &map) {
    return reinterpret_cast<const EmulatedMap &>(map);
  }
  // The kernels lay out shared memory for boxes of this shape.
  const EmulatedMap &in_boxes(int64_t of_rows, int64_t of_cols) const {
    if (box_rows == of_rows && box_cols == of_cols) return *this;
    fprintf(stderr, "a tensor map has boxes of %d x %d, and the kernel moves %d x %d\n",
            (int)box_rows, (int)box_cols, (int)of_rows, (int)of_cols);
    abort();
  }
  EmulatedMap of_matrix(int matrix) const {
    EmulatedMap map = *this;
    map.data = (char *)data + matrix * apart * bytes;
    return map;
  }
  bool has(int64_t row, int64_t col) const {
    return row >= 0 && row < rows && col >= 0 && col < cols;
  }
  uint16_t *two_bytes(int64_t row, int64_t col) const {
    return (uint16_t *)data + row * stride + col;
  }
  uint8_t *byte(int64_t row, int64_t col) const {
    return (uint8_t *)data + row * stride + col;
  }
  uint32_t pair(int64_t row, int64_t col) const {
    return has(row, col) ? *two_bytes(row, col) | (uint32_t)*two_bytes(row, col + 1) << 16 : 0;
  }
  void write(int64_t row, int64_t col, uint32_t value) const {
    if (has(row, col)) *two_bytes(row, col) = (uint16_t)value;
  }
  void write_pair(int64_t row, int64_t col, uint32_t pair) const {
    write(row, col, pair);
    write(row, col + 1, pair >> 16);
  }
  void write_byte(int64_t row, int64_t col, uint32_t value) const {
    if (has(row, col)) *byte(row, col) = (uint8_t)value;
  }
  // Rows are zeros up to a multiple of `whole` elements.
  std::vector<float> floats(int whole) const {
    const int64_t length = (cols + whole - 1) / whole * whole;
    std::vector<float> all((size_t)(rows * length));
    for (int64_t row = 0; row < rows; row++)
      for (int64_t col = 0; col < cols; col++)
        all[(size_t)(row * length + col)] =
            bytes == 1 ? fp8_value(FP8_E4M3, *byte(row, col)) : bf16_to_float(*two_bytes(row, col));
    return all;
  }
};
static_assert(sizeof(EmulatedMap) <= sizeof(CUtensorMap), "it stands in for one");

enum { EMULATED_ROWS = 128 };

template <class Program> struct EmulatedStep : Step<Program> {
  const EpilogueOperands &operands;
  const float *values; // [M, N] the product
  int64_t cols;        // of a tile

  int64_t row_of(int i) const {
    return this->block.row(i & 1);
  }
  float2 product(int i) const {
    const int64_t row = row_of(i), col = this->column(i);
    if (row >= this->block.M || col >= this->block.N) return {0, 0};
    const float *pair = values + row * this->block.N + col;
    return {pair[0], col + 1 < this->block.N ? pair[1] : 0};
  }
  float2 column_values(int i, int which = 0) const {
    float two[2] = {0, 0};
    for (int e = 0; e < 2; e++) {
      float values[Program::ColumnValues::COUNT];
      if (this->column(i) + e >= this->block.N) continue;
      Program::ColumnValues::compute(operands.args, this->column(i) + e, values);
      two[e] = values[which];
    }
    return {two[0], two[1]};
  }
  EmulatedStep moved(int right) const {
    EmulatedStep s = *this;
    s.first_column += right;
    return s;
  }
  EmulatedMap map_of(const CUtensorMap &map, int64_t width) const {
    return EmulatedMap::of(map).in_boxes(64, width).of_matrix(this->block.matrix);
  }
  // A chunk's pairs lie as the product's do; it starts where the step does, scaled to its width.
  int64_t column_in(int first_column, int i) const {
    return first_column + 8 * (i >> 1) + 2 * (this->block.thread & 3);
  }
  template <int OPERAND, int N> void load(uint32_t (&pairs)[N], int first = 0) const {
    constexpr int WIDTH = Program::Loads::width(OPERAND);
    const EmulatedMap map = map_of(operands.loads[OPERAND], WIDTH);
    int row = this->block.first_row, column = this->first_column * WIDTH / Program::COLUMNS;
    Program::load_position(operands.args, OPERAND, row, column);
    for (int i = 0; i < N; i++)
      pairs[i] =
          map.pair(row_of(first + i) - this->block.first_row + row, column_in(column, first + i));
  }
  template <int OPERAND, int N> void store(const uint32_t (&pairs)[N], int first = 0) const {
    constexpr int WIDTH = Program::Stores::width(OPERAND);
    const int column = this->first_column * WIDTH / Program::COLUMNS;
    for (int i = 0; i < N; i++)
      map_of(operands.stores[OPERAND], WIDTH)
          .write_pair(row_of(first + i), column_in(column, first + i), pairs[i]);
  }
  // To the other side of a symmetric result, where no tile has it.
  template <int N> void store_mirror(const uint32_t (&pairs)[N], int first) const {
    const EmulatedMap map = map_of(operands.stores[0], 64);
    if (this->block.first_row / cols == this->first_column / cols) return;
    for (int i = 0; i < N; i++) {
      const int64_t row = row_of(first + i), column = column_in(this->first_column, first + i);
      map.write(column, row, pairs[i]);
      map.write(column + 1, row, pairs[i] >> 16);
    }
  }
  // As stmatrix stores it, plain and across, and the copy engine takes it.
  void store_copies(const uint32_t (&words)[4], int first) const {
    constexpr int WIDTH = Program::Copies::WIDTH;
    const int quad = this->block.thread & 3, r = (this->block.thread & 31) / 4;
    for (int i = 0; i < 16; i++) {
      const int g = i / 8, h = i / 4 % 2, in = i % 4; // which word, and which byte of it
      const int64_t row = row_of(h),
                    group = this->first_column * WIDTH / Program::COLUMNS + first + 16 * g;
      const uint32_t value = words[2 * g + h] >> 8 * in;
      if (operands.copied[0])
        EmulatedMap::of(operands.copies[0])
            .in_boxes(64, WIDTH)
            .write_byte(row, group + 4 * quad + in, value);
      if (operands.copied[1])
        EmulatedMap::of(operands.copies[1])
            .in_boxes(WIDTH, 64)
            .write_byte(group + in / 2 * 8 + 2 * quad + in % 2, row - 8 * h - r + 2 * r + h, value);
    }
  }
  void loads_done() const {} // nothing is stored over a load
};

// A sum of FP8 products, K in whole 32s, as Hopper's tensor cores have it: every 32 of K the sum so
// far and the products are truncated to multiples of 2^-13 of the largest one's power of two, and
// what they add up to is truncated to 14 bits. With this the errors of probabilities_fp8 are an
// H100's in all three digits.
enum { ADDED_TOGETHER = 32, SUM_BITS = 14 };
static inline float fp8_sum(const float *a, const float *b, int K) {
  float sum = 0;
  for (int k = 0; k < K; k += ADDED_TOGETHER) {
    float products[ADDED_TOGETHER];
    uint32_t most = __float_as_uint(fabsf(sum));
    for (int j = 0; j < ADDED_TOGETHER; j++) products[j] = a[k + j] * b[k + j];
    for (int j = 0; j < ADDED_TOGETHER; j++) {
      const uint32_t size = __float_as_uint(products[j]) & 0x7fffffffu;
      most = size > most ? size : most;
    }
    if (most > 0x7f800000u) return NAN;
    if (most == 0) continue;
    const int unit = (int)(most >> 23) - 127 - (SUM_BITS - 1);
    const float steps = ldexpf(1, -unit);
    int all = (int)(sum * steps);
    for (int j = 0; j < ADDED_TOGETHER; j++) all += (int)(products[j] * steps);
    sum = ldexpf(__uint_as_float(__float_as_uint((float)all) & ~0u << (24 - SUM_BITS)), unit);
  }
  return sum;
}

template <class Program>
std::vector<float> emulated_product(const EmulatedMap &a, const EmulatedMap &b, int M, int N,
                                    int K) {
  std::vector<float> values((size_t)M * (size_t)N);
  if (Program::FORMATS == GEMM_BF16) { // truncated, too: not the reference's bit for bit
    gemm(Program::FORM, M, N, K, a.floats(1).data(), b.floats(1).data(), 0, values.data());
    for (float &value : values) value = __uint_as_float(__float_as_uint(value) & ~3u);
    return values;
  }
  const std::vector<float> A = a.floats(ADDED_TOGETHER), B = b.floats(ADDED_TOGETHER);
  const int length = (K + ADDED_TOGETHER - 1) / ADDED_TOGETHER * ADDED_TOGETHER;
  const int part = Program::PROMOTE > 0 ? Program::PROMOTE * depth_of<Program>() : length;
  for (size_t m = 0; m < (size_t)M; m++)
    for (size_t n = 0; n < (size_t)N; n++) {
      // Of a promoted program the second consumer's first part is half as long.
      int depth = Program::PROMOTE > 0 && m / 64 % 2 ? part / 2 : part;
      float sum = 0;
      for (int k = 0; k < length; k += depth, depth = part)
        sum += fp8_sum(&A[m * (size_t)length + (size_t)k], &B[n * (size_t)length + (size_t)k],
                       length - k < depth ? length - k : depth);
      values[m * (size_t)N + n] = sum;
    }
  return values;
}

// The values of a tile's rows, as a step finds them in shared memory.
template <class Program> struct EmulatedRowValues {
  static constexpr int COUNT = Program::RowValues::COUNT;
  float values[COUNT > 0 ? COUNT : 1][EMULATED_ROWS];

  EmulatedRowValues(const ProgramArgs &args, int first_row, int M) {
    if constexpr (COUNT > 0)
      warp_run([&](int lane) {
        FourRows four[COUNT];
        Program::RowValues::compute(args, first_row + lane, M, four);
        for (int v = 0; v < COUNT; v++)
          for (int i = 0; i < 4; i++) values[v][lane + 32 * i] = four[v][i];
      });
  }
  TwoRows<Program> of(const RowBlock &block, int first_row) const {
    TwoRows<Program> two = {};
    for (int v = 0; v < COUNT; v++)
      for (int h = 0; h < 2; h++) two.values[v][h] = values[v][block.row(h) - first_row];
    return two;
  }
};

// A warp's rows of one tile: two blocks of 64 rows, as ping-pong has them.
template <int COLS, class Program>
void emulated_rows(const EpilogueOperands &operands, const RowBlock &tile, const float *values,
                   const EmulatedRowValues<Program> &row_values) {
  for (int first = 0; first < EMULATED_ROWS; first += 64) {
    RowBlock block = tile;
    block.first_row += first;
    TwoRows<Program> rows = row_values.of(block, tile.first_row);
    const float copy_scale = operands.args.copies ? operands.args.copies->scale : 1;
    Program program;
    for (int column = 0; column < COLS; column += Program::COLUMNS) {
      const EmulatedStep<Program> step = {
          {block, nullptr, rows, tile.column_tile * COLS + column, 0, 0, copy_scale},
          operands,
          values,
          COLS};
      if constexpr (Program::GROUP > 1)
        if (column % Program::GROUP == 0) group_values<Program, Program::GROUP>(step, rows.group);
      program.step(step);
    }
    program.end(block);
    if constexpr (Program::Copies::WIDTH > 0) program.largest_copied.store(block);
  }
}

// Stands in for fused_kernel, with its parameters.
template <int COLS, class Program>
void emulated_kernel(const CUtensorMap &map_a, const CUtensorMap &map_b,
                     const EpilogueOperands &operands, int M, int N, int K) {
  // K-major operands come in one box a stage, B's in two halves, others in boxes of 64 x 64.
  constexpr int DEPTH = depth_of<Program>();
  const EmulatedMap &a = EmulatedMap::of(map_a).in_boxes(
                        Program::FORM == GEMM_TN ? DEPTH : (int)EMULATED_ROWS, DEPTH),
                    &b = EmulatedMap::of(map_b).in_boxes(
                        Program::FORM == GEMM_NT ? COLS / (int)CLUSTER : DEPTH, DEPTH);
  for (int matrix = 0; matrix < (Program::BATCHED ? operands.batch : 1); matrix++) {
    const std::vector<float> values =
        emulated_product<Program>(a.of_matrix(matrix), b.of_matrix(matrix), M, N, K);
    const int tiles = (N + COLS - 1) / COLS;
    const auto run_tile = [&](int row, int tile, const EmulatedRowValues<Program> &row_values) {
      for (int warp = 0; warp < 4; warp++)
        warp_run([&](int lane) {
          const RowBlock block = {operands.args, warp * 32 + lane, row, tile, tiles, M, N, matrix};
          emulated_rows<COLS, Program>(operands, block, values.data(), row_values);
        });
    };
    for (int row = 0; row < M && !Program::SYMMETRIC; row += EMULATED_ROWS) {
      const EmulatedRowValues<Program> row_values(operands.args, row, M);
      for (int tile = 0; tile < tiles; tile++) run_tile(row, tile, row_values);
    }
    for (int half = 0; Program::SYMMETRIC && half < 2 * operands.tiles; half++) {
      int tile;
      const int row = symmetric_row(half / 2, half % 2, tiles, &tile) * EMULATED_ROWS;
      run_tile(row, tile, EmulatedRowValues<Program>(operands.args, row, M));
    }
  }
}

template <int COLUMNS> struct EmulatedTile { static constexpr int COLS = COLUMNS; };
using Tile128x256 = EmulatedTile<256>;
using Tile128x192 = EmulatedTile<192>;
using Tile128x128 = EmulatedTile<128>;
using Tile128x64 = EmulatedTile<64>;

template <class T, class Program> ProgramKernel program_kernel() {
  ProgramKernel k = {};
  if (!fits<Program>(T::COLS)) return k;
  k.kernel = (const void *)emulated_kernel<T::COLS, Program>;
  k.rows = EMULATED_ROWS, k.cols = T::COLS;
  return k;
}
