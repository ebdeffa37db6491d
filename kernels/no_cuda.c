// Stands in for the GPU backends in a build without CUDA.
#include "kernels/gpu_backends.h"

int gpu_usable(size_t *free_bytes, Error *err) {
  *free_bytes = 0;
  return error_set(
      err, "this build has no CUDA: install the CUDA toolkit (nvcc, cuBLASLt) and run make again");
}

Backend *backend_unfused_create(const OpsConfig *config, const UnfusedOptions *options,
                                Error *err) {
  (void)config;
  (void)options;
  size_t none;
  gpu_usable(&none, err);
  return NULL;
}
