// The bare product of A [K, M] and B [K, N], rounded to bf16: wgrad's, dW = dz^T x.
//   stores[0] [M, N]
#include "kernels/fused/define.cuh"
#include "kernels/fused/plain.cuh"

struct PlainTn : Plain {
  static constexpr GemmForm FORM = GEMM_TN;
};
DEFINE_PROGRAM(PlainTn, plain_tn)
