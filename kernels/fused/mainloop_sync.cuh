// The GEMM that all programs share by mma.sync, for every GPU from compute capability 8.0 on: bf16
// or FP8 in, fp32 out. Like mainloop.cuh it depends on no program, and calls the same `step`.
//
// A block's four warps compute 128 x 128 of the product, 64 x 64 each. Operands come in stages of
// 64 bytes of K, by cp.async; when all warps have read a stage, the next one overwrites it. Two
// blocks share a multiprocessor, so that one's epilogue hides behind the other's products.
// mma.sync gives a warp 16 rows of sums, in the layout that wgmma gives each warp of a warpgroup.
// So a warp processes its rows as four slabs of 16, one after the other, each with a program object
// and slots of its own. Each 64 columns write one part of the statistics.
// In FP8 an operand is read as pairs of elements, which lie as bf16 elements do; only the
// instruction differs, and adds 32 of K instead of 16. Its sums are fp32 where it is an instruction
// of its own (compute capability 8.9 and 12): a program that promotes its sums needs nothing here.
#pragma once
#include "kernels/fused/bases.cuh"

struct SyncTile {
  static constexpr int ROWS = 128, COLS = 128;
  static constexpr int DEPTH = 32; // of K, in bf16 elements or pairs of FP8's
  static constexpr int WARP = 64;  // rows and columns of a warp
  static constexpr int SLAB = 16;  // rows
  static constexpr int THREADS = 32 * (ROWS / WARP) * (COLS / WARP);
  static constexpr int A_BYTES = ROWS * DEPTH * 2, STAGE_BYTES = A_BYTES + COLS * DEPTH * 2;
  static constexpr int STAGES = 3; // with a fourth, sustained products take 3 % longer
  static constexpr int GROUP = 8;  // rows of tiles walked together, as TILE_GROUP
  static DEVICE int warp_row(int warp) {
    return warp % (ROWS / WARP) * WARP;
  }
  static DEVICE int warp_column(int warp) {
    return warp / (ROWS / WARP) * WARP;
  }
};

// ---- Operands

// The layout of LINES rows (of A) or columns (of B) of an operand in a stage. ACROSS: in memory it
// is [K, lines], else [lines, K]. 16-byte units are moved within 128 bytes, so that neither the
// copies nor ldmatrix meet in a bank:
//   [lines, K]  unit u of line i, in rows of 64 bytes: at u ^ (i / 2 % 4)
//   [K, lines]  blocks of 64 lines, in them unit u of k, in rows of 128 bytes: at u ^ (k % 8)
template <bool ACROSS, int LINES> struct SyncOperand {
  static constexpr int ROW_BYTES = ACROSS ? 128 : SyncTile::DEPTH * 2;
  static constexpr int UNITS = (ACROSS ? LINES : SyncTile::DEPTH) / 8; // of a row in memory
  static constexpr int STEP = SyncTile::THREADS / UNITS;               // rows from load to load
  static constexpr int LOADS = LINES * SyncTile::DEPTH / 8 / SyncTile::THREADS;
  static constexpr int BLOCK = SyncTile::DEPTH * 128; // bytes of 64 lines, across
  static_assert(STEP % 8 == 0, "all loads of a thread are moved alike");

  // The units that this thread copies: LOADS of them, STEP rows apart.
  const uint8_t *from;
  int64_t row_step, stage_step; // bytes
  int row, unit;
  uint32_t to;
  uint32_t lines; // bit i: load i's line exists

  DEVICE SyncOperand(const void *data, int64_t stride, int first, int all) {
    unit = threadIdx.x % UNITS, row = threadIdx.x / UNITS;
    row_step = stride * STEP * 2;
    stage_step = ACROSS ? stride * SyncTile::DEPTH * 2 : SyncTile::DEPTH * 2;
    from = reinterpret_cast<const uint8_t *>(data) + (ACROSS ? first * 2 : first * stride * 2) +
           row * stride * 2 + unit * 16;
    to = place(ACROSS ? unit * 8 : row, ACROSS ? row : unit * 8);
    lines = 0;
#pragma unroll
    for (int i = 0; i < LOADS; i++)
      lines |= (uint32_t)(first + (ACROSS ? unit * 8 : row + i * STEP) < all) << i;
  }
  // `left` of K are left, from the stage's first on.
  DEVICE void load(uint32_t stage, int left) {
    const int of_row = max(0, min(16, 2 * (left - unit * 8))); // bytes
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
      const int bytes = ACROSS ? (row + i * STEP < left ? 16 : 0) : of_row;
      async_load(stage + to + i * STEP * ROW_BYTES, from + i * row_step,
                 lines >> i & 1 ? bytes : 0);
    }
    from += stage_step;
  }

  // Of the 16 bytes that hold (line, k).
  static DEVICE uint32_t place(int line, int k) {
    if constexpr (ACROSS)
      return line / 64 * BLOCK + k * ROW_BYTES + ((line % 64 / 8 ^ k % 8) << 4);
    else
      return line * ROW_BYTES + ((k / 8 ^ (ROW_BYTES == 64 ? line / 2 % 4 : line % 8)) << 4);
  }
  // Of this lane's row of the matrix at (line, k).
  static DEVICE uint32_t lane_place(int line, int k) {
    const int row = threadIdx.x % 8;
    return ACROSS ? place(line, k + row) : place(line + row, k);
  }
  // The four matrices 16 i lines and 16 k of K on from lane_place, to which `at` adds the stage.
  static DEVICE void fragment(uint32_t at, int i, int k, uint32_t *four) {
    if constexpr (ACROSS)
      load_matrices_across((at ^ i << 5) + k * 16 * ROW_BYTES, four);
    else
      load_matrices((at ^ k << 5) + i * 16 * ROW_BYTES, four);
  }
};

// ---- Products

// Of a warp's slab, as wgmma has them: pair 2 j + h of columns 8 j.
typedef float SlabSums[SyncTile::WARP / 2];

template <GemmForm FORM, bool FP8> struct SyncProduct {
  using A = SyncOperand<FORM == GEMM_TN, SyncTile::ROWS>;
  using B = SyncOperand<FORM != GEMM_NT, SyncTile::COLS>;
  // For 16 of K: of A's matrices the second is 8 lines on and the third 8 of K, of B's the other
  // way round.
  struct Fragments {
    uint32_t a[4][4], b[4][4];
  };
  A a;
  B b;
  int K;
  uint32_t base, lane_a, lane_b;

  static_assert(!FP8 || FORM == GEMM_NT, "FP8 has K along its rows");
  DEVICE SyncProduct(const ProgramCall &call, uint32_t base_, int row, int column)
      : a(call.A, stride(call.stride_a, FORM == GEMM_TN ? call.M : call.K), row, (int)call.M),
        b(call.B, stride(call.stride_b, FORM == GEMM_NT ? call.K : call.N), column, (int)call.N),
        K((int)call.K / (FP8 ? 2 : 1)), base(base_) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int second = lane / 8 % 2 * 8, third = lane / 16 * 8;
    lane_a = A::lane_place(SyncTile::warp_row(warp) + second, third);
    lane_b = SyncTile::A_BYTES + B::lane_place(SyncTile::warp_column(warp) + third, second);
  }
  static DEVICE int64_t stride(int64_t given, int64_t length) {
    return (given ? given : length) / (FP8 ? 2 : 1);
  }

  DEVICE void load(int stage, int k) {
    const uint32_t to = base + stage * SyncTile::STAGE_BYTES;
    a.load(to, K - k);
    b.load(to + SyncTile::A_BYTES, K - k);
    async_commit();
  }
  DEVICE void begin() {
    for (int s = 0; s < SyncTile::STAGES; s++) load(s, s * SyncTile::DEPTH);
  }
  DEVICE void read(int stage, int k, Fragments &f) const {
    const uint32_t from = base + stage * SyncTile::STAGE_BYTES;
#pragma unroll
    for (int i = 0; i < 4; i++) A::fragment(from + lane_a, i, k, f.a[i]);
#pragma unroll
    for (int i = 0; i < 4; i++) B::fragment(from + lane_b, i, k, f.b[i]);
  }
  static DEVICE void multiply(const Fragments &f, SlabSums (&sums)[4]) {
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
      for (int j = 0; j < 8; j++) mma_sync<FP8>(&sums[s][4 * j], f.a[s], &f.b[j / 2][j % 2 * 2]);
  }
  // All stages are loaded when it returns, and none is read any more.
  DEVICE void run(SlabSums (&sums)[4]) {
    constexpr int PARTS = SyncTile::DEPTH / 16;
    Fragments f[2];
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
      for (int i = 0; i < SyncTile::WARP / 2; i++) sums[s][i] = 0;
    wait<SyncTile::STAGES - 1>();
    read(0, 0, f[0]);
    int stage = 0;
#pragma unroll 1
    for (int k = 0; k < K; k += SyncTile::DEPTH) {
#pragma unroll
      for (int part = 0; part < PARTS; part++) {
        if (part < PARTS - 1) {
          read(stage, part + 1, f[(part + 1) % 2]);
        } else {
          const int read_last = stage;
          stage = stage == SyncTile::STAGES - 1 ? 0 : stage + 1;
          wait<SyncTile::STAGES - 2>();
          read(stage, 0, f[(part + 1) % 2]); // past the last: zeros
          load(read_last, k + SyncTile::STAGES * SyncTile::DEPTH);
        }
        multiply(f[part % 2], sums);
      }
    }
    wait<0>();
  }

private:
  // All stages but the newest are loaded, by all threads.
  template <int STAGES> static DEVICE void wait() {
    async_wait<STAGES>();
    __syncthreads();
  }
};

// ---- The program

// Reuses the stages' memory after the last product: the values of rows and columns, then, where a
// group has 128 columns, the values of each 64, then the warps' slots.
template <class Program> struct SyncShared {
  static constexpr bool GROUP_OF_TWO = Program::GROUP > SyncTile::WARP;
  static constexpr int ROWS = Program::RowValues::COUNT, COLUMNS = Program::ColumnValues::COUNT,
                       GROUP = Program::GroupValues::COUNT;
  static constexpr int VALUES =
      (ROWS + COLUMNS + (GROUP_OF_TWO ? 2 * GROUP : 0)) * SyncTile::ROWS * 4; // bytes
  static_assert(SyncTile::ROWS == SyncTile::COLS, "both are counted in VALUES");
  static constexpr int SLOT_BYTES = SyncTile::SLAB * slot_row_bytes<Program>();
  static constexpr int WARPS = SyncTile::THREADS / 32;
  static constexpr int FITTING =
      (SyncTile::STAGES * SyncTile::STAGE_BYTES - VALUES) / (WARPS * SLOT_BYTES);
  static constexpr int SLOTS = FITTING < 4 ? FITTING : 4;
  static_assert(SLOTS >= 1, "no room for the program's tiles");
  uint32_t base;

  DEVICE uint32_t row_value(int which, int row) const {
    return base + (which * SyncTile::ROWS + row) * 4;
  }
  DEVICE uint32_t columns() const {
    return row_value(ROWS, 0);
  }
  DEVICE uint32_t group_value(int half, int which, int row) const {
    return row_value(ROWS + COLUMNS + half * GROUP + which, row);
  }
  DEVICE uint32_t slot(int warp, int i) const {
    return base + VALUES + (warp * SLOTS + i) * SLOT_BYTES;
  }
};

// The epilogue of a warp's sums.
template <class Program> struct SyncEpilogue {
  using Loads = typename Program::Loads;
  using Stores = typename Program::Stores;
  using Copies = typename Program::Copies;
  using Shared = SyncShared<Program>;
  static constexpr int SLAB = SyncTile::SLAB;
  static constexpr int A_SLAB = SyncTile::WARP / Program::COLUMNS; // steps
  const ProgramCall &call;
  Shared shared;
  int row, column; // of the warp's part of the product
  int lane, warp;

  DEVICE int step_row(int step) const {
    return row + step / A_SLAB * SLAB;
  }
  DEVICE int step_column(int step, int width) const {
    return (column + step % A_SLAB * Program::COLUMNS) * width / Program::COLUMNS;
  }
  // Moves a chunk, a lane 16 bytes at a time: to a slot, or from it.
  template <class Chunks, class Move>
  DEVICE void units(int operand, uint32_t slot, const Matrix &matrix, int first_row,
                    int first_column, Move move) const {
    const int width = Chunks::width(operand), a_row = width / 8;
    uint8_t *data = const_cast<uint8_t *>(reinterpret_cast<const uint8_t *>(matrix.data));
#pragma unroll 1 // few registers here
    for (int i = lane; i < SLAB * a_row; i += 32) {
      const int in_row = i % a_row, below = i / a_row;
      const int64_t at = (first_row + below) * matrix.cols + first_column + in_row * 8;
      move(slot + SLAB * Chunks::offset(operand) + below * width * 2 +
               (chunk_unit(width, below, in_row) << 4),
           data + at * 2,
           first_row + below < matrix.rows && first_column + in_row * 8 < matrix.cols);
    }
  }
  static DEVICE void store_unit(uint32_t from, uint8_t *to, bool exists) {
    const uint4 unit = shared_load_unit(from);
    if (exists) *reinterpret_cast<uint4 *>(to) = unit;
  }
  DEVICE void load(int step) const {
    if constexpr (Loads::COUNT > 0) {
      if (step < 4 * A_SLAB) {
#pragma unroll
        for (int i = 0; i < Loads::COUNT; i++) {
          int first_row = step_row(step), first = step_column(step, Loads::width(i));
          Program::load_position(call.args, i, first_row, first);
          units<Loads>(i, shared.slot(warp, step % Shared::SLOTS), call.loads[i], first_row, first,
                       [](uint32_t to, const uint8_t *from, bool exists) {
                         async_load(to, from, exists ? 16 : 0);
                       });
        }
      }
      async_commit();
    }
  }
  DEVICE void store(int step, uint32_t slot) const {
#pragma unroll
    for (int i = 0; i < Stores::COUNT; i++)
      units<Stores>(i, slot, call.stores[i], step_row(step), step_column(step, Stores::width(i)),
                    store_unit);
    if constexpr (Copies::WIDTH > 0)
      store_copies(step_row(step), step_column(step, Copies::WIDTH),
                   slot + SLAB * Stores::ROW_BYTES);
  }
  // A copy's row is 16 bytes for every 16 columns, a column's copy 16 bytes for the slab.
  DEVICE void store_copies(int first_row, int first_column, uint32_t copies) const {
    constexpr int A_ROW = Copies::WIDTH / 16;
    const Matrix &rows = call.copies[0], &columns = call.copies[1];
    uint8_t *by_row = const_cast<uint8_t *>(reinterpret_cast<const uint8_t *>(rows.data)),
            *by_col = const_cast<uint8_t *>(reinterpret_cast<const uint8_t *>(columns.data));
    if (by_row)
#pragma unroll
      for (int i = lane; i < SLAB * A_ROW; i += 32) {
        const int r = i / A_ROW, unit = i % A_ROW;
        store_unit(Copies::row_unit(copies, r, unit),
                   by_row + (first_row + r) * rows.cols + first_column + unit * 16,
                   first_row + r < rows.rows && first_column + unit * 16 < rows.cols);
      }
    const int64_t stride = call.by_col_stride ? call.by_col_stride : columns.cols;
    if (by_col)
#pragma unroll
      for (int c = lane; c < Copies::WIDTH; c += 32)
        store_unit(Copies::template column_unit<SLAB>(copies, c, 0),
                   by_col + (first_column + c) * stride + first_row,
                   first_column + c < columns.rows && first_row < columns.cols);
  }
  DEVICE RowBlock block_of(int s) const {
    return {call.args,
            lane,
            row + s * SLAB,
            column / SyncTile::WARP,
            ((int)call.N + SyncTile::WARP - 1) / SyncTile::WARP,
            call.M,
            call.N,
            0};
  }
  // Of the thread's row h in slab s.
  DEVICE int in_block(int s, int h) const {
    return row % SyncTile::ROWS + s * SLAB + lane / 4 + h * 8;
  }
  DEVICE TwoRows<Program> values_of(int s) const {
    TwoRows<Program> values = {};
#pragma unroll
    for (int v = 0; v < Program::RowValues::COUNT; v++)
#pragma unroll
      for (int h = 0; h < 2; h++)
        values.values[v][h] = shared_load(shared.row_value(v, in_block(s, h)));
    return values;
  }
  // Where the values of the thread's columns begin in a slab's step i.
  DEVICE uint32_t columns(int i) const {
    if constexpr (Shared::COLUMNS == 0) return 0;
    return shared.columns() +
           column_place<Program>(column % SyncTile::COLS + i * Program::COLUMNS + 2 * (lane & 3));
  }
  // For the warp with the other 64 columns of the group.
  DEVICE void share_group_values(const SlabSums (&sums)[4]) const {
#pragma unroll
    for (int s = 0; s < 4; s++) {
      const RowBlock block = block_of(s);
      TwoRows<Program> values = values_of(s);
      group_values<Program, SyncTile::WARP>(
          Step<Program, SLAB>{block, sums[s], values, column, 0, columns(0), 1}, values.group);
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int v = 0; v < Shared::GROUP; v++)
          if (lane % 4 == 0)
            shared_store(shared.group_value(column / SyncTile::WARP % 2, v, in_block(s, h)),
                         values.group[h][v]);
    }
  }
  // Both halves', joined.
  DEVICE void shared_group_values(int s, TwoRows<Program> &values) const {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float others[Shared::GROUP];
#pragma unroll
      for (int v = 0; v < Shared::GROUP; v++) {
        values.group[h][v] = shared_load(shared.group_value(0, v, in_block(s, h)));
        others[v] = shared_load(shared.group_value(1, v, in_block(s, h)));
      }
      Program::GroupValues::join(values.group[h], others);
    }
  }
  DEVICE void run(const SlabSums (&sums)[4]) const {
    float copy_scale = 1;
    if (Copies::WIDTH > 0 && call.args.copies) copy_scale = __ldg(&call.args.copies->scale);
#pragma unroll
    for (int s = 0; s < 4; s++) {
      const RowBlock block = block_of(s);
      TwoRows<Program> values = values_of(s);
      if constexpr (Shared::GROUP_OF_TWO) shared_group_values(s, values);
      Program program;
#pragma unroll
      for (int i = 0; i < A_SLAB; i++) {
        const int step = s * A_SLAB + i;
        uint32_t slot = shared.slot(warp, step % Shared::SLOTS), of_columns = columns(i);
        // Otherwise the compiler keeps the addresses of all slots in registers.
        asm volatile("" : "+r"(slot));
        if constexpr (Shared::COLUMNS > 0) asm volatile("" : "+r"(of_columns));
        if constexpr (Loads::COUNT > 0) async_wait<Shared::SLOTS - 1>();
        __syncwarp();
        const Step<Program, SLAB> now = {block,     sums[s] + i * (Program::COLUMNS / 2),
                                         values,    column + i * Program::COLUMNS,
                                         slot,      of_columns,
                                         copy_scale};
        if constexpr (Program::GROUP > 1 && !Shared::GROUP_OF_TWO)
          if (i * Program::COLUMNS % Program::GROUP == 0)
            group_values<Program, Program::GROUP>(now, values.group);
        program.step(now);
        __syncwarp();
        store(step, slot);
        __syncwarp();
        load(step + Shared::SLOTS);
      }
      program.end(block);
      if constexpr (Copies::WIDTH > 0) program.largest_copied.store(block);
    }
  }
};

template <class Program>
__global__ void __launch_bounds__(SyncTile::THREADS, 2)
    sync_kernel(const __grid_constant__ ProgramCall call) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
  if (Program::FORMATS != GEMM_BF16) return; // there is no such instruction
#endif
  extern __shared__ __align__(128) uint8_t memory[];
  const uint32_t base = shared_address(memory);
  constexpr int VALUES = Program::RowValues::COUNT;
  const int M = (int)call.M, N = (int)call.N, thread = threadIdx.x, warp = thread / 32;

  // The tile: SyncTile::GROUP rows of tiles together, column by column.
  const int tiles_m = (M + SyncTile::ROWS - 1) / SyncTile::ROWS,
            tiles_n = (N + SyncTile::COLS - 1) / SyncTile::COLS;
  const int a_group = SyncTile::GROUP * tiles_n, first = blockIdx.x / a_group * SyncTile::GROUP,
            in_group = blockIdx.x % a_group, rows = min(SyncTile::GROUP, tiles_m - first);
  const int row = (first + in_group % rows) * SyncTile::ROWS,
            column = in_group / rows * SyncTile::COLS;

  SyncProduct<Program::FORM, Program::FORMATS != GEMM_BF16> product(call, base, row, column);
  product.begin();
  // Row values, while the first stages are loading: a thread's row is the first of four.
  float of_row[VALUES > 0 ? VALUES : 1] = {};
  if constexpr (VALUES > 0) {
    if (thread < SyncTile::ROWS) {
      FourRows values[VALUES];
      Program::RowValues::compute(call.args, row + thread, min(M, row + thread + 1), values);
#pragma unroll
      for (int v = 0; v < VALUES; v++) of_row[v] = values[v][0];
    }
  }
  SlabSums sums[4];
  product.run(sums);

  const SyncEpilogue<Program> epilogue = {
      call,        {base}, row + SyncTile::warp_row(warp), column + SyncTile::warp_column(warp),
      thread % 32, warp};
#pragma unroll
  for (int step = 0; step < SyncShared<Program>::SLOTS; step++) epilogue.load(step);
  if constexpr (VALUES > 0) {
    if (thread < SyncTile::ROWS)
#pragma unroll
      for (int v = 0; v < VALUES; v++)
        shared_store(epilogue.shared.row_value(v, thread), of_row[v]);
  }
  if constexpr (SyncShared<Program>::COLUMNS > 0) { // now: registers are free
    static_assert(SyncTile::THREADS == SyncTile::COLS, "a thread has a column");
    float of_column[SyncShared<Program>::COLUMNS] = {};
    if (column + thread < N) Program::ColumnValues::compute(call.args, column + thread, of_column);
    store_column<Program>(epilogue.shared.columns(), thread, of_column);
  }
  if constexpr (SyncShared<Program>::VALUES > 0) __syncthreads();
  if constexpr (SyncShared<Program>::GROUP_OF_TWO) {
    epilogue.share_group_values(sums);
    __syncthreads();
  }
  if (epilogue.column < N) epilogue.run(sums);
}

template <class P> ProgramKernel sync_program_kernel() {
  constexpr int REGISTERS = 65536 / (2 * SyncTile::THREADS); // at most, of one that also moves data
  if constexpr (!P::BATCHED)
    return {(const void *)sync_kernel<P>,
            SyncTile::WARP,
            SyncTile::WARP,
            SyncTile::STAGES,
            SyncShared<P>::SLOTS,
            SyncTile::STAGES * SyncTile::STAGE_BYTES,
            REGISTERS,
            REGISTERS};
  return {};
}
