// FP8 copies of a weight W [N, K], by_row [N, K] and by_col [K, stride], from one pass over it.
//
// A block of 8 warps has a tile of 128 x 128. A warp has 16 of its rows, a lane four neighbouring
// columns, of four rows at a time: 2q, 2q + 1, 2q + 8 and 2q + 9, whose values of a column are four
// neighbouring bytes of by_col (kernels/fp8.h). So both copies are made of words: those of by_row
// after an exchange between two lanes, since four columns are halves of two such words; those of
// by_col after a transposition of 4 x 4 bytes. They wait in shared memory until a column's 128
// bytes are together.
#pragma once
#include "kernels/cuda/common.cuh"

enum { WEIGHT_THREADS = 256 };

struct WeightTile {
  const DeviceTensor &t;
  uint32_t (*by_col)[WEIGHT_TILE / 4]; // [WEIGHT_TILE] in shared memory: words of columns
  int64_t row0;                        // of the tile
  int c0;
  int warp, lane;
  float scale;
  uint32_t largest; // bits of the largest |value|; NaN is larger than all

  __device__ __forceinline__ int column() const {
    return c0 + lane * 4;
  }
  // Row k (0 .. 3) of step q (0 .. 3).
  __device__ __forceinline__ int64_t row(int q, int k) const {
    return row0 + warp * 16 + 2 * q + k % 2 + k / 2 * 8;
  }
  __device__ __forceinline__ bool inside(int q, int k) const {
    return column() < t.cols && row(q, k) < t.rows;
  }

  __device__ __forceinline__ void count(float value) {
    largest = max(largest, __float_as_uint(fabsf(value)));
  }
  __device__ __forceinline__ uint32_t convert(const Pack<4> &p) {
    uint32_t two[2];
#pragma unroll
    for (int i = 0; i < 4; i++) count(p.v[i]);
#pragma unroll
    for (int i = 0; i < 2; i++) two[i] = e4m3_two(p.v[2 * i] * scale, p.v[2 * i + 1] * scale);
    return two[0] | two[1] << 16;
  }

  // Four columns of a row. The lane two on has those 8 on; they share two words of by_row, and each
  // stores one. By whole warps.
  __device__ __forceinline__ void store_row(int64_t row, bool inside, uint32_t four) const {
    const bool second = lane & 2;
    const uint32_t got = __shfl_xor_sync(0xffffffffu, second ? four : four >> 16, 2),
                   word = second ? __byte_perm(got, four, 0x7610) : __byte_perm(four, got, 0x5410);
    const int place = column() - lane % 4 * 4 + (lane % 2 * 2 + second) * 4;
    if (inside) *reinterpret_cast<uint32_t *>(t.by_row + row * t.cols + place) = word;
  }

  // Step q: the values of four columns in each of the four rows, 0 past the last.
  __device__ __forceinline__ void store(int q, const Pack<4> (&values)[4]) {
    uint32_t rows[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      rows[k] = convert(values[k]);
      store_row(row(q, k), inside(q, k), rows[k]);
    }
    const uint32_t a = __byte_perm(rows[0], rows[1], 0x5140),
                   b = __byte_perm(rows[2], rows[3], 0x5140),
                   c = __byte_perm(rows[0], rows[1], 0x7362),
                   d = __byte_perm(rows[2], rows[3], 0x7362);
    const int word = (warp * 4 + q) ^ lane; // no two lanes meet in a bank, here or in finish
    by_col[lane * 4][word] = __byte_perm(a, b, 0x5410);
    by_col[lane * 4 + 1][word] = __byte_perm(a, b, 0x7632);
    by_col[lane * 4 + 2][word] = __byte_perm(c, d, 0x5410);
    by_col[lane * 4 + 3][word] = __byte_perm(c, d, 0x7632);
  }

  // After all steps, by the whole block.
  __device__ __forceinline__ void finish() const {
    if (!t.by_col) return;
    __syncthreads();
    const int64_t row = row0 + lane * 4, end = (t.rows + FP8_GROUP - 1) / FP8_GROUP * FP8_GROUP;
    for (int c = warp; c < WEIGHT_TILE && c0 + c < t.cols; c += WEIGHT_THREADS / 32)
      if (row < end)
        *reinterpret_cast<uint32_t *>(t.by_col + (c0 + c) * t.stride + row) =
            by_col[c][lane ^ (c / 4)];
  }

  // In the tensor's scaling, by whole warps.
  __device__ __forceinline__ void report(int64_t block) const {
    const uint32_t most = __reduce_max_sync(0xffffffffu, largest);
    if (lane == 0) atomicMax(&t.scaling->maxima[(block * 8 + warp) % MAXIMA], most);
  }
};

// That of a block of the update's launch.
static __device__ __forceinline__ WeightTile weight_tile(const DeviceTensor &t, int64_t block,
                                                         uint32_t (*by_col)[WEIGHT_TILE / 4]) {
  const int64_t tile = block - t.first_update, across = (t.cols + WEIGHT_TILE - 1) / WEIGHT_TILE;
  return {t,
          by_col,
          tile / across * WEIGHT_TILE,
          (int)(tile % across) * WEIGHT_TILE,
          (int)threadIdx.x / 32,
          (int)threadIdx.x % 32,
          t.scaling->scale,
          0};
}
