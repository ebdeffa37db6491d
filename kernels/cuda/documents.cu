// The bias of scores that keeps the documents of a window apart.
#include "kernels/cuda/common.cuh"

// -2^100 in bf16. Beside it a score is nothing, and e to its power is 0. It is finite: a row whose
// first keys are all of other documents has no infinite maximum, and so no NaN.
static const bf16_bits APART = 0xf180;

static __global__ void document_bias_kernel(int64_t T, const int32_t *first, bf16_bits *bias) {
  const int64_t row = blockIdx.x, own = first[row];
  for (int64_t key = threadIdx.x; key < T; key += blockDim.x)
    bias[row * T + key] = key < own ? APART : (bf16_bits)0;
}

void launch_document_bias(int64_t M, int64_t T, const int32_t *first, void *bias,
                          cudaStream_t stream) {
  document_bias_kernel<<<(unsigned)M, 256, 0, stream>>>(T, first, static_cast<bf16_bits *>(bias));
  LAUNCHED();
}
