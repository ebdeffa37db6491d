// The GPU backends as the rest of the program sees them. Where the build has no CUDA,
// kernels/no_cuda.c stands in for them and says so.
#pragma once
#include "kernels/ops.h"

// 0 if there is a GPU that a backend can use, with all that it needs, and the bytes of its memory;
// else -1 and what is missing. Of the whole card, not of what is free just now: what a run derives
// from it has to be the same when it is resumed.
int gpu_usable(size_t *memory_bytes, Error *err);

// The backend that options->kernels asks for; with KERNELS_AUTO the unfused one where the fused
// kernels cannot run, and then its description says why. NULL and a sentence on failure: no GPU,
// too old a driver, no cuDNN, a head size it cannot do, no memory.
Backend *backend_gpu_create(const OpsConfig *config, const GpuOptions *options, Error *err);

// 0 if the fused kernels run on the current GPU and with this model, else -1 and why not.
int backend_fused_supported(const OpsConfig *config, Error *err);
