// The bare product, rounded to bf16: what a program without an epilogue costs. Of the forward's
// operands, dgrad's (da = dy W) and wgrad's (dW = dz^T x).
//   stores[0] [M, N]
#include "kernels/fused/define.cuh"

template <GemmForm WHICH> struct Plain : Pairs<Plain<WHICH>, Bf16, 16> {
  static constexpr GemmForm FORM = WHICH;
  template <class S> DEVICE uint32_t pair(const S &, int, float2 v) const {
    return bf16_two(v.x, v.y);
  }
};
DEFINE_PROGRAM(Plain<GEMM_NT>, plain_nt)
DEFINE_PROGRAM(Plain<GEMM_NN>, plain_nn)
DEFINE_PROGRAM(Plain<GEMM_TN>, plain_tn)
