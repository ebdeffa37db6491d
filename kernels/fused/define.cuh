// Every program's file includes this: the bases, and the tile shapes for which it is compiled.
#pragma once
#include <type_traits>
#include "kernels/fused/mainloop.cuh"
#include "kernels/fused/mainloop_sync.cuh"

// The most stages beside which the epilogue's tiles fit.
using Tile128x256 = Tile<128, 256, 4, COOPERATIVE>;
using Tile128x192 = Tile<128, 192, 4, PING_PONG>;
using Tile128x128 = Tile<128, 128, 5, PING_PONG>;
using Tile128x64 = Tile<128, 64, 5, COOPERATIVE>;

template <class T, class P> ProgramKernel kernel_in() {
  constexpr Major A = P::FORM == GEMM_TN ? MAJOR_MN : MAJOR_K;
  constexpr Major B = P::FORM == GEMM_NT ? MAJOR_K : MAJOR_MN;
  return {(const void *)fused_kernel<T, P, A, B>,
          T::ROWS,
          T::COLS,
          T::STAGES,
          Shared<T, P>::SLOTS,
          Shared<T, P>::BYTES,
          T::PRODUCER_REGISTERS,
          T::CONSUMER_REGISTERS};
}

// Both warpgroups share a promoted program's tiles, so that one multiplies while the other adds up.
// Tiles of 64 columns are in fixed order: one has too few steps for the ring of tickets.
template <class Asked, class P> ProgramKernel program_kernel() {
  constexpr Schedule SCHEDULE = P::PROMOTE > 0 ? COOPERATIVE : Asked::SCHEDULE;
  constexpr bool DYNAMIC = !P::BATCHED && P::STATIC_COLS != Asked::COLS && Asked::COLS > 64;
  if constexpr (fits<P>(Asked::COLS))
    return kernel_in<Tile<Asked::ROWS, Asked::COLS, Asked::STAGES, SCHEDULE, DYNAMIC>, P>();
  return {};
}
