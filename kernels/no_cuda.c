// Stands in for the GPU backends in a build without CUDA.
#include "kernels/gpu.h"

// What fails does so for the same reason, so the arguments are not read.
#pragma GCC diagnostic ignored "-Wunused-parameter"

int gpu_find(Gpu *gpu, Error *err) {
  return error_set(
      err, "this build has no CUDA: install the CUDA toolkit (nvcc, cuBLASLt) and run make again");
}

int backend_fused_supported(const Spec *spec, Error *err) {
  return gpu_find(NULL, err);
}

int backend_fuse(Backend *be, OperationSet operations, Error *err) {
  return gpu_find(NULL, err);
}

char *gpu_recall(const Gpu *gpu, const char *cache, const char *question) {
  return NULL;
}

void gpu_remember(const Gpu *gpu, const char *cache, const char *question, const char *answer) {}

Backend *backend_gpu_create(const Spec *spec, const Gpu *gpu, Error *err) {
  (void)gpu_find(NULL, err);
  return NULL;
}
