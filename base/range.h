// Named ranges on a profiler's time line, by NVTX: Nsight Systems, Nsight Compute and others have
// it load their library. Without a profiler, or built where NVTX's headers (they come with CUDA)
// are not there, a range does nothing.
#pragma once
#include <stdint.h>

// Ranges nest: a range ends with the range_pop that belongs to its push, on the same thread.
void range_push(const char *name);
void range_push_number(const char *name, int64_t number); // "layer 3"
void range_pop(void);
