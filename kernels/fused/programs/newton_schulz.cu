// Newton-Schulz' iteration for Muon (kernels/cuda/muon.h), of a batch of matrices:
//     gram        A = f^2 X X^T       gram_tall    A = f^2 X^T X      f: 1 / |u| of the matrix
//     polynomial  Z = a + b A + c A A
//     commuting   S T of symmetric matrices whose product is symmetric: all are polynomials of A
//     apply       Q X                 apply_tall   X Q
//   gram: args.factors f   stores[0] A [batch, M, M]
//   polynomial: loads[0] A, stores[0] Z [batch, M, M], params a b c
//   commuting: stores[0] [batch, M, M]
//   apply: stores[0] [batch, M, N]
#include "kernels/fused/define.cuh"

template <class Program> struct OfBatch : Pairs<Program> { static constexpr bool BATCHED = true; };
template <class Program> struct Symmetric : OfBatch<Program> {
  static constexpr bool SYMMETRIC = true;
  static constexpr bool FITS_192 = false, FITS_256 = false; // tiles are square
  using Stores = Chunks<64, 64>;
};

template <GemmForm FORM_> struct Gram : Symmetric<Gram<FORM_>> {
  static constexpr GemmForm FORM = FORM_;
  template <class S> DEVICE uint32_t pair(const S &s, int, float2 v) const {
    const float f = s.batch_factor(), both = f * f;
    return bf16_two(both * v.x, both * v.y);
  }
};

struct Polynomial : Symmetric<Polynomial> {
  using Loads = Chunks<64>;
  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t A) const {
    const float a = s.block.args.params[0].f, b = s.block.args.params[1].f,
                c = s.block.args.params[2].f;
    const int row = (int)s.block.row(i & 1), column = s.column(i);
    return bf16_two(fmaf(c, v.x, fmaf(b, bf16_low(A), row == column ? a : 0.0f)),
                    fmaf(c, v.y, fmaf(b, bf16_high(A), row == column + 1 ? a : 0.0f)));
  }
};

struct Commuting : Symmetric<Commuting> {
  template <class S> DEVICE uint32_t pair(const S &, int, float2 v) const {
    return bf16_two(v.x, v.y);
  }
};

template <GemmForm FORM_> struct Apply : OfBatch<Apply<FORM_>> {
  static constexpr GemmForm FORM = FORM_;
  template <class S> DEVICE uint32_t pair(const S &, int, float2 v) const {
    return bf16_two(v.x, v.y);
  }
};

DEFINE_PROGRAM(Gram<GEMM_NT>, gram)
DEFINE_PROGRAM(Gram<GEMM_TN>, gram_tall)
DEFINE_PROGRAM(Polynomial, polynomial)
DEFINE_PROGRAM(Commuting, commuting)
DEFINE_PROGRAM(Apply<GEMM_NN>, apply)
DEFINE_PROGRAM(Apply<GEMM_NT>, apply_tall)
