// The GEMM that all programs share, for sm_90a: product[M, N] = sum over k of A(m, k) B(n, k), bf16
// or FP8 in, fp32 out. It knows no program: it calls what ProgramDefaults (epilogue.cuh) lists, and
// moves the tiles that the program names.
//
// A block is 3 warpgroups and stays on its multiprocessor until all tiles are done. Warpgroup 0
// only moves data:
//     warp 0  operands               warps 2, 3  the epilogue tiles of consumers 0 and 1
//     warp 1  values of rows, columns  (one thread of each, but all of warp 1)
// Warpgroups 1 and 2, the consumers, multiply and run the program. Either each takes half of the
// rows of every tile (cooperative), or they take whole tiles in turns (ping-pong): then one's
// epilogue hides behind the other's products. A cluster of 2 blocks takes neighbouring tiles of a
// column and shares B, each loading half of it for both. Work says which tile comes next.
//
// Who waits for whom (mbarriers; a ring's phase bit flips each time round), and how many arrive:
//     full[stage]            operands are there: 1, and the bytes, whichever block sends them
//     empty[stage]           they have been read: 1 for each consumer of the cluster's blocks
//     turn[consumer]         ping-pong: the other consumer has issued all its products
//     values_full[i]         the values of a tile's rows and columns are there: 32
//     values_empty[i]        they are no longer needed: 1 for each consuming warp
//     ready[consumer][slot]  a step's tiles are loaded: 1, and the bytes
//     done[consumer][slot]   its results are in the slot: 1 for each warp
#pragma once
#include "kernels/fused/bases.cuh"
#include "kernels/fused/tickets.h"

// ---- Tile shapes, shared memory with its barriers, rings, and the order of tiles and steps

enum Schedule { COOPERATIVE, PING_PONG };

enum {
  BLOCK_OF_64 = 64 * 128,    // bytes of 64 rows or columns of an operand's stage
  SHARED_LIMIT = 227 * 1024, // a block can have
  MAX_SLOTS = 4,
  // Rows of cluster tiles walked together, column by column, so that they share operands in L2.
  TILE_GROUP = 8,
};

// DYNAMIC: clusters take their tiles by tickets (Work), not every so many.
template <int ROWS_, int COLS_, int STAGES_, Schedule SCHEDULE_, bool DYNAMIC_ = false>
struct Tile {
  static constexpr Schedule SCHEDULE = SCHEDULE_;
  static constexpr bool DYNAMIC = DYNAMIC_;
  static constexpr int ROWS = ROWS_, COLS = COLS_, STAGES = STAGES_;
  static constexpr bool PINGPONG = SCHEDULE == PING_PONG;
  static constexpr int CONSUMER_ROWS = PINGPONG ? ROWS : ROWS / 2;
  static constexpr int BLOCKS = CONSUMER_ROWS / 64; // wgmma has 64 rows
  static constexpr int A_BYTES = ROWS * DEPTH_BYTES, B_BYTES = COLS * DEPTH_BYTES;
  static constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
  // The 3 warpgroups start with 168 registers per thread, and these are redistributed. A larger
  // total would wait for ever. With these numbers no program spills: a thread has 192 sums with 192
  // columns, else 128.
  static constexpr int PRODUCER_REGISTERS = COLS == 192 ? 40 : 56;
  static constexpr int CONSUMER_REGISTERS = COLS == 192 ? 232 : 224;
  static_assert(PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS <= 3 * 168, "more than were launched");
};

// Shared memory, at a multiple of 1024: the stages, both consumers' slots, the values of two tiles'
// rows and columns, the barriers.
template <class T, class Program> struct Shared {
  static constexpr int SLOT_BYTES = 64 * slot_row_bytes<Program>();
  static constexpr int ROW_VALUES = Program::RowValues::COUNT * T::ROWS * 4; // bytes of a tile's
  static constexpr int VALUES = ROW_VALUES + Program::ColumnValues::COUNT * T::COLS * 4;
  // Tiles whose values are there. Columns' come during the multiplication, for which one would do
  // where the consumers do not take turns, and its slots need the memory.
  static constexpr int RING = Program::ColumnValues::COUNT > 0 && !T::PINGPONG ? 1 : 2;

  // Aligned memory needs no padding, so that a second slot fits; but it costs a register, which
  // some programs do not have.
  static constexpr int SLACK = takes_all_memory<Program> ? 0 : 1024;
  static constexpr int BARRIERS = 2 * T::STAGES + 2 + 4 + 4 * MAX_SLOTS;
  static constexpr int TICKET_BYTES = T::DYNAMIC ? TICKETS * TICKET : 0;
  static constexpr int FIXED =
      T::STAGES * T::STAGE_BYTES + RING * VALUES + BARRIERS * 8 + TICKET_BYTES + SLACK;
  static constexpr int FITTING = (SHARED_LIMIT - FIXED) / (2 * SLOT_BYTES);
  static constexpr int SLOTS = FITTING < MAX_SLOTS ? FITTING : MAX_SLOTS;
  static_assert(chunks_match<typename Program::Loads, typename Program::Stores>(),
                "a chunk that is stored overlaps one that is loaded");
  static_assert(SLOTS >= 1, "no room for the program's tiles beside the operands");
  static constexpr int BYTES = FIXED + 2 * SLOTS * SLOT_BYTES;

  uint32_t base;

  DEVICE uint32_t stage(int s) const {
    return base + s * T::STAGE_BYTES;
  }
  DEVICE uint32_t slot(int consumer, int i) const {
    return base + T::STAGES * T::STAGE_BYTES + (consumer * SLOTS + i) * SLOT_BYTES;
  }
  DEVICE uint32_t row_values(int i) const {
    return base + T::STAGES * T::STAGE_BYTES + 2 * SLOTS * SLOT_BYTES + i * VALUES;
  }
  DEVICE uint32_t column_values(int i) const {
    return row_values(i) + ROW_VALUES;
  }
  DEVICE uint32_t barrier(int i) const {
    return row_values(RING) + i * 8;
  }
  DEVICE uint32_t full(int s) const {
    return barrier(s);
  }
  DEVICE uint32_t empty(int s) const {
    return barrier(T::STAGES + s);
  }
  DEVICE uint32_t turn(int consumer) const {
    return barrier(2 * T::STAGES + consumer);
  }
  DEVICE uint32_t values_full(int i) const {
    return barrier(2 * T::STAGES + 2 + i);
  }
  DEVICE uint32_t values_empty(int i) const {
    return barrier(2 * T::STAGES + 4 + i);
  }
  DEVICE uint32_t ready(int consumer, int slot) const {
    return barrier(2 * T::STAGES + 6 + consumer * MAX_SLOTS + slot);
  }
  DEVICE uint32_t done(int consumer, int slot) const {
    return barrier(2 * T::STAGES + 6 + (2 + consumer) * MAX_SLOTS + slot);
  }
  DEVICE uint32_t tickets() const {
    return barrier(BARRIERS);
  }

  DEVICE void init_barriers() const {
    for (int s = 0; s < T::STAGES; s++) {
      mbarrier_init(full(s), 1);
      mbarrier_init(empty(s), CLUSTER * (T::PINGPONG ? 1 : 2));
    }
    for (int i = 0; i < 2; i++) {
      mbarrier_init(turn(i), 1);
      mbarrier_init(values_full(i), 32);
      mbarrier_init(values_empty(i), T::PINGPONG ? 4 : 8);
      for (int slot = 0; slot < SLOTS; slot++) {
        mbarrier_init(ready(i, slot), 1);
        mbarrier_init(done(i, slot), 4);
      }
    }
    if constexpr (T::DYNAMIC) // as of another round
      for (int i = 0; i < TICKETS; i++) shared_store(tickets() + i * TICKET, uint2{0, 1u << 31});
    fence_mbarrier_init();
  }
};

// The position in a ring of SIZE after a number of steps, and the parity of the phase for which a
// reader waits there.
template <int SIZE> struct Ring {
  int at;
  uint32_t parity;
  DEVICE explicit Ring(uint32_t steps) : at((int)(steps % SIZE)), parity(steps / SIZE & 1) {}
  DEVICE void next() {
    if (++at == SIZE) at = 0, parity ^= 1;
  }
};

// How many tickets the kernel that is running has given out. Between kernels it is 0. Kernels of
// one file must not run at the same time.
static __device__ uint32_t tickets_taken;

// The product's size, and in which order this cluster takes its tiles: every `stride`th, or, if
// DYNAMIC, after the first the next that no cluster has taken (tickets.h).
template <class T, class Program> struct Work {
  static_assert(T::STAGES <= 5 && TICKETS >= LEAST_TICKETS, "see tickets.h");
  static constexpr int TURNS = T::PINGPONG ? 2 : 1;
  int M, N, K, rank;           // of this block in its cluster
  int tiles_m, tiles_n, total; // of clusters
  int first, stride;
  int a_matrix; // tiles of one, in a batch
  uint32_t tickets;

  DEVICE Work(int m, int n, int k, const EpilogueOperands &operands, uint32_t ring)
      : M(m), N(n), K(k), tickets(ring) {
    rank = (int)cluster_rank();
    tiles_m = (M + T::ROWS * CLUSTER - 1) / (T::ROWS * CLUSTER);
    tiles_n = (N + T::COLS - 1) / T::COLS;
    total = tiles_m * tiles_n;
    if constexpr (Program::BATCHED) {
      a_matrix = operands.tiles;
      total = a_matrix * operands.batch;
    }
    first = blockIdx.x / CLUSTER;
    stride = gridDim.x / CLUSTER;
  }
  // Where the cluster's tile i, from 0 on, lies; waits until that is known. False: there is none.
  DEVICE bool find(uint32_t i, int &row, int &column_tile, int &matrix) const {
    if constexpr (T::DYNAMIC) {
      uint2 v;
      do v = published(i);
      while ((int)v.y < 0);
      place(v, row, column_tile, matrix);
      return v.y != NO_TILE;
    } else {
      const int t = first + (int)i * stride;
      if (t >= total) return false;
      locate(t, row, column_tile, matrix);
      return true;
    }
  }
  // The same of a tile that is known to exist.
  DEVICE void find_again(uint32_t i, int &row, int &column_tile, int &matrix) const {
    if constexpr (T::DYNAMIC)
      place(published(i), row, column_tile, matrix);
    else
      locate(first + (int)i * stride, row, column_tile, matrix);
  }
  // Takes a ticket; `publish` needs it, as late as possible: the answer takes its time. Each of the
  // tiles but the first of the clusters is given out once, and each cluster gets one ticket for
  // which there is none: `total` in all, after which the count starts at 0 for the next kernel.
  DEVICE uint32_t take() const {
    return T::DYNAMIC && rank == 0 ? global_count(&tickets_taken, total - 1) : 0;
  }
  // Tells both blocks their tile i; after the last one, that there is none, to each consumer.
  DEVICE void publish(uint32_t i, uint32_t ticket) const {
    if (!T::DYNAMIC || rank != 0) return;
    asm volatile("" : "+r"(ticket)); // else the compiler adds, and so waits, before
    const uint32_t t = ticket + stride;
    const bool none = t >= (uint32_t)total;
    const uint2 v = described(t);
#pragma unroll
    for (int more = 0; more < TURNS; more++)
#pragma unroll
      for (int block = 0; block < CLUSTER; block++)
        if (more == 0 || none)
          cluster_store(tickets + (i + more) % TICKETS * TICKET, block,
                        {v.x, v.y ^ ((i + more) / TICKETS << 31)});
  }
  // The first tile, which each block knows itself.
  DEVICE void publish_first() const {
    if (T::DYNAMIC) cluster_store(tickets, rank, described(first));
  }
  // This block's rows and columns of tile t start here; matrix: its place in the batch.
  DEVICE void locate(int t, int &row, int &column_tile, int &matrix) const {
    matrix = 0;
    if constexpr (Program::BATCHED) {
      matrix = t / a_matrix;
      t -= matrix * a_matrix;
    }
    if constexpr (Program::SYMMETRIC) {
      static_assert(T::ROWS == T::COLS, "a tile's mirror is a tile");
      row = symmetric_row(t, rank, tiles_n, &column_tile) * T::ROWS;
    } else {
      locate_in_groups(t, row, column_tile);
    }
  }
  // True where the 64 x 64 elements at (row, column) of a symmetric product are stored across the
  // diagonal, too: a tile on it has both sides.
  DEVICE bool is_mirrored(int row, int column) const {
    return row / T::ROWS != column / T::COLS;
  }

private:
  static constexpr uint32_t NO_TILE = 1u << 30;

  DEVICE uint2 described(uint32_t t) const {
    if (t >= (uint32_t)total) return {0, NO_TILE};
    int row, column_tile, matrix;
    locate((int)t, row, column_tile, matrix);
    return {(uint32_t)column_tile, (uint32_t)row / (T::ROWS * CLUSTER)};
  }
  DEVICE uint2 published(uint32_t i) const {
    const uint2 v = cluster_load(tickets + i % TICKETS * TICKET);
    return {v.x, v.y ^ (i / TICKETS << 31)};
  }
  DEVICE void place(uint2 v, int &row, int &column_tile, int &matrix) const {
    row = ((int)v.y * CLUSTER + rank) * T::ROWS;
    column_tile = (int)v.x;
    matrix = 0;
  }
  DEVICE void locate_in_groups(int t, int &row, int &column_tile) const {
    const int a_group = TILE_GROUP * tiles_n, group = t / a_group, in_group = t - group * a_group;
    const int first_row = group * TILE_GROUP, rows = min(TILE_GROUP, tiles_m - first_row);
    column_tile = in_group / rows;
    row = ((first_row + in_group - column_tile * rows) * CLUSTER + rank) * T::ROWS;
  }
};

// The steps of a consumer's tiles, one after the other.
template <class T, class Program> struct Steps {
  static constexpr int A_BLOCK = T::COLS / Program::COLUMNS, A_TILE = A_BLOCK * T::BLOCKS;
  const Work<T, Program> &work;
  int consumer, step, row, column, matrix;
  uint32_t tile; // of the cluster's
  bool left;     // there is such a tile

  DEVICE Steps(const Work<T, Program> &w, int which)
      : work(w), consumer(which), step(0), tile(T::PINGPONG ? which : 0) {
    find();
  }
  DEVICE void next() {
    if (++step < A_TILE) return;
    step = 0;
    tile += work.TURNS;
    find();
  }
  DEVICE int step_row() const {
    return row + step / A_BLOCK * 64;
  }
  DEVICE int step_column() const {
    return column + step % A_BLOCK * Program::COLUMNS;
  }

private:
  DEVICE void find() {
    left = work.find(tile, row, column, matrix);
    column *= T::COLS;
    if (!T::PINGPONG) row += consumer * T::CONSUMER_ROWS;
  }
};

// ---- The block

// The work of a block's warps. Each warpgroup has a Work of its own.
template <class T, class Program, Major A_MAJOR, Major B_MAJOR> struct Block {
  using Loads = typename Program::Loads;
  using Stores = typename Program::Stores;
  using Copies = typename Program::Copies;
  static constexpr int DEPTH = depth_of<Program>();
  static constexpr bool BATCHED = Program::BATCHED;
  static_assert(DEPTH == DEPTH_BYTES / 2 || Program::FORM == GEMM_NT, "FP8 has K along its rows");
  Shared<T, Program> shared;
  Work<T, Program> work;

  DEVICE int k_stages() const {
    return (work.K + DEPTH - 1) / DEPTH;
  }

  // ---- Warp 0: operands

  // The stages from k to `end` of the tile that starts at (row, column).
  DEVICE void load_stages(const CUtensorMap *map_a, const CUtensorMap *map_b, int k, int end,
                          int row, int column, int matrix, Ring<T::STAGES> &ring) const {
    constexpr uint16_t BOTH = 3;
    for (; k < end; k += DEPTH, ring.next()) {
      const uint32_t full = shared.full(ring.at), a = shared.stage(ring.at), b = a + T::A_BYTES;
      mbarrier_wait(shared.empty(ring.at), ring.parity ^ 1);
      mbarrier_expect(full, T::STAGE_BYTES);
      if constexpr (A_MAJOR == MAJOR_K) {
        tensor_load<BATCHED>(map_a, full, a, k, row, matrix);
      } else {
#pragma unroll
        for (int i = 0; i < T::ROWS / 64; i++)
          tensor_load<BATCHED>(map_a, full, a + i * BLOCK_OF_64, row + i * 64, k, matrix);
      }
      if constexpr (B_MAJOR == MAJOR_K) {
        const int half = work.rank * (T::COLS / CLUSTER);
        tensor_load_multicast<BATCHED>(map_b, full, b + half * 128, k, column + half, matrix, BOTH);
      } else {
#pragma unroll
        for (int i = 0; i < T::COLS / 64; i++)
          if (i % CLUSTER == work.rank)
            tensor_load_multicast<BATCHED>(map_b, full, b + i * BLOCK_OF_64, column + i * 64, k,
                                           matrix, BOTH);
      }
    }
  }

  DEVICE void load_operands(const CUtensorMap *map_a, const CUtensorMap *map_b) const {
    Ring<T::STAGES> ring(0);
    int row, column, matrix;
    work.publish_first();
    for (uint32_t i = 0; work.find(i, row, column, matrix); i++) {
      const uint32_t ticket = work.take();
      column *= T::COLS;
      const int few = T::DYNAMIC ? min(work.K, 2 * DEPTH) : 0; // until the ticket has come
      load_stages(map_a, map_b, 0, few, row, column, matrix, ring);
      work.publish(i + 1, ticket);
      load_stages(map_a, map_b, few, work.K, row, column, matrix, ring);
    }
  }

  // ---- Warp 1: values of rows and columns, a tile ahead

  DEVICE void row_values(const ProgramArgs &args, int row, uint32_t to) const {
    static_assert(T::ROWS == 4 * 32, "four rows a lane");
    const int lane = threadIdx.x % 32;
    FourRows values[Program::RowValues::COUNT];
    Program::RowValues::compute(args, row + lane, work.M, values);
#pragma unroll
    for (int v = 0; v < Program::RowValues::COUNT; v++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        shared_store(to + (v * T::ROWS + lane + 32 * i) * 4, values[v][i]);
  }

  DEVICE void column_values(const ProgramArgs &args, int first, uint32_t to) const {
    constexpr int COUNT = Program::ColumnValues::COUNT, A_LANE = T::COLS / 32;
    const int lane = threadIdx.x % 32;
    float values[A_LANE][COUNT] = {};
#pragma unroll
    for (int i = 0; i < A_LANE; i++)
      if (first + lane + 32 * i < work.N)
        Program::ColumnValues::compute(args, first + lane + 32 * i, values[i]);
#pragma unroll
    for (int i = 0; i < A_LANE; i++) store_column<Program>(to, lane + 32 * i, values[i]);
  }

  DEVICE void compute_values(const ProgramArgs &args) const {
    Ring<Shared<T, Program>::RING> ring(0);
    for (uint32_t i = 0;; i++, ring.next()) {
      int row, column_tile, matrix;
      mbarrier_wait(shared.values_empty(ring.at), ring.parity ^ 1);
      if (!work.find(i, row, column_tile, matrix)) break; // it is known by now
      if constexpr (Program::RowValues::COUNT > 0)
        row_values(args, row, shared.row_values(ring.at));
      if constexpr (Program::ColumnValues::COUNT > 0)
        column_values(args, column_tile * T::COLS, shared.column_values(ring.at));
      mbarrier_arrive(shared.values_full(ring.at));
    }
  }

  // ---- Warps 2 and 3: tiles of the epilogue

  DEVICE void load_chunks(int consumer, int slot, Steps<T, Program> &steps,
                          const EpilogueOperands &operands) const {
    if (!steps.left) return;
    const uint32_t ready = shared.ready(consumer, slot);
    if constexpr (Loads::COUNT == 0) {
      mbarrier_arrive(ready);
    } else {
      mbarrier_expect(ready, 64 * Loads::ROW_BYTES);
#pragma unroll
      for (int i = 0; i < Loads::COUNT; i++) {
        int row = steps.step_row(),
            column = steps.step_column() * Loads::width(i) / Program::COLUMNS;
        Program::load_position(operands.args, i, row, column);
        tensor_load<BATCHED>(&operands.loads[i], ready,
                             shared.slot(consumer, slot) + 64 * Loads::offset(i), column, row,
                             steps.matrix);
      }
    }
    steps.next();
  }

  DEVICE void store_copies(uint32_t slot, const Steps<T, Program> &step,
                           const EpilogueOperands &operands) const {
    const int row = step.step_row(), column = step.step_column() * Copies::WIDTH / Program::COLUMNS;
    const uint32_t copies = slot + 64 * Stores::ROW_BYTES;
    if (operands.copied[0]) tensor_store<false>(&operands.copies[0], copies, column, row, 0);
    if (operands.copied[1])
      tensor_store<false>(&operands.copies[1], copies + 64 * Copies::BY_COL, row, column, 0);
  }

  DEVICE void move_chunks(int consumer, const EpilogueOperands &operands) const {
    constexpr int SLOTS = Shared<T, Program>::SLOTS;
    // A slot is refilled when the copy engine has read its store; with many slots, one store later.
    constexpr int LAG = SLOTS > 2 ? 1 : 0;
    Steps<T, Program> loading(work, consumer), storing(work, consumer);
#pragma unroll 1 // few registers here
    for (int slot = 0; slot < SLOTS; slot++) load_chunks(consumer, slot, loading, operands);
    Ring<SLOTS> ring(0);
    int refill = -LAG;
#pragma unroll 1
    for (; storing.left; storing.next(), ring.next()) {
      mbarrier_wait(shared.done(consumer, ring.at), ring.parity);
#pragma unroll
      for (int i = 0; i < (Program::SYMMETRIC ? 1 : Stores::COUNT); i++)
        tensor_store<BATCHED>(&operands.stores[i],
                              shared.slot(consumer, ring.at) + 64 * Stores::offset(i),
                              storing.step_column() * Stores::width(i) / Program::COLUMNS,
                              storing.step_row(), storing.matrix);
      if constexpr (Program::SYMMETRIC)
        if (work.is_mirrored(storing.step_row(), storing.step_column()))
          tensor_store<BATCHED>(&operands.stores[0],
                                shared.slot(consumer, ring.at) + 64 * Stores::offset(1),
                                storing.step_row(), storing.step_column(), storing.matrix);
      if constexpr (Copies::WIDTH > 0)
        store_copies(shared.slot(consumer, ring.at), storing, operands);
      bulk_commit();
      bulk_wait_read<LAG>();
      if (refill >= 0) load_chunks(consumer, refill, loading, operands);
      if (++refill == SLOTS) refill = 0;
    }
    bulk_wait_read<0>();
  }

  // ---- Warpgroups 1 and 2: products and epilogue

  // Adds the products of a stage's first BYTES of K. The stage before is released as soon as it was
  // read: `previous`, if it is of this tile.
  template <int BYTES>
  DEVICE void multiply_stage(int consumer, int thread, Ring<T::STAGES> &ring, bool is_first,
                             int &previous, float (&accumulators)[T::BLOCKS][T::COLS / 2]) const {
    // An instruction's part of k: 32 bytes of a row, or 16 rows of 128 bytes
    constexpr int K_STEP_A = (A_MAJOR == MAJOR_K ? 32 : 16 * 128) >> 4;
    constexpr int K_STEP_B = (B_MAJOR == MAJOR_K ? 32 : 16 * 128) >> 4;
    const uint32_t first_a =
        shared.stage(0) + (T::PINGPONG ? 0 : consumer * T::CONSUMER_ROWS / 64 * BLOCK_OF_64);
    const uint64_t a0 = wgmma_descriptor(first_a, A_MAJOR);
    const uint64_t b0 = wgmma_descriptor(shared.stage(0) + T::A_BYTES, B_MAJOR);
    mbarrier_wait(shared.full(ring.at), ring.parity);
    wgmma_fence();
    const uint64_t offset = (uint64_t)(ring.at * (T::STAGE_BYTES >> 4));
#pragma unroll
    for (int k = 0; k < BYTES / 32; k++)
#pragma unroll
      for (int block = 0; block < T::BLOCKS; block++)
        wgmma<Program::FORMATS, A_MAJOR, B_MAJOR>(
            accumulators[block], a0 + offset + block * (BLOCK_OF_64 >> 4) + k * K_STEP_A,
            b0 + offset + k * K_STEP_B, k > 0 || !is_first);
    wgmma_commit();
    if (!is_first) {
      wgmma_wait<1>();
      if (thread < CLUSTER) mbarrier_arrive_at(shared.empty(previous), thread);
    }
    previous = ring.at;
    ring.next();
  }

  // Adds the products of the next `depth` elements of K. A stage has zeros past K: where its second
  // half lies there, it is left out.
  DEVICE void multiply(int consumer, int thread, Ring<T::STAGES> &ring, int depth,
                       float (&accumulators)[T::BLOCKS][T::COLS / 2]) const {
    int k = 0, previous = 0;
    for (; k + DEPTH / 2 < depth; k += DEPTH)
      multiply_stage<DEPTH_BYTES>(consumer, thread, ring, k == 0, previous, accumulators);
    if (k < depth)
      multiply_stage<DEPTH_BYTES / 2>(consumer, thread, ring, k == 0, previous, accumulators);
    if (T::PINGPONG && thread == 0) mbarrier_arrive(shared.turn(consumer ^ 1));
    wgmma_wait<0>();
    if (thread < CLUSTER) mbarrier_arrive_at(shared.empty(previous), thread);
  }

  // Promotion: the tensor cores truncate FP8's sums, so that sums of one sign are too small, by 3 %
  // at K = 2048. Every PROMOTE stages they restart at 0, and the partial sums are added up in fp32.
  // The second consumer's first part is shorter: so the two never wait for their last products at
  // the same time, and the tensor cores always have work.
  DEVICE void multiply_promoted(int consumer, int thread, Ring<T::STAGES> &ring,
                                float (&sums)[T::BLOCKS][T::COLS / 2]) const {
    static_assert(!T::PINGPONG && T::BLOCKS == 1, "a turn is handed over once a tile");
    static_assert(Program::PROMOTE > 1, "its half is not a stage");
#pragma unroll
    for (int i = 0; i < T::COLS / 2; i++) sums[0][i] = 0;
    int depth = Program::PROMOTE / (1 + consumer) * DEPTH;
#pragma unroll 1
    for (int left = work.K; left > 0; left -= depth, depth = Program::PROMOTE * DEPTH) {
      float part[T::BLOCKS][T::COLS / 2];
      multiply(consumer, thread, ring, min(left, depth), part);
#pragma unroll
      for (int i = 0; i < T::COLS / 2; i++) sums[0][i] += part[0][i];
    }
  }

  // Of the cluster's tile i, in turn. The positions in all rings follow from i, which needs fewer
  // registers.
  DEVICE void compute_product(int consumer, int thread, uint32_t i,
                              float (&accumulators)[T::BLOCKS][T::COLS / 2]) const {
    if (T::PINGPONG && i > 0) mbarrier_wait(shared.turn(consumer), (i - 1) / 2 & 1);
    Ring<T::STAGES> ring(i * k_stages());
    if constexpr (Program::PROMOTE == 0)
      multiply(consumer, thread, ring, work.K, accumulators);
    else
      multiply_promoted(consumer, thread, ring, accumulators);
  }

  // Where tile i lies; asked for where it is needed, since registers are few.
  DEVICE void find_again(uint32_t i, int consumer, RowBlock &block) const {
    work.find_again(i, block.first_row, block.column_tile, block.matrix);
    if (!T::PINGPONG) block.first_row += consumer * T::CONSUMER_ROWS;
  }

  DEVICE void run_program(int consumer, uint32_t i_tile, const RowBlock &tile /* its first block */,
                          const float (&accumulators)[T::BLOCKS][T::COLS / 2]) const {
    using S = Steps<T, Program>;
    Ring<Shared<T, Program>::SLOTS> ring(i_tile / Work<T, Program>::TURNS * S::A_TILE);
    const Ring<Shared<T, Program>::RING> values_of(i_tile);
    const int lane = tile.thread & 31;
    const int first_row = T::PINGPONG ? 0 : consumer * T::CONSUMER_ROWS; // in the block's tile
    constexpr bool COLUMNS = Program::ColumnValues::COUNT > 0,
                   VALUES = Program::RowValues::COUNT > 0 || COLUMNS;
    // Positions are read again after each block; elsewhere that takes a register more.
    constexpr bool READS_AGAIN = T::DYNAMIC && T::COLS == 192;
    constexpr bool ARRIVE_EARLY =
        T::BLOCKS == 1 && takes_all_memory<Program> && !COLUMNS; // later takes a register too many
    if (VALUES) mbarrier_wait(shared.values_full(values_of.at), values_of.parity);
    float copy_scale = 1;
    if (Copies::WIDTH > 0 && tile.args.copies) copy_scale = __ldg(&tile.args.copies->scale);
#pragma unroll
    for (int b = 0; b < T::BLOCKS; b++) {
      RowBlock block = tile;
      block.first_row += b * 64;
      if (READS_AGAIN && b > 0)
        ring = Ring<Shared<T, Program>::SLOTS>(i_tile / Work<T, Program>::TURNS * S::A_TILE +
                                               b * S::A_BLOCK);
      TwoRows<Program> values = {};
#pragma unroll
      for (int v = 0; v < Program::RowValues::COUNT; v++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int row = v * T::ROWS + first_row + (int)(block.row(h) - tile.first_row);
          values.values[v][h] = shared_load(shared.row_values(values_of.at) + row * 4);
        }
      if (VALUES && ARRIVE_EARLY) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared.values_empty(values_of.at));
      }
      Program program;
#pragma unroll
      for (int i = 0; i < S::A_BLOCK; i++, ring.next()) {
        mbarrier_wait(shared.ready(consumer, ring.at), ring.parity);
        uint32_t slot = shared.slot(consumer, ring.at), columns = 0;
        // Otherwise the compiler keeps the addresses of all slots in registers.
        asm volatile("" : "+r"(slot));
        if constexpr (COLUMNS) { // and those of all steps' columns, and their values
          columns = shared.column_values(values_of.at) +
                    column_place<Program>(i * Program::COLUMNS + 2 * (lane & 3));
          asm volatile("" : "+r"(columns));
        }
        const Step<Program> step = {block,     accumulators[b] + i * (Program::COLUMNS / 2),
                                    values,    tile.column_tile * T::COLS + i * Program::COLUMNS,
                                    slot,      columns,
                                    copy_scale};
        if constexpr (Program::GROUP > 1)
          if (i * Program::COLUMNS % Program::GROUP == 0)
            group_values<Program, Program::GROUP>(step, values.group);
        program.step(step);
        fence_copy_engine();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared.done(consumer, ring.at));
      }
      if constexpr (READS_AGAIN) {
        find_again(i_tile, consumer, block);
        block.first_row += b * 64;
      }
      program.end(block);
      if constexpr (Copies::WIDTH > 0) program.largest_copied.store(block);
    }
    if (VALUES && !ARRIVE_EARLY && lane == 0) mbarrier_arrive(shared.values_empty(values_of.at));
  }

  DEVICE void consume(int consumer, const ProgramArgs &args) const {
    const int thread = threadIdx.x % 128;
    int row, column_tile, matrix;
#pragma unroll 1
    for (uint32_t i = T::PINGPONG ? consumer : 0; work.find(i, row, column_tile, matrix);
         i += work.TURNS) {
      float accumulators[T::BLOCKS][T::COLS / 2];
      compute_product(consumer, thread, i, accumulators);
      RowBlock tile = {args, thread, 0, 0, work.tiles_n, work.M, work.N, 0};
      find_again(i, consumer, tile);
      run_program(consumer, i, tile, accumulators);
    }
  }
};

// ---- The kernel

template <class Program> DEVICE uint32_t shared_base() {
  if constexpr (takes_all_memory<Program>) {
    extern __shared__ __align__(1024) uint8_t aligned_memory[];
    return shared_address(aligned_memory);
  } else {
    extern __shared__ uint8_t memory[];
    return (shared_address(memory) + 1023u) & ~1023u;
  }
}

template <class T, class Program, Major A_MAJOR, Major B_MAJOR>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    fused_kernel(const __grid_constant__ CUtensorMap map_a,
                 const __grid_constant__ CUtensorMap map_b,
                 const __grid_constant__ EpilogueOperands operands, int M, int N, int K) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const Shared<T, Program> shared = {shared_base<Program>()};
  if (threadIdx.x == 0) {
    shared.init_barriers();
    tensor_map_prefetch(&map_a);
    tensor_map_prefetch(&map_b);
  }
  cluster_sync();
  // From here on blocks of the next kernel may start to wait beside this kernel's running blocks,
  // and this kernel waits until its operands are written.
  later_kernel_launch();
  earlier_kernels_wait();

  // The same in all threads of a warpgroup; the shuffle tells the compiler. Each branch constructs
  // its own Work: one that is live across setmaxnreg is spilled in some programs.
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_shrink<T::PRODUCER_REGISTERS>();
    const Block<T, Program, A_MAJOR, B_MAJOR> block = {
        shared, Work<T, Program>(M, N, K, operands, shared.tickets())};
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
      block.load_operands(&map_a, &map_b);
    } else if (warp == 1) {
      if constexpr (Program::RowValues::COUNT > 0 || Program::ColumnValues::COUNT > 0)
        block.compute_values(operands.args);
    } else if (threadIdx.x == 64 || threadIdx.x == 96) {
      block.move_chunks(warp - 2, operands);
    }
    __syncwarp();
  } else {
    registers_grow<T::CONSUMER_REGISTERS>();
    const Block<T, Program, A_MAJOR, B_MAJOR> block = {
        shared, Work<T, Program>(M, N, K, operands, shared.tickets())};
    block.consume(warpgroup - 1, operands.args);
  }
  cluster_sync(); // no block ends while another may still write into its shared memory
#endif
}
