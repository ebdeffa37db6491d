// The table of angles as programs/rope.cu takes it: a tile of it goes with a tile of the product.
#include <cuda_fp16.h>
#include "kernels/cuda/gpu.h"
#include "kernels/fused/kernels.h"

static __global__ void rope_table_kernel(int64_t count, int d, int cols, int64_t period,
                                         const float *from, __half *to) {
  const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / cols;
  to[i] = __float2half_rn(from[row % period * d + (int)(i - row * cols) % d]);
}

void launch_rope_table(int64_t rows, int64_t d, int64_t period, const float *from, uint16_t *to,
                       cudaStream_t stream) {
  const int64_t cols = rope_table_cols(d), count = rows * cols;
  rope_table_kernel<<<(unsigned)((count + 255) / 256), 256, 0, stream>>>(
      count, (int)d, (int)cols, period, from, (__half *)to);
  CUDA_CHECK(cudaGetLastError());
}
