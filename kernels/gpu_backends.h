// The GPU backends as the rest of the program sees them. Where the build has no CUDA,
// kernels/no_cuda.c stands in for them and says so.
#pragma once
#include "kernels/fused/backend_fused.h"
#include "kernels/unfused/backend_unfused.h"

// 0 if there is a GPU that a backend can use, with all that it needs, and the bytes of its memory;
// else -1 and what is missing. Of the whole card, not of what is free just now: what a run derives
// from it has to be the same when it is resumed.
int gpu_usable(size_t *memory_bytes, Error *err);
