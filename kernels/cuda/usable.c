#include "kernels/cuda/check.h"
#include "kernels/cuda/cudnn_api.h"
#include "kernels/cuda/gpu.h"
#include "kernels/gpu_backends.h"

int gpu_usable(size_t *memory_bytes, Error *err) {
  Gpu gpu;
  CudnnApi cudnn;
  size_t free_bytes;
  *memory_bytes = 0;
  if (gpu_probe(&gpu, err) != 0) return -1;
  CUDA_TRY(err, cudaMemGetInfo(&free_bytes, memory_bytes));
  return cudnn_open(&cudnn, err);
}
