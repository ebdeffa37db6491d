// The resources and the schedule of a block of the mainloop: tile shapes, shared memory with its
// barriers, rings, and the order of tiles and steps.
#pragma once
#include "kernels/fused/bases.cuh"
#include "kernels/fused/tickets.h"

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

// Shared memory, at a multiple of 1024: the stages, both consumers' slots, the row values of
// two tiles, the barriers.
template <class T, class Program> struct Shared {
  static constexpr int STORE_BYTES = Program::Stores::BYTES + Program::Copies::BYTES;
  static constexpr int SLOT_BYTES =
      Program::Loads::BYTES > STORE_BYTES ? Program::Loads::BYTES : STORE_BYTES;
  static constexpr int A_ROW_VALUES = Program::RowValues::COUNT * T::ROWS * 4; // of a tile

  // Aligned memory needs no padding, so that a second slot fits; but it costs a register, which
  // some programs do not have.
  static constexpr int SLACK = takes_all_memory<Program> ? 0 : 1024;
  static constexpr int BARRIERS = 2 * T::STAGES + 2 + 4 + 4 * MAX_SLOTS;
  static constexpr int TICKET_BYTES = T::DYNAMIC ? TICKETS * TICKET : 0;
  static constexpr int FIXED =
      T::STAGES * T::STAGE_BYTES + 2 * A_ROW_VALUES + BARRIERS * 8 + TICKET_BYTES + SLACK;
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
    return base + T::STAGES * T::STAGE_BYTES + 2 * SLOTS * SLOT_BYTES + i * A_ROW_VALUES;
  }
  DEVICE uint32_t barrier(int i) const {
    return row_values(2) + i * 8;
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
  DEVICE uint32_t row_full(int i) const {
    return barrier(2 * T::STAGES + 2 + i);
  }
  DEVICE uint32_t row_empty(int i) const {
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
      mbarrier_init(row_full(i), 32);
      mbarrier_init(row_empty(i), T::PINGPONG ? 4 : 8);
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
