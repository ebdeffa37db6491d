#include "kernels/cuda/gpu.h"

#include <stdio.h>
#include <string.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/check_cublaslt.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/peak.h"

// cuBLAS' documentation asks for 32 MiB on Hopper; more changed none of our shapes.
enum { WORKSPACE_BYTES = 32 << 20 };

// Fills in gpu->choice where there is one. Kinds that are like the one before are named once.
static int describe_choice(Gpu *gpu, int count, Error *err) {
  if (count < 2) return 0;
  struct cudaDeviceProp before, other;
  const char *lead = ", then ";
  size_t used = (size_t)snprintf(gpu->choice, sizeof gpu->choice, "first of %d GPUs", count);
  CUDA_TRY(err, cudaGetDeviceProperties(&before, 0));
  for (int i = 1; i < count && used + 160 < sizeof gpu->choice; i++, before = other) {
    CUDA_TRY(err, cudaGetDeviceProperties(&other, i));
    if (strcmp(other.name, before.name) == 0) continue;
    used += (size_t)snprintf(gpu->choice + used, sizeof gpu->choice - used, "%s%.80s", lead,
                             other.name);
    lead = ", ";
  }
  snprintf(gpu->choice + used, sizeof gpu->choice - used, " (CUDA_VISIBLE_DEVICES chooses)");
  return 0;
}

static int read_properties(Gpu *gpu, Error *err) {
  struct cudaDeviceProp properties;
  int clock_khz = 0;
  CUDA_TRY(err, cudaGetDeviceProperties(&properties, gpu->device));
  CUDA_TRY(err, cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, gpu->device));
  CUDA_TRY(err, cudaRuntimeGetVersion(&gpu->runtime));
  memcpy(gpu->name, properties.name, sizeof gpu->name);
  _Static_assert(sizeof gpu->name == sizeof properties.name, "the same field");
  gpu->major = properties.major;
  gpu->minor = properties.minor;
  gpu->sm_count = properties.multiProcessorCount;
  gpu->memory_bytes = properties.totalGlobalMem;
  gpu->l2_bytes = (size_t)properties.l2CacheSize;
  gpu->cublaslt = cublasLtGetVersion();
  gpu->peak_flops =
      gpu_peak_flops(gpu->name, gpu->major, gpu->minor, gpu->sm_count, clock_khz * 1e3);
  return 0;
}

static int find_code(Gpu *gpu, Error *err) {
  struct cudaFuncAttributes kernel;
  const cudaError_t status = cudaFuncGetAttributes(&kernel, cuda_any_kernel());
  if (status == cudaSuccess) {
    gpu->compiled_for = kernel.ptxVersion;
    return 0;
  }
  (void)cudaGetLastError(); // else the next check of a launch would find it
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorUnsupportedPtxVersion)
    return error_set(err,
                     "this program has no kernels for the GPU (%s, compute capability %d.%d): run "
                     "make all CUDA_ARCHS=%d%d",
                     gpu->name, gpu->major, gpu->minor, gpu->major, gpu->minor);
  return error_set(err, "the GPU (%s) cannot be used: %s", gpu->name, cudaGetErrorString(status));
}

// Whether a run can use it.
static int check_gpu(Gpu *gpu, Error *err) {
  if (gpu->major >= 8) return find_code(gpu, err);
  return error_set(
      err,
      "the GPU (%s) has compute capability %d.%d, but bf16 needs 8.0 or later (A100, RTX 30 and "
      "newer)",
      gpu->name, gpu->major, gpu->minor);
}

int gpu_probe(Gpu *gpu, Error *err) {
  memset(gpu, 0, sizeof *gpu);
  int count = 0;
  CUDA_TRY(err, cudaDriverGetVersion(&gpu->driver)); // 0 without a driver, which is no failure
  if (gpu->driver == 0)
    return error_set(err, "no NVIDIA driver was found: install one (a container needs --gpus all)");
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver)
    return error_set(err,
                     "the NVIDIA driver supports CUDA %d.%d, but this program was built with CUDA "
                     "%d.%d: update the driver",
                     gpu->driver / 1000, gpu->driver % 1000 / 10, CUDART_VERSION / 1000,
                     CUDART_VERSION % 1000 / 10);
  if (status != cudaSuccess || count == 0)
    return error_set(err, "no NVIDIA GPU was found (%s)",
                     status == cudaSuccess ? "the driver lists none" : cudaGetErrorString(status));
  CUDA_TRY(err, cudaGetDevice(&gpu->device));
  if (read_properties(gpu, err) || describe_choice(gpu, count, err)) return -1;
  if (check_gpu(gpu, err) == 0) return 0;
  if (gpu->choice[0]) error_append(err, "; it is the %s", gpu->choice);
  return -1;
}

int gpu_open(Gpu *gpu, Error *err) {
  if (gpu_probe(gpu, err)) return -1;
  CUDA_TRY(err, cudaStreamCreateWithFlags(&gpu->stream, cudaStreamNonBlocking));
  CUBLAS_TRY(err, cublasLtCreate(&gpu->blas));
  gpu->used_before = gpu_memory_taken(gpu);
  gpu->workspace_bytes = WORKSPACE_BYTES;
  CUDA_TRY(err, cudaMalloc(&gpu->workspace, gpu->workspace_bytes));
  return 0;
}

void gpu_close(Gpu *gpu) {
  if (gpu->stream) CUDA_CHECK(cudaStreamSynchronize(gpu->stream));
  if (gpu->workspace) CUDA_CHECK(cudaFree(gpu->workspace));
  if (gpu->blas) CUBLAS_CHECK(cublasLtDestroy(gpu->blas));
  if (gpu->stream) CUDA_CHECK(cudaStreamDestroy(gpu->stream));
  memset(gpu, 0, sizeof *gpu);
}

void *gpu_alloc(size_t bytes) {
  void *memory = NULL;
  if (cudaMalloc(&memory, bytes ? bytes : 1) == cudaSuccess) return memory;
  (void)cudaGetLastError(); // else the next check of a launch would find it
  return NULL;
}

size_t gpu_memory_taken(const Gpu *gpu) {
  size_t free_bytes, total;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
  const size_t used = total - free_bytes;
  return used > gpu->used_before ? used - gpu->used_before : 0; // another program may have ended
}
