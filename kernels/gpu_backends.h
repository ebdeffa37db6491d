// The GPU backends as the rest of the program sees them. Where the build has no CUDA,
// kernels/no_cuda.c stands in for them and says so.
#pragma once
#include "kernels/ops.h"

// Options of a GPU backend besides OpsConfig.
typedef struct GpuOptions {
  KernelChoice kernels;
  Mainloop mainloop;
  bool train;         // false: forward only, no scratch of the backward
  bool accumulates;   // gradients of several micro-batches add up
  bool grads_fp32;    // gradients fp32 instead of bf16
  bool deterministic; // attention's backward gives the same bits every time, at a cost
  bool graphs;        // replay_begin captures launches in CUDA graphs
  // The run's micro-batch: attention and GEMMs of this shape are planned and timed at the start,
  // others when they first occur. With 0 all are planned when they first occur, and none is timed.
  int64_t batch, seq;
  int64_t loss_tokens; // rows of the logits at a time; divides batch x seq
  // As for gemm_open; NULL = the default path, whose folder also holds attention's choices.
  const char *gemm_cache;
} GpuOptions;

// Bytes of a GPU's memory. A run derives its plan from `all`, so that the plan is the same when the
// run is resumed; the plan fits if it fits into `free`.
typedef struct GpuMemory {
  size_t all, free;
  Mainloop mainloop; // what MAINLOOP_AUTO is on that GPU
} GpuMemory;

// How a batch of OpsConfig.usual_documents is cut into calls of attention. The deterministic
// backward's workspace holds the scores of a call: per_call H longest^2 bf16 numbers. A call
// takes at most as many documents as a batch has windows of the longest one's length, and so
// needs no more workspace than those windows would.
typedef struct DocumentCalls {
  int64_t per_call; // places for documents in a call
  int64_t longest;  // rows of the longest, in whole tiles of 128: with 1 row cuDNN's dq is NaN
  int64_t usual;    // calls of a usual batch; 0 where there are no documents
} DocumentCalls;
DocumentCalls document_calls(const OpsConfig *config, const GpuOptions *options);
// Whether documents with heads of d need the deterministic backward in any case: cuDNN 9.14 and
// 9.19 give a wrong dq in the plain form.
static inline bool documents_need_deterministic(int64_t d) {
  return d % 16 != 0;
}

// Element sizes and the most parts of row statistics, which are known without a GPU.
void backend_gpu_sizes(Backend *be, const OpsConfig *config, const GpuOptions *options);
// For memory plans: a backend of those sizes, with the parts of its workspace that grow with the
// run.
Backend backend_gpu_outline(const OpsConfig *config, const GpuOptions *options);

// 0 and the GPU's memory if there is a GPU that a backend can use, with all that it needs; else -1
// and the missing part in err. Allocates no memory on the GPU but the driver's own.
int gpu_usable(GpuMemory *memory, Error *err);

// Whether there is a GPU whose attention cannot stop at documents' ends (Services.set_documents).
bool gpu_lacks_documents(void);

// The backend that options->kernels asks for; with KERNELS_AUTO the unfused one where the fused
// kernels cannot run, and then its description says why. NULL and a sentence on failure: no GPU,
// too old a driver, no cuDNN, an unsupported head size, no memory.
Backend *backend_gpu_create(const OpsConfig *config, const GpuOptions *options, Error *err);

// 0 if the fused kernels run on the current GPU and with this model, else -1 and why not.
int backend_fused_supported(const OpsConfig *config, Error *err);
