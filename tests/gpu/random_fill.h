// Random data of any size for benchmarks: the clock that a GPU holds depends on the data.
#pragma once
#include <stddef.h>
#include "kernels/cuda/gpu.h"

// Fills device memory with copies of a pattern from the host.
static inline void fill_with_copies(char *memory, size_t bytes, const void *pattern,
                                    size_t pattern_bytes) {
  size_t done = bytes < pattern_bytes ? bytes : pattern_bytes;
  CUDA_CHECK(cudaMemcpy(memory, pattern, done, cudaMemcpyHostToDevice));
  while (done < bytes) {
    const size_t next = bytes - done < done ? bytes - done : done;
    CUDA_CHECK(cudaMemcpy(memory + done, memory, next, cudaMemcpyDeviceToDevice));
    done += next;
  }
}
