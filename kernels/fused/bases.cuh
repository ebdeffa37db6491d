// Bases for programs. Each owns the loop over a step's pairs, their loads and stores, the FP8
// copies of the result, and the unrolling; a program gives the formula of one pair. In: Bf16 or
// E4m3.
#pragma once
#include <cuda_fp16.h>
#include <type_traits>
#include "kernels/fused/epilogue.cuh"

// The FP8 copies of a step's pairs, which are put in their order.
template <class Program> struct CopiesOut {
  Largest &largest;
  float2 values[4]; // times the copies' scale
  uint32_t words[4];

  DEVICE explicit CopiesOut(Largest &of) : largest(of) {}
  template <class S> DEVICE void put(const S &s, int i, float2 v) {
    constexpr int SCALE = Program::COPY_SCALE;
    if constexpr (SCALE >= 0) v = {v.x * s.row_value(i, SCALE), v.y * s.row_value(i, SCALE)};
    if (Program::KEEPS_ZERO || s.row_inside(i)) largest.add(v.x), largest.add(v.y);
    if constexpr (SCALE == Program::BY_SCALING) v = {v.x * s.copy_scale, v.y * s.copy_scale};
    values[i % 4] = v;
    if (i % 4 < 3) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const bool kept = Program::KEEPS_ZERO || s.row_inside(h);
      const uint32_t word = e4m3_four(values[h].x, values[h].y, values[2 + h].x, values[2 + h].y);
      words[i % 8 / 4 * 2 + h] = kept ? word : 0;
    }
    if (i % 8 == 7) s.store_copies(words, 4 * (i - 7));
  }
};

// Programs that treat all pairs alike. Program gives `pair(s, i, v)`, which computes the result of
// pair i from the product's v; s is the step. With Loads of one or two tiles it is pair(s, i, v, a)
// or pair(s, i, v, a, b), with the loaded pairs at the same place. It returns
//     uint32_t   packed bf16, which is stored, and whose stored values are copied
//     uint2      two such: x goes to stores[0], y to stores[1], and y is copied
//     float2     values that are only copied: Stores = Chunks<>
//     StoredAndCopied   packed bf16 that is only stored, and values that are only copied
// TOGETHER pairs (4, 8 or 16) are computed at once: fewer need fewer registers. After each such
// group `stored` gets the values that were written to stores[0], for statistics that process many
// pairs at a time.
struct StoredAndCopied {
  uint32_t stored;
  float2 copied;
};
template <class Program, class In = Bf16, int TOGETHER = 4> struct Pairs : ProgramDefaults<In> {
  using Stores = Chunks<64>;

  template <class S> DEVICE void step(const S &s) {
    Program &program = static_cast<Program &>(*this);
    constexpr int LOADS = Program::Loads::COUNT, STORES = Program::Stores::COUNT;
    constexpr bool COPIES = Program::Copies::WIDTH > 0;
    // Copies follow the stored chunks in the slot, and overwrite loads that lie there.
    constexpr bool FIRST_AHEAD = COPIES && LOADS > 0 && STORES == 0,
                   SECOND_AHEAD = COPIES && LOADS > 1 && STORES < 2;
    uint32_t a[16], b[16];
    if constexpr (FIRST_AHEAD) s.template load<0>(a);
    if constexpr (SECOND_AHEAD) s.template load<1>(b);
    if constexpr (FIRST_AHEAD || SECOND_AHEAD) s.loads_done();
    CopiesOut<Program> copies(this->largest_copied);
#pragma unroll
    for (int first = 0; first < 16; first += TOGETHER) {
      uint32_t x[TOGETHER], y[TOGETHER];
      if constexpr (LOADS > 0 && !FIRST_AHEAD) s.template load<0>(x, first);
      if constexpr (LOADS > 1 && !SECOND_AHEAD) s.template load<1>(y, first);
#pragma unroll
      for (int j = 0; j < TOGETHER; j++) {
        const int i = first + j;
        if constexpr (FIRST_AHEAD) x[j] = a[i];
        if constexpr (SECOND_AHEAD) y[j] = b[i];
        if constexpr (LOADS == 0) made(s, i, program.pair(s, i, s.product(i)), x[j], y[j], copies);
        if constexpr (LOADS == 1)
          made(s, i, program.pair(s, i, s.product(i), x[j]), x[j], y[j], copies);
        if constexpr (LOADS == 2)
          made(s, i, program.pair(s, i, s.product(i), x[j], y[j]), x[j], y[j], copies);
      }
      if constexpr (STORES > 0) s.template store<0>(x, first);
      if constexpr (Program::SYMMETRIC)
        s.store_mirror(x, first);
      else if constexpr (STORES > 1)
        s.template store<1>(y, first);
      program.stored(x);
    }
  }
  DEVICE void stored(const uint32_t (&)[TOGETHER]) {}

private:
  template <class S, class Copies>
  static DEVICE void made(const S &s, int i, uint32_t v, uint32_t &x, uint32_t &, Copies &copies) {
    x = v;
    if constexpr (Program::Copies::WIDTH > 0) copies.put(s, i, {bf16_low(v), bf16_high(v)});
  }
  template <class S, class Copies>
  static DEVICE void made(const S &s, int i, uint2 v, uint32_t &x, uint32_t &y, Copies &copies) {
    x = v.x, y = v.y;
    if constexpr (Program::Copies::WIDTH > 0) copies.put(s, i, {bf16_low(y), bf16_high(y)});
  }
  template <class S, class Copies>
  static DEVICE void made(const S &s, int i, float2 v, uint32_t &, uint32_t &, Copies &copies) {
    static_assert(Program::Stores::COUNT == 0, "what is stored is packed bf16");
    copies.put(s, i, v);
  }
  template <class S, class Copies>
  static DEVICE void made(const S &s, int i, const StoredAndCopied &v, uint32_t &x, uint32_t &,
                          Copies &copies) {
    x = v.stored;
    copies.put(s, i, v.copied);
  }
};

// Programs that rotate pairs of columns by the position of their row: arXiv 2104.09864. `pair` gets
// the pair's angle as a load, for `angle_of`.
//   args.params: row m is at position ROPE_FIRST + m % ROPE_PERIOD; columns below ROPE_ROTATED are
//   heads of ROPE_HEAD_DIM
//   loads[0] cosines and sines of pairs as fp16, [positions, columns]: row p holds, at columns c
//   and c + 1, those of position p and of the pair at c % head_dim. A step reads 64 x 64 of it, so
//   rows up to first + period + 62 and columns up to head_dim + 63 are read; values beyond those
//   may be arbitrary.
template <class Program, class In = Bf16> struct Rotated : Pairs<Program, In> {
  using Loads = Chunks<64>;
  static DEVICE void load_position(const ProgramArgs &args, int, int &row, int &column) {
    row = args.params[ROPE_FIRST].i + row % args.params[ROPE_PERIOD].i;
    column = column % args.params[ROPE_HEAD_DIM].i;
  }

  template <class S> static DEVICE bool is_rotated(const S &s, int i) {
    return s.column(i) < s.block.args.params[ROPE_ROTATED].i;
  }
  // Its cosine and sine.
  static DEVICE float2 angle_of(uint32_t halves) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&halves));
  }
};

// Logits after RMSNorm, Program::logit(z) of z = r (A B^T), and of the values as stored, for each
// row and tile of columns, the largest and the sum of exp(value - largest): parts of the row's
// log-sum-exp.
//   args.in[0], inverse_D, eps   stores[0] logits [M, N]   args.out[0] parts of MaxSum
//   FP8: a, b, row_scale of A
template <class Program, class In = Bf16> struct Logits : Pairs<Program, In, 8> {
  using RowValues = Rstd<In>;
  RowSoftmax softmax;

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v) const {
    if (!s.inside(i)) return RowSoftmax::MINUS_INFINITIES;
    return bf16_two(Program::logit(v.x * s.row_value(i)), Program::logit(v.y * s.row_value(i)));
  }
  DEVICE void stored(const uint32_t (&logits)[8]) {
    softmax.add(logits);
  }
  DEVICE void end(const RowBlock &block) const {
    softmax.store(block, block.args.out[0]);
  }
};

// A gated activation after RMSNorm: z = r (A B^T), whose pairs are a feature's gate and up, and
// y = Program::activation(gate, up) of z before it is rounded. In FP8 y is only copied.
//   args.in[0], inverse_D, eps   stores[0] z [M, N]   stores[1] y [M, N / 2]
//   FP8: a, b, row_scale of A, copies of y [M, N / 2] in place of stores[1]; z is e4m3
//   (kernels/formats.h), two of it an element of stores[0]
template <class Program, class In = Bf16> struct Gated : ProgramDefaults<In> {
  using Stores = Chunks<In::COPIES ? 32 : 64, In::COPIES ? 0 : 32>;
  using Copies = typename In::template Copies<32>;
  using RowValues = Rstd<In>;

  // 16 columns of z at a time. By the order of features in a group of 8 pairs (pair_of_feature), a
  // thread's values in two neighbouring blocks of 8 columns are the features of one pair of y.
  template <class S> DEVICE void step(const S &s) {
    uint32_t z[4], y[4];
    CopiesOut<Program> copies(this->largest_copied);
#pragma unroll
    for (int first = 0; first < 16; first += 4) {
      float2 kept[4];
      float features[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float2 v = s.product(first + j);
        const float gate = v.x * s.row_value(j), up = v.y * s.row_value(j);
        kept[j] = {gate / Z_DIVISOR, up / Z_DIVISOR};
        if constexpr (!In::COPIES) z[j] = bf16_two(gate, up);
        features[j] = Program::activation(gate, up);
      }
      if constexpr (In::COPIES) {
        e4m3_of_pairs(kept, &z[first / 2 % 4]);
        if (first % 8 == 4) s.template store<0>(z, first / 2 - 2);
      } else {
        s.template store<0>(z, first);
      }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int i = first / 2 + h; // of y
        if constexpr (In::COPIES)
          copies.put(s, i, {features[h], features[2 + h]});
        else
          y[i % 4] = bf16_two(features[h], features[2 + h]);
      }
      if constexpr (!In::COPIES)
        if (first % 8 == 4) s.template store<1>(y, first / 2 - 2);
    }
  }
};

// r of the rows of the forward's A, with In's scales and the copies': products with it are values
// of the copies.
template <class In> struct RstdOfCopies : Rstd<In> {
  static DEVICE void compute(const ProgramArgs &args, int row, int M, FourRows (&values)[1]) {
    Rstd<In>::compute(args, row, M, values);
    if constexpr (In::COPIES)
#pragma unroll
      for (int i = 0; i < 4; i++) values[0][i] *= copies_scale(args);
  }
};

// The backward of Gated on top of a dgrad: dy = A B, and for each pair of z (dgate, dup) =
// Program::gradient(gate, up, dy), multiplied by r; s = the row sums of dz' z. In FP8 dz'' = dz' /
// q is only copied. TOGETHER pairs (4, 8 or 16) of z are computed at once: more pairs put more
// arithmetic in flight, and need more registers.
//   args.in[0], inverse_D, eps, out[0] s   loads[0] z [M, 2 N]   stores[0] dz' [M, 2 N], may be z
//   FP8: a, b, row_scale of the forward's A, z in e4m3 as Gated stores it, copies of dz'' [M, 2 N]
//   in place of stores[0]
template <class Program, class In = Bf16, int TOGETHER = 8>
struct GatedBackward : ProgramDefaults<In> {
  static constexpr GemmForm FORM = In::DGRAD;
  static constexpr int COLUMNS = 32; // of dy: 64 of z
  using Loads = Chunks<In::COPIES ? 32 : 64>;
  using Stores = Chunks<In::COPIES ? 0 : 64>;
  using Copies = typename In::template Copies<64>;
  using RowValues = RstdOfCopies<In>;
  RowSum
      sums; // in FP8 this and `largest_copied` are of dz'' times the copies' scale, until the end

  template <class S> DEVICE void step(const S &s) {
    if constexpr (In::COPIES)
      copy_step(s);
    else
      store_step(s);
  }
  DEVICE void end(const RowBlock &block) {
    if constexpr (In::COPIES) {
      const float inverse = 1 / copies_scale(block.args);
      sums.multiply(inverse);
      this->largest_copied.value *= inverse;
    }
    sums.store(block, block.args.out[0]);
  }
  // The gradients of two features. A program may compute copied gradients in fewer bits.
  static DEVICE void gradients(__half2 gate, __half2 up, float2 dy, float2 &dz0, float2 &dz1) {
    dz0 = Program::gradient(__low2float(gate), __low2float(up), dy.x);
    dz1 = Program::gradient(__high2float(gate), __high2float(up), dy.y);
  }

private:
  // Pair 4 J + 2 e + h of z is in row h of the thread's two and belongs, by the order of features
  // (pair_of_feature), to element e of pair 2 J + h of dy.
  template <class S> DEVICE void store_step(const S &s) {
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
  // Word i of z has the two features of pair i of dy, and its place is that of their gradients'
  // copies by row: so a warp overwrites what it has read itself. Rows past M are 0, since dy is.
  template <class S> DEVICE void copy_step(const S &s) {
    const __half2 divisor = __float2half2_rn(Z_DIVISOR);
#pragma unroll
    for (int first = 0; first < 8; first += 4) {
      uint32_t words[4];
      s.template load<0>(words, first);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const __half2 z0 = half2_of_e4m3((uint16_t)words[j]),
                      z1 = half2_of_e4m3((uint16_t)(words[j] >> 16));
        const __half2 gate = __hmul2(__lows2half2(z0, z1), divisor),
                      up = __hmul2(__highs2half2(z0, z1), divisor);
        const float2 both = s.product(first + j);
        float2 dz[2];
        Program::gradients(gate, up, {both.x * s.row_value(j), both.y * s.row_value(j)}, dz[0],
                           dz[1]);
        sums.add_product(j, dz[0].x, __low2float(gate));
        sums.add_product(j, dz[0].y, __low2float(up));
        sums.add_product(j, dz[1].x, __high2float(gate));
        sums.add_product(j, dz[1].y, __high2float(up));
#pragma unroll
        for (int e = 0; e < 2; e++)
          this->largest_copied.add(dz[e].x), this->largest_copied.add(dz[e].y);
        words[j] = e4m3_four(dz[0].x, dz[0].y, dz[1].x, dz[1].y);
      }
      s.store_copies(words, 8 * first);
    }
  }
};

// Comes last in a program's file, once for each precision: compiles all tile shapes, and makes
// fused_program_NAME. The kernels have the name in theirs, for scripts/compile_fused.sh --show.
#define DEFINE_PROGRAM(Struct, name_)                                                              \
  struct program_##name_ : Struct {};                                                              \
  extern "C" const Program fused_program_##name_;                                                  \
  const Program fused_program_##name_ = {#name_,                                                   \
                                         Struct::FORM,                                             \
                                         Struct::FORMATS,                                          \
                                         depth_of<Struct>(),                                       \
                                         Struct::COLUMNS,                                          \
                                         {Struct::Loads::width(0), Struct::Loads::width(1)},       \
                                         {Struct::Stores::width(0), Struct::Stores::width(1)},     \
                                         Struct::Copies::WIDTH,                                    \
                                         Struct::BATCHED,                                          \
                                         Struct::SYMMETRIC,                                        \
                                         {program_kernel<Tile128x256, program_##name_>(),          \
                                          program_kernel<Tile128x192, program_##name_>(),          \
                                          program_kernel<Tile128x128, program_##name_>(),          \
                                          program_kernel<Tile128x64, program_##name_>(),           \
                                          sync_program_kernel<program_##name_>()}};
