// Bases for programs. Each owns the loop over a step's pairs, their loads and stores, and the
// unrolling; a program gives the formula of one pair.
#pragma once
#include "kernels/fused/epilogue.cuh"

// Programs that treat all pairs alike. Program gives `pair(s, i, v)`: what is stored for pair i,
// packed bf16, where the product has v; s is the step. With Loads of one or two tiles it is
// pair(s, i, v, a) or pair(s, i, v, a, b), with the loaded pairs at the same place.
// TOGETHER pairs (4, 8 or 16) are worked on at once: fewer need fewer registers. After each such
// group `stored` gets what was stored, for statistics that take many pairs at a time.
template <class Program, int TOGETHER = 4> struct Pairs : ProgramDefaults {
  using Stores = Chunks<64>;

  template <class S> DEVICE void step(const S &s) {
    Program &program = static_cast<Program &>(*this);
    constexpr int LOADS = Program::Loads::COUNT;
#pragma unroll
    for (int first = 0; first < 16; first += TOGETHER) {
      uint32_t a[TOGETHER], b[TOGETHER];
      if constexpr (LOADS > 0) s.template load<0>(a, first);
      if constexpr (LOADS > 1) s.template load<1>(b, first);
#pragma unroll
      for (int j = 0; j < TOGETHER; j++) {
        const int i = first + j;
        if constexpr (LOADS == 0) a[j] = program.pair(s, i, s.product(i));
        if constexpr (LOADS == 1) a[j] = program.pair(s, i, s.product(i), a[j]);
        if constexpr (LOADS == 2) a[j] = program.pair(s, i, s.product(i), a[j], b[j]);
      }
      s.template store<0>(a, first);
      program.stored(a);
    }
  }
  DEVICE void stored(const uint32_t (&)[TOGETHER]) {}
};

// A gated activation after RMSNorm: z = r (A B^T), whose pairs are a feature's gate and up, and
// y = Program::activation(gate, up) of z as stored.
//   args.in[0], inverse_D, eps   stores[0] z [M, N]   stores[1] y [M, N / 2]
template <class Program> struct Gated : ProgramDefaults {
  using Stores = Chunks<64, 32>;
  using RowValues = Rstd;

  // 16 columns of z at a time. By the order of features in a group of 8 pairs (pair_of_feature),
  // what a thread holds of two neighbouring blocks of 8 columns are the features of one pair of y.
  template <class S> DEVICE void step(const S &s) const {
    uint32_t y[4];
#pragma unroll
    for (int first = 0; first < 16; first += 4) {
      uint32_t z[4];
      float features[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 v = s.product(first + j);
        z[j] = bf16_two(v.x * s.row_value(j), v.y * s.row_value(j));
        features[j] = Program::activation(bf16_low(z[j]), bf16_high(z[j]));
      }
      s.template store<0>(z, first);
      y[first / 2 % 4] = bf16_two(features[0], features[2]);
      y[first / 2 % 4 + 1] = bf16_two(features[1], features[3]);
      if (first % 8 == 4) s.template store<1>(y, first / 2 - 2);
    }
  }
};

// Its backward on top of a dgrad: dy = A B, and for each pair of z (dgate, dup) =
// Program::gradient(gate, up, dy), multiplied by r; s = the row sums of dz' z.
// TOGETHER pairs (4, 8 or 16) of z at once: with more, more of the arithmetic is under way, and
// more registers are needed.
//   args.in[0], inverse_D, eps, out[0] s   loads[0] z [M, 2 N]   stores[0] dz' [M, 2 N], may be z
template <class Program, int TOGETHER = 8> struct GatedBackward : ProgramDefaults {
  static constexpr GemmForm FORM = GEMM_NN;
  static constexpr int COLUMNS = 32; // of dy: 64 of z
  using Loads = Chunks<64>;
  using Stores = Chunks<64>;
  using RowValues = Rstd;
  RowSum sums;

  // Pair 4 J + 2 e + h of z is in row h of the thread's two and belongs, by the order of features
  // (pair_of_feature), to element e of pair 2 J + h of dy.
  template <class S> DEVICE void step(const S &s) {
#pragma unroll
    for (int first = 0; first < 16; first += TOGETHER) {
      uint32_t z[TOGETHER];
      s.template load<0>(z, first);
#pragma unroll
      for (int j = 0; j < TOGETHER; j++) {
        const int h = j & 1, e = j >> 1 & 1;
        const float2 both = s.product((first + j) / 4 * 2 + h);
        const float gate = bf16_low(z[j]), up = bf16_high(z[j]);
        const float2 dz = Program::gradient(gate, up, s.row_value(h) * (e ? both.y : both.x));
        z[j] = bf16_two(dz.x, dz.y);
        sums.add_product(j, dz.x, gate);
        sums.add_product(j, dz.y, up);
      }
      s.template store<0>(z, first);
    }
  }
  DEVICE void end(const RowBlock &block) const {
    sums.store(block, block.args.out[0]);
  }
};

// Comes last in a program's file: compiles all tile shapes, and makes fused_program_NAME.
#define DEFINE_PROGRAM(Struct, name_)                                                              \
  extern "C" const Program fused_program_##name_;                                                  \
  const Program fused_program_##name_ = {#name_,                                                   \
                                         Struct::FORM,                                             \
                                         Struct::COLUMNS,                                          \
                                         {Struct::Loads::width(0), Struct::Loads::width(1)},       \
                                         {Struct::Stores::width(0), Struct::Stores::width(1)},     \
                                         {program_kernel<Tile128x256, Struct>(),                   \
                                          program_kernel<Tile128x192, Struct>(),                   \
                                          program_kernel<Tile128x128, Struct>()}};
