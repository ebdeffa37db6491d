// The GPU backends as the rest of the program sees them. Where the build has no CUDA,
// kernels/no_cuda.c stands in for them and says so.
#pragma once
#include "kernels/fused/backend_fused.h"
#include "kernels/unfused/backend_unfused.h"

// 0 if there is a GPU that a backend can use, with all that it needs, and the bytes of its memory
// that are free; else -1 and what is missing.
int gpu_usable(size_t *free_bytes, Error *err);
