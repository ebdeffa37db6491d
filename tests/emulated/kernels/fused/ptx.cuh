// What kernels/fused/ptx.cuh is to the GPU, for the programs and mma.sync's mainloop on a CPU: the
// same functions over a block's shared memory, without wgmma and the copy engine. Loads by cp.async
// arrive as late as they may.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include "kernels/formats.h"
#include "kernels/fused/program.h"

#define DEVICE inline

// In tests/emulated/cuda.cpp.
uint8_t *shared_bytes(uint32_t address, int count);
void async_load(uint32_t to, const void *from, int bytes);
void async_commit();
void async_wait_for(int groups);
template <int GROUPS> DEVICE void async_wait() {
  async_wait_for(GROUPS);
}

static DEVICE uint32_t shared_address(const void *) {
  return 0;
}
static DEVICE uint4 shared_load_unit(uint32_t from) {
  uint4 v;
  memcpy(&v, shared_bytes(from, sizeof v), sizeof v);
  return v;
}
static DEVICE float shared_load(uint32_t from) {
  float v;
  memcpy(&v, shared_bytes(from, sizeof v), sizeof v);
  return v;
}
static DEVICE float2 shared_load_two(uint32_t from) {
  return {shared_load(from), shared_load(from + 4)};
}
static DEVICE void shared_store(uint32_t to, float v) {
  memcpy(shared_bytes(to, sizeof v), &v, sizeof v);
}
static DEVICE void warpgroup_sync() {
  block_sync();
}

// ---- 8x8 matrices of 16-bit elements. Lane 8 i + r gives the address of row r of matrix i.

// The elements of matrix i that lane l has: 2 (l % 4) and the next of row l / 4; across, elements
// l / 4 of the rows 2 (l % 4) and the next.
template <bool ACROSS, class Move> void each_element(uint32_t address, Move move) {
  const Given *all = warp_exchange({{address}});
  const int lane = block_thread() & 31;
  for (int i = 0; i < 4; i++)
    for (int e = 0; e < 2; e++) {
      const int major = lane / 4, minor = lane % 4 * 2 + e;
      const uint32_t row = all[8 * i + (ACROSS ? minor : major)].words[0];
      move(i, e, shared_bytes(row + 2 * (ACROSS ? major : minor), 2));
    }
}
template <bool ACROSS> void load_elements(uint32_t from, uint32_t *four) {
  uint16_t halves[4][2];
  each_element<ACROSS>(from, [&](int i, int e, uint8_t *at) { memcpy(&halves[i][e], at, 2); });
  memcpy(four, halves, sizeof halves);
}
template <bool ACROSS> void store_elements(uint32_t to, const uint32_t *four) {
  uint16_t halves[4][2];
  memcpy(halves, four, sizeof halves);
  each_element<ACROSS>(to, [&](int i, int e, uint8_t *at) { memcpy(at, &halves[i][e], 2); });
}
static DEVICE void load_matrices(uint32_t from, uint32_t *four) {
  load_elements<false>(from, four);
}
static DEVICE void load_matrices_across(uint32_t from, uint32_t *four) {
  load_elements<true>(from, four);
}
static DEVICE void store_matrices(uint32_t to, const uint32_t *four) {
  store_elements<false>(to, four);
}
static DEVICE void store_matrices_across(uint32_t to, const uint32_t *four) {
  store_elements<true>(to, four);
}

// ---- mma.sync: d[16, 8] += A[16, k] B[8, k]^T, k of 32 bytes. Lane l has of A the bytes 4 (l % 4)
// to + 3 of each 16 of K in the rows l / 4 and l / 4 + 8, of B those of the row l / 4.
template <int BYTES, class Value>
void multiply_matrices(float *d, const uint32_t *a, const uint32_t *b, Value value) {
  const Given *all = warp_exchange({{a[0], a[1], a[2], a[3], b[0], b[1]}});
  const int lane = block_thread() & 31;
  for (int h = 0; h < 2; h++)
    for (int e = 0; e < 2; e++)
      for (int half = 0; half < 2; half++)
        for (int t = 0; t < 4; t++) {
          const uint32_t x = all[lane / 4 * 4 + t].words[h + 2 * half],
                         y = all[(lane % 4 * 2 + e) * 4 + t].words[4 + half];
          for (int i = 0; i < 4; i += BYTES)
            d[2 * h + e] = fmaf(value(x >> 8 * i), value(y >> 8 * i), d[2 * h + e]);
        }
}
struct E4m3Values {
  float of[256];
  E4m3Values() {
    for (int i = 0; i < 256; i++) of[i] = fp8_value(FP8_E4M3, (uint8_t)i);
  }
};
template <bool FP8> void mma_sync(float *d, const uint32_t *a, const uint32_t *b) {
  static const E4m3Values e4m3;
  if constexpr (FP8)
    multiply_matrices<1>(d, a, b, [](uint32_t bits) { return e4m3.of[bits & 0xff]; });
  else
    multiply_matrices<2>(d, a, b, [](uint32_t bits) { return __uint_as_float(bits << 16); });
}
