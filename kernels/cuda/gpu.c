#include "kernels/cuda/gpu.h"

#include <string.h>

#include "kernels/cuda/check.h"
#include "kernels/cuda/check_cublaslt.h"

// cuBLAS' documentation asks for 32 MiB on Hopper; more changed none of our shapes.
enum { WORKSPACE_BYTES = 32 << 20 };

// Dense bf16 FLOPs of one multiprocessor and clock with fp32 accumulation, from the data sheets:
// A100 312 TFLOP/s / (108 x 1.41 GHz), H100 SXM 989.5 / (132 x 1.83), B200 2250 / (148 x 1.86).
// The 8.6 and 8.9 families ship with this rate halved on some cards and not on others, so they are
// left unknown.
static double peak_flops(const Gpu *gpu, int clock_khz) {
  if (strstr(gpu->name, "H100") || strstr(gpu->name, "H200"))
    return 4096.0 * gpu->sm_count * 1.83e9;
  const double clock = clock_khz * 1e3;
  if (gpu->major == 8 && gpu->minor == 0) return 2048.0 * gpu->sm_count * clock;
  if (gpu->major == 9) return 4096.0 * gpu->sm_count * clock;
  if (gpu->major == 10) return 8192.0 * gpu->sm_count * clock;
  return 0;
}

static int read_properties(Gpu *gpu, Error *err) {
  struct cudaDeviceProp properties;
  int clock_khz = 0;
  CUDA_TRY(err, cudaGetDevice(&gpu->device));
  CUDA_TRY(err, cudaGetDeviceProperties(&properties, gpu->device));
  CUDA_TRY(err, cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, gpu->device));
  CUDA_TRY(err, cudaDriverGetVersion(&gpu->driver));
  CUDA_TRY(err, cudaRuntimeGetVersion(&gpu->runtime));
  memcpy(gpu->name, properties.name, sizeof gpu->name);
  _Static_assert(sizeof gpu->name == sizeof properties.name, "the same field");
  gpu->major = properties.major;
  gpu->minor = properties.minor;
  gpu->sm_count = properties.multiProcessorCount;
  gpu->memory_bytes = properties.totalGlobalMem;
  gpu->l2_bytes = (size_t)properties.l2CacheSize;
  gpu->cublaslt = cublasLtGetVersion();
  gpu->peak_flops = peak_flops(gpu, clock_khz);
  if (gpu->major < 8)
    return error_set(
        err,
        "the GPU (%s) has compute capability %d.%d, but bf16 needs 8.0 or later (A100, RTX 30 and "
        "newer)",
        gpu->name, gpu->major, gpu->minor);
  return 0;
}

int gpu_probe(Gpu *gpu, Error *err) {
  memset(gpu, 0, sizeof *gpu);
  int count = 0, driver = 0;
  CUDA_TRY(err, cudaDriverGetVersion(&driver)); // 0 without a driver, which is no failure
  if (driver == 0) return error_set(err, "no NVIDIA driver was found: install one");
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver)
    return error_set(err,
                     "the NVIDIA driver supports CUDA %d.%d, but this program was built with CUDA "
                     "%d.%d: update the driver",
                     driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                     CUDART_VERSION % 1000 / 10);
  if (status != cudaSuccess || count == 0)
    return error_set(err, "no NVIDIA GPU was found (%s)",
                     status == cudaSuccess ? "the driver lists none" : cudaGetErrorString(status));
  return read_properties(gpu, err);
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
