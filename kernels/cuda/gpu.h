// The GPU a run uses: opened once before anything is allocated, closed last.
#pragma once
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

typedef struct Gpu {
  int device;
  char name[256];   // "NVIDIA H200"
  char choice[512]; // where there are several: "first of 2 GPUs, then NVIDIA T400 (...)"
  int major, minor; // compute capability
  // What the kernels that it runs were compiled for, 80 = 8.0: earlier than its own where the
  // driver compiles PTX.
  int compiled_for;
  int sm_count;
  size_t memory_bytes; // of the card
  size_t used_before;  // of them, when the GPU was opened: the context, other programs
  size_t l2_bytes;
  int driver, runtime;          // CUDA versions, 13000 = 13.0
  size_t cublaslt;              // cuBLASLt's version, 130200 = 13.2.0
  double peak_flops;            // dense bf16 FLOP/s, see peak.h
  cudaStream_t stream;          // everything of a step runs on it, in order
  struct cublasLtContext *blas; // a cublasLtHandle_t
  void *workspace; // cuBLASLt's scratch, shared by all plans: they run one after the other
  size_t workspace_bytes;
} Gpu;

// What the current device is, without opening anything on it: the fields up to stream. Fails as
// gpu_open does.
int gpu_probe(Gpu *gpu, Error *err);
// The current device: CUDA's first, which is the fastest, unless CUDA_VISIBLE_DEVICES chooses.
// Fails with what to install or change when there is none, when it is older than compute capability
// 8.0, or when this program has no kernels for it.
int gpu_open(Gpu *gpu, Error *err);
void gpu_close(Gpu *gpu);

// Memory of the GPU, NULL when there is not enough: what that means is the caller's to say.
void *gpu_alloc(size_t bytes);
// Bytes of the card's memory that are in use beyond those at its opening, by the driver's count:
// other programs' are counted, too.
size_t gpu_memory_taken(const Gpu *gpu);
