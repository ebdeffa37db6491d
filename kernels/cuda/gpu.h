// The GPU a run uses, how CUDA's calls are checked, and how work on it is timed.
#pragma once
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "kernels/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Checking. While things are set up a failure is reported as an Error (the _TRY forms, which
// return -1 from the function they stand in). Inside a step no caller can recover: the GPU's state
// is lost, so the _CHECK forms print one sentence and end the program. Checkpoints are whole at any
// moment, also in a save. cublaslt.h has these forms for cuBLASLt, whose header has 18,000 lines
// that no kernel's file should have to read.

static inline void cuda_check(cudaError_t status, const char *call, const char *file, int line) {
  if (status == cudaSuccess) return;
  fprintf(stderr,
          "the GPU failed: %s (%s, in %s, %s:%d); resume the run from its last checkpoint with "
          "train.resume=auto\n",
          cudaGetErrorString(status), cudaGetErrorName(status), call, file, line);
  exit(EXIT_FAILURE);
}

// The same for functions that report an Error, where they are called inside a step.
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

// ---- The GPU: opened once before anything is allocated, closed last

// Reads the properties of the current device without opening anything on it. Fails with what to
// install or change when there is none, when it is older than compute capability 8.0, or when this
// program has no kernels for it.
int gpu_probe(Gpu *gpu, Error *err);
// Opens the device that gpu_probe found.
int gpu_open(Gpu *gpu, Error *err);
void gpu_close(Gpu *gpu);

// Bytes of the card's memory, all and free, by the driver's count within memory_limit.
int gpu_memory(size_t *free_bytes, size_t *all, Error *err);
// Allocates memory of the GPU, within memory_limit; NULL when there is not enough, and then the
// caller reports it.
void *gpu_alloc(size_t bytes);
// The same of the host's memory, pinned: kernels and copies use the address that the host has.
void *gpu_alloc_host(size_t bytes);
// Bytes of the card's memory that are in use beyond those at its opening, by the driver's count:
// other programs' are counted, too.
size_t gpu_memory_taken(const Gpu *gpu);

// ---- Timing of the candidates for a plan, and the data that they are timed on

enum { MAX_TIMED_RUNS = 8 };

// Launches; 0, or -1 and why not.
typedef int TimedCall(const void *context, Error *err);

// Sorts the times.
double median(double *times, int count);

// The median of `runs` calls, one behind the other after warm_up calls, in milliseconds. Fails
// where a call does.
int time_calls(TimedCall *call, const void *context, int warm_up, int runs, cudaStream_t stream,
               double *milliseconds, Error *err);

// Fills device memory with random normal values, bf16, times scale: the clock that a GPU holds
// depends on the data, and on zeros it runs faster than on a model's.
void fill_random(void *to, size_t bytes, double scale, cudaStream_t stream);
// The same in e4m3, with a standard deviation of 1; read as e5m2 its values are finite, too.
void fill_random_fp8(void *to, size_t bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
