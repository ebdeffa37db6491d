// The epilogue that only rounds and stores.
#pragma once
#include "kernels/fused/epilogue.cuh"

struct Plain : ProgramDefaults {
  using Stores = Chunks<64>;
  template <class S> __device__ __forceinline__ void step(const S &s) const {
    uint32_t out[16];
#pragma unroll
    for (int i = 0; i < 16; i++) out[i] = bf16_two(s.product(i).x, s.product(i).y);
    s.template store<0>(out);
  }
};
