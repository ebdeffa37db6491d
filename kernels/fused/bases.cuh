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

// ---- FP8: A B^T of e4m3 operands, and copies of what is made

// Pairs whose Stores have FP8 copies, of the values as stored. Their largest goes to args.copies.
// COPY_ROW_VALUE names the row value that a row's copies are multiplied by, if any does: such a
// tensor has no other scale.
template <class Program> struct CopiedPairs : ProgramDefaults {
  static constexpr GemmFormats FORMATS = GEMM_E4M3;
  static constexpr int COPY_ROW_VALUE = -1;
  static constexpr bool ALIGNED = true;
  using Stores = Chunks<64>;
  using Copies = CopyChunks<64>;
  Largest largest;

  template <class S> DEVICE void step(const S &s) {
    Program &program = static_cast<Program &>(*this);
    constexpr int LOADS = Program::Loads::COUNT;
    uint32_t b[16]; // the second load makes room for copies
    if constexpr (LOADS > 1) {
      s.template load<1>(b);
      s.loads_done();
    }
#pragma unroll
    for (int first = 0; first < 16; first += 8) {
      uint32_t words[4];
#pragma unroll
      for (int i = first; i < first + 8; i += 4) {
        uint32_t a[4];
        float2 copied[4];
        if constexpr (LOADS > 0) s.template load<0>(a, i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
          if constexpr (LOADS == 0) a[j] = program.pair(s, i + j, s.product(i + j));
          if constexpr (LOADS == 1) a[j] = program.pair(s, i + j, s.product(i + j), a[j]);
          if constexpr (LOADS == 2) a[j] = program.pair(s, i + j, s.product(i + j), a[j], b[i + j]);
          copied[j] = copied_pair(s, j, a[j]);
        }
        s.template store<0>(a, i);
        e4m3_of_pairs(copied, words + (i - first) / 2);
      }
      s.store_copies(words, 4 * first);
    }
  }
  DEVICE void end(const RowBlock &block) const {
    largest.store(block);
  }

private:
  template <class S> DEVICE float2 copied_pair(const S &s, int i, uint32_t pair) {
    float2 v = {bf16_low(pair), bf16_high(pair)};
    if constexpr (Program::COPY_ROW_VALUE >= 0) {
      const float q = s.row_value(i, Program::COPY_ROW_VALUE);
      v = {v.x * q, v.y * q};
    }
    largest.add(v.x), largest.add(v.y);
    if constexpr (Program::COPY_ROW_VALUE >= 0) return v;
    return {v.x * s.copy_scale, v.y * s.copy_scale};
  }
};

// Gated in FP8: z as there, of y the copies alone.
//   args.in[0], inverse_D, eps, a, b, row_scale of A   stores[0] z [M, N]   copies of y [M, N / 2]
template <class Program> struct CopiedGated : ProgramDefaults {
  static constexpr GemmFormats FORMATS = GEMM_E4M3;
  using Stores = Chunks<64>;
  using Copies = CopyChunks<32>;
  using RowValues = ScaledRstd;
  Largest largest;

  template <class S> DEVICE void step(const S &s) {
    uint32_t words[4];
#pragma unroll
    for (int first = 0; first < 16; first += 8) { // 16 columns of y
      float2 copied[4];
#pragma unroll
      for (int i = first; i < first + 8; i += 4) {
        uint32_t z[4];
        float y[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float2 v = s.product(i + j);
          z[j] = bf16_two(v.x * s.row_value(j), v.y * s.row_value(j));
          y[j] = Program::activation(bf16_low(z[j]), bf16_high(z[j]));
          largest.add(y[j]);
        }
        s.template store<0>(z, i);
#pragma unroll
        for (int h = 0; h < 2; h++)
          copied[(i - first) / 2 + h] = {y[h] * s.copy_scale, y[2 + h] * s.copy_scale};
      }
      e4m3_of_pairs(copied, words + first / 4);
    }
    s.store_copies(words, 0);
  }
  DEVICE void end(const RowBlock &block) const {
    largest.store(block);
  }
};

// GatedBackward in FP8: of dz'' = (r / q) dz the copies alone, which take the place of z in the
// slot; s = the row sums of dz'' z. For two features at a time Program::slopes(gate, up, of_gate,
// of_up) gives the derivatives: dz is dy times them. Products of gate, up and dy stay in fp32:
// outliers of SwiGLU, which grow late in training, take them beyond fp16.
//   args.in[0], inverse_D, eps, a, b, row_scale of the forward's A, copies, out[0] s
//   loads[0] z [M, 2 N]   copies of dz'' [M, 2 N]
template <class Program> struct CopiedGatedBackward : ProgramDefaults {
  static constexpr GemmFormats FORMATS = GEMM_E4M3;
  static constexpr bool FITS_192 = false;
  static constexpr int COLUMNS = 32; // of dy: 64 of z
  using Loads = Chunks<64>;
  using Copies = CopyChunks<64>;
  using RowValues = CopiedRstd;
  RowSum sums; // this and `largest` are of dz'' times the copies' scale, until the end
  Largest largest;

  template <class S> DEVICE void step(const S &s) {
    uint32_t z[16];
    s.template load<0>(z);
    s.loads_done();
#pragma unroll
    for (int first = 0; first < 16; first += 8) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; i++) { // two features, in row h: pairs 4 j + h and 4 j + 2 + h
        const int h = i % 2, at = first + i / 2 * 4 + h;
        const float2 dy = s.product(first / 2 + i);
        words[i] =
            two_features({dy.x * s.row_value(h), dy.y * s.row_value(h)}, z[at], z[at + 2], h);
      }
      s.store_copies(words, 4 * first);
    }
  }
  DEVICE void end(const RowBlock &block) {
    const float inverse = 1 / copies_scale(block.args);
    sums.multiply(inverse);
    largest.value *= inverse;
    sums.store(block, block.args.out[0]);
    largest.store(block);
  }

private:
  DEVICE uint32_t two_features(float2 dy, uint32_t first, uint32_t second, int h) {
    const float2 gate = {bf16_low(first), bf16_low(second)},
                 up = {bf16_high(first), bf16_high(second)};
    float2 of_gate, of_up;
    Program::slopes(gate, up, of_gate, of_up);
    return e4m3_four(count(dy.x * of_gate.x, gate.x, h), count(dy.x * of_up.x, up.x, h),
                     count(dy.y * of_gate.y, gate.y, h), count(dy.y * of_up.y, up.y, h));
  }
  // An element of dz'', and of z.
  DEVICE float count(float dz, float z, int h) {
    sums.add_product(h, dz, z);
    largest.add(dz);
    return dz;
  }
};

// Comes last in a program's file: compiles all tile shapes, and makes fused_program_NAME.
#define DEFINE_PROGRAM(Struct, name_)                                                              \
  extern "C" const Program fused_program_##name_;                                                  \
  const Program fused_program_##name_ = {                                                          \
      #name_,                                                                                      \
      Struct::FORM,                                                                                \
      Struct::FORMATS,                                                                             \
      depth_of<Struct>(),                                                                          \
      Struct::COLUMNS,                                                                             \
      {Struct::Loads::width(0), Struct::Loads::width(1)},                                          \
      {Struct::Stores::width(0), Struct::Stores::width(1)},                                        \
      Struct::Copies::WIDTH,                                                                       \
      {program_kernel<Tile128x256, Struct>(), program_kernel<Tile128x192, Struct>(),               \
       program_kernel<Tile128x128, Struct>(), sync_program_kernel<Struct>()}};
