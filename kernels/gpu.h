// The GPU as the rest of the program sees it. Where the build has no CUDA, kernels/no_cuda.c stands
// in for these functions and says so.
#pragma once
#include "base/error.h"
#include "kernels/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

// By its data sheet; 0: not known.
typedef struct GpuRates {
  double bf16, fp8; // dense FLOP/s with sums in fp32
  double memory;    // bytes/s
} GpuRates;

typedef struct Gpu {
  int device;
  char name[256];  // "NVIDIA H200"
  char choice[64]; // where there are several GPUs: "first of 2 GPUs (CUDA_VISIBLE_DEVICES chooses)"
  int major, minor; // compute capability
  // The compute capability that its kernels were compiled for, 80 = 8.0: lower than the GPU's own
  // where the driver compiles PTX.
  int compiled_for;
  Mainloop mainloop; // what MAINLOOP_AUTO is on it
  int sm_count;
  // A run derives its plan from memory_bytes, so that the plan is the same when the run is resumed;
  // the plan fits if it fits into free_bytes.
  size_t memory_bytes; // of the card, within memory_limit
  size_t free_bytes;   // of these, when it was found
  size_t used_before;  // and in use when it was opened: the context, other programs
  int driver, runtime; // CUDA versions, 13000 = 13.0
  size_t cublaslt;     // cuBLASLt's version, 130200 = 13.2.0; gpu_find and gpu_open read it
  GpuRates rates;
  // While it is open
  struct CUstream_st *stream;   // a cudaStream_t: all work of a step runs on it, in order
  struct CublasLt *lt;          // cuBLASLt's functions
  struct cublasLtContext *blas; // a cublasLtHandle_t
  void *workspace; // cuBLASLt's scratch, shared by all plans: they run one after the other
  size_t workspace_bytes;
} Gpu;

// The GPU that a backend can use, with all that it needs: CUDA's first, which is the fastest,
// unless CUDA_VISIBLE_DEVICES chooses. -1 and the missing part in err where there is none.
// Allocates no memory on the GPU but the driver's own.
int gpu_find(Gpu *gpu, Error *err);

// What a data sheet says of the card with this name, compute capability and number of
// multiprocessors. Nothing is derived from other cards: zeros where there is no data sheet.
GpuRates gpu_rates(const Gpu *gpu);

// A card that is not in this machine, for plans: "RTX 3060", "a100 80gb", in any order of the words
// that the driver's name for it has, or a memory alone, "12GB", which says nothing of its speed.
// GPU_TAKEN_BYTES of its memory are the driver's and a screen's.
enum { GPU_TAKEN_BYTES = 1 << 30 };
int gpu_named(Gpu *gpu, const char *text, Error *err);

// Whether it multiplies in FP8.
static inline bool gpu_has_fp8(const Gpu *gpu) {
  return gpu->major * 10 + gpu->minor >= 89;
}

// How attention stops at documents' ends: by a bias of the scores where cuDNN 9.19 has no backward
// of documents with lengths of their own. For compute capability 12 it has none, for 9 alone a
// deterministic one. For 8 it has one, but cudnn-frontend takes that from 9.18.1 on alone, and only
// with other statistics than on 9.
static inline bool gpu_biases_documents(const Gpu *gpu, int64_t d, bool deterministic) {
  return gpu->major != 9 &&
         !(gpu->major == 10 && !deterministic && !documents_need_deterministic(d));
}

// Whether fused kernels are faster: on Hopper by wgmma, and on GPUs where cuBLASLt, too, multiplies
// by mma.sync. Compute capability 10 and 11 have tensor cores that cuBLASLt makes three times as
// fast use of.
static inline bool gpu_fuses(const Gpu *gpu) {
  return gpu->mainloop == MAINLOOP_WGMMA || gpu->major == 8 || gpu->major == 12;
}

// The backend that spec->kernels asks for, on the GPU that gpu_find found; with KERNELS_AUTO the
// unfused one where the fused kernels cannot run or are slower, and then its description says why.
// NULL and a message on failure: an unsupported head size, no memory.
Backend *backend_gpu_create(const Spec *spec, const Gpu *gpu, Error *err);

// 0 if the fused kernels run with this model, else -1 and why not.
int backend_fused_supported(const Spec *spec, Error *err);

// Of a fused backend: from now on these operations run on programs, and no others. A model that was
// created on it before is no longer valid. -1: no memory.
int backend_fuse(Backend *be, OperationSet operations, Error *err);

// What was found out about this GPU at an earlier start, in the file that keeps the times of
// products; cache: as Spec.gemm_cache. recall returns fresh memory, NULL where nothing is known.
char *gpu_recall(const Gpu *gpu, const char *cache, const char *question);
void gpu_remember(const Gpu *gpu, const char *cache, const char *question, const char *answer);

#ifdef __cplusplus
}
#endif
