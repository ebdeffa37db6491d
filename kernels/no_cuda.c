// Stands in for the GPU backends in a build without CUDA.
#include "kernels/gpu_backends.h"

int gpu_usable(size_t *memory_bytes, Error *err) {
  *memory_bytes = 0;
  return error_set(
      err, "this build has no CUDA: install the CUDA toolkit (nvcc, cuBLASLt) and run make again");
}

static int no_gpu(Error *err) {
  size_t none;
  return gpu_usable(&none, err);
}

Backend *backend_unfused_create(const OpsConfig *config, const UnfusedOptions *options,
                                Error *err) {
  (void)config;
  (void)options;
  no_gpu(err);
  return NULL;
}

Backend *backend_fused_create(const OpsConfig *config, const UnfusedOptions *options, Error *err) {
  (void)config;
  (void)options;
  no_gpu(err);
  return NULL;
}

int backend_fused_supported(const OpsConfig *config, Error *err) {
  (void)config;
  return no_gpu(err);
}
