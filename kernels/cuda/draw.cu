// Random weights, drawn directly in device memory. Compiled without fused multiply-adds
// (kernels.mk), so that they have the host's bits.
#include "base/rng.h"
#include "kernels/cuda/common.cuh"

enum { DRAW_THREADS = 256 };
static constexpr int64_t MOST_BLOCKS = 1 << 16;

// A block draws one row at a time, so that the row's place is read from the host once.
template <typename Master>
static __global__ void draw_kernel(Master *to, const int32_t *places, int64_t first, int64_t rows,
                                   int64_t cols, uint64_t key, double deviation) {
  for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
    Master *row = to + places[n] * cols;
    const int64_t index = (first + n) * cols;
    for (int64_t k = threadIdx.x; k < cols; k += DRAW_THREADS) {
      const float value = (float)(deviation * rng_normal(key, (uint64_t)(index + k)));
      if constexpr (sizeof(Master) == sizeof(float))
        row[k] = value;
      else
        row[k] = bf16_from_float(moment_round(value, MOMENT_NEAREST));
    }
  }
}

void launch_draw(master_t *to, bool bf16, const int32_t *places, int64_t first, int64_t rows,
                 int64_t cols, uint64_t key, double deviation, cudaStream_t stream) {
  const unsigned blocks = (unsigned)(rows < MOST_BLOCKS ? rows : MOST_BLOCKS);
  if (bf16)
    draw_kernel<<<blocks, DRAW_THREADS, 0, stream>>>((bf16_bits *)to, places, first, rows, cols,
                                                     key, deviation);
  else
    draw_kernel<<<blocks, DRAW_THREADS, 0, stream>>>((float *)to, places, first, rows, cols, key,
                                                     deviation);
  LAUNCHED();
}

const void *cuda_any_kernel(void) {
  return (const void *)draw_kernel<float>;
}
