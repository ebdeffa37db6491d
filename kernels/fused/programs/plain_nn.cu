// The bare product of A [M, K] and B [K, N], rounded to bf16: dgrad's, da = dy W.
//   stores[0] [M, N]
#include "kernels/fused/define.cuh"
#include "kernels/fused/plain.cuh"

struct PlainNn : Plain {
  static constexpr GemmForm FORM = GEMM_NN;
};
DEFINE_PROGRAM(PlainNn, plain_nn)
