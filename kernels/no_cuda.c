// Stands in for the GPU backends in a build without CUDA.
#include "kernels/gpu_backends.h"

// What fails does so for the same reason, so the arguments are not read.
#pragma GCC diagnostic ignored "-Wunused-parameter"

int gpu_usable(GpuMemory *memory, Error *err) {
  *memory = (GpuMemory){0};
  return error_set(
      err, "this build has no CUDA: install the CUDA toolkit (nvcc, cuBLASLt) and run make again");
}

bool gpu_lacks_documents(void) {
  return false;
}

int backend_fused_supported(const OpsConfig *config, Error *err) {
  GpuMemory none;
  return gpu_usable(&none, err);
}

Backend *backend_gpu_create(const OpsConfig *config, const GpuOptions *options, Error *err) {
  (void)backend_fused_supported(config, err);
  return NULL;
}
