// Checking CUDA calls. While things are set up a failure is reported as an Error (the
// _TRY forms, which return -1 from the function they stand in). Inside a step there is nobody to
// recover: the GPU's state is lost, so the _CHECK forms print one sentence and end the program.
// Checkpoints are whole at any moment, also in a save.
#pragma once
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/error.h"

static inline void cuda_check(cudaError_t status, const char *call, const char *file, int line) {
  if (status == cudaSuccess) return;
  fprintf(stderr,
          "the GPU failed: %s (%s, in %s, %s:%d); a run can go on from its last checkpoint with "
          "train.resume=auto\n",
          cudaGetErrorString(status), cudaGetErrorName(status), call, file, line);
  exit(EXIT_FAILURE);
}

// The same for what is reported as an Error also inside a step.
static inline void error_check(int status, const Error *err) {
  if (status == 0) return;
  fprintf(stderr, "%s\n", err->text);
  exit(EXIT_FAILURE);
}

#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)

// err: Error *
#define CUDA_TRY(err, call)                                                                        \
  do {                                                                                             \
    const cudaError_t status_ = (call);                                                            \
    if (status_ != cudaSuccess)                                                                    \
      return error_set(err, "%s failed on the GPU: %s (%s)", #call, cudaGetErrorString(status_),   \
                       cudaGetErrorName(status_));                                                 \
  } while (0)
