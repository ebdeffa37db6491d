// Newton-Schulz' iteration for Muon (kernels/cuda/muon.h), of a batch of matrices:
//     gram        A = f^2 X X^T             gram_tall    A = f^2 X^T X     f: 1 / |u| of the matrix
//     polynomial  c S T + a L               polynomial_sum   c S T + a L + b M
//     apply       Q X + a X                 apply_tall   X Q + a X
// S, T and the symmetric L, M are polynomials of one A, so they commute, and the results are
// symmetric, too. Multiples of the identity are factors here and in no array: in bf16 they would
// round away what lies beside them.
//   args.params c, a, b
//   gram: args.factors f   stores[0] A [batch, M, M]
//   polynomials: loads[0] L, loads[1] M, stores[0] [batch, M, M]
//   apply: loads[0] X, stores[0] [batch, M, N]
#include "kernels/fused/define.cuh"

template <class Program> struct OfBatch : Pairs<Program> { static constexpr bool BATCHED = true; };
template <class Program> struct Symmetric : OfBatch<Program> {
  static constexpr bool SYMMETRIC = true;
  using Stores = Chunks<64, 64>;
};

template <GemmForm FORM_> struct Gram : Symmetric<Gram<FORM_>> {
  static constexpr GemmForm FORM = FORM_;
  template <class S> DEVICE uint32_t pair(const S &s, int, float2 v) const {
    const float f = s.batch_factor(), both = f * f;
    return bf16_two(both * v.x, both * v.y);
  }
};

enum { OF_PRODUCT, OF_FIRST, OF_SECOND }; // params

// of_product v + of_first x, and + of_second y.
template <class S> DEVICE float2 weighted(const S &s, float2 v, uint32_t x) {
  const float c = s.block.args.params[OF_PRODUCT].f, a = s.block.args.params[OF_FIRST].f;
  return {fmaf(c, v.x, a * bf16_low(x)), fmaf(c, v.y, a * bf16_high(x))};
}

struct Polynomial : Symmetric<Polynomial> {
  using Loads = Chunks<64>;
  template <class S> DEVICE uint32_t pair(const S &s, int, float2 v, uint32_t x) const {
    const float2 sum = weighted(s, v, x);
    return bf16_two(sum.x, sum.y);
  }
};

struct PolynomialSum : Symmetric<PolynomialSum> {
  static constexpr bool FITS_192 = false; // it spills
  using Loads = Chunks<64, 64>;
  template <class S> DEVICE uint32_t pair(const S &s, int, float2 v, uint32_t x, uint32_t y) const {
    const float2 sum = weighted(s, v, x);
    const float b = s.block.args.params[OF_SECOND].f;
    return bf16_two(fmaf(b, bf16_low(y), sum.x), fmaf(b, bf16_high(y), sum.y));
  }
};

template <GemmForm FORM_> struct Apply : OfBatch<Apply<FORM_>> {
  static constexpr GemmForm FORM = FORM_;
  using Loads = Chunks<64>;
  template <class S> DEVICE uint32_t pair(const S &s, int, float2 v, uint32_t x) const {
    const float a = s.block.args.params[OF_FIRST].f;
    return bf16_two(fmaf(a, bf16_low(x), v.x), fmaf(a, bf16_high(x), v.y));
  }
};

DEFINE_PROGRAM(Gram<GEMM_NT>, gram)
DEFINE_PROGRAM(Gram<GEMM_TN>, gram_tall)
DEFINE_PROGRAM(Polynomial, polynomial)
DEFINE_PROGRAM(PolynomialSum, polynomial_sum)
DEFINE_PROGRAM(Apply<GEMM_NN>, apply)
DEFINE_PROGRAM(Apply<GEMM_NT>, apply_tall)
