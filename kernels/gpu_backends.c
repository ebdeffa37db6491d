#include "kernels/gpu_backends.h"

#include <stdio.h>
#include <string.h>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/fused/fused.h"
#include "kernels/unfused/unfused.h"

int gpu_usable(GpuMemory *memory, Error *err) {
  Gpu gpu;
  CudnnApi cudnn;
  *memory = (GpuMemory){0};
  if (gpu_probe(&gpu, err) || gpu_memory(&memory->free, &memory->all, err) ||
      fused_mainloop(MAINLOOP_AUTO, &gpu, &memory->mainloop, err))
    return -1;
  return cudnn_open(&cudnn, err);
}

bool gpu_lacks_documents(void) {
  Gpu gpu;
  Error none_is_there;
  return gpu_probe(&gpu, &none_is_there) == 0 && !gpu_attends_documents(&gpu);
}

Backend *backend_gpu_create(const OpsConfig *config, const GpuOptions *options, Error *err) {
  if (options->kernels == KERNELS_UNFUSED) return backend_unfused_create(config, options, err);
  Error why_not;
  if (backend_fused_supported(config, &why_not) == 0) {
    Backend *fused = backend_fused_create(config, options, &why_not);
    if (fused) return fused;
  }
  if (options->kernels == KERNELS_FUSED) {
    *err = why_not;
    error_prefix(err, "backend.kernels is \"fused\"");
    return NULL;
  }
  Backend *be = backend_unfused_create(config, options, err);
  if (!be) return NULL;
  const size_t used = strlen(be->description);
  snprintf(be->description + used, sizeof be->description - used, "; not fused, because %.300s",
           why_not.text);
  return be;
}
