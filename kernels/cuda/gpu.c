#include "kernels/cuda/gpu.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/kernels.h"
#include "kernels/formats.h"

// cuBLAS' documentation asks for 32 MiB on Hopper; more changed none of our shapes.
enum { WORKSPACE_BYTES = 32 << 20 };

// ---- The GPU

static int read_properties(Gpu *gpu, Error *err) {
  struct cudaDeviceProp properties;
  CUDA_TRY(err, cudaGetDeviceProperties(&properties, gpu->device));
  CUDA_TRY(err, cudaRuntimeGetVersion(&gpu->runtime));
  memcpy(gpu->name, properties.name, sizeof gpu->name);
  _Static_assert(sizeof gpu->name == sizeof properties.name, "the same field");
  gpu->major = properties.major;
  gpu->minor = properties.minor;
  gpu->sm_count = properties.multiProcessorCount;
  size_t limit;
  if (memory_limit(&limit, err) != 0) return -1;
  gpu->memory_bytes = properties.totalGlobalMem < limit ? properties.totalGlobalMem : limit;
  gpu->rates = gpu_rates(gpu);
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

// 0 if a run can use this GPU, else -1 and why not.
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
  if (read_properties(gpu, err)) return -1;
  if (count > 1)
    snprintf(gpu->choice, sizeof gpu->choice, "first of %d GPUs (CUDA_VISIBLE_DEVICES chooses)",
             count);
  if (check_gpu(gpu, err) == 0) return 0;
  if (gpu->choice[0]) error_append(err, "; it is the %s", gpu->choice);
  return -1;
}

int gpu_open(Gpu *gpu, Error *err) {
  CUDA_TRY(err, cudaStreamCreateWithFlags(&gpu->stream, cudaStreamNonBlocking));
  gpu->lt = xcalloc(1, sizeof *gpu->lt);
  if (cublaslt_open(gpu->lt, CUBLASLT_LIBRARY, err) != 0) return -1;
  gpu->cublaslt = gpu->lt->GetVersion();
  CUBLAS_TRY(gpu->lt, err, gpu->lt->Create(&gpu->blas));
  gpu->used_before = gpu_memory_taken(gpu);
  gpu->workspace_bytes = WORKSPACE_BYTES;
  gpu->workspace = gpu_alloc(gpu->workspace_bytes);
  if (gpu->workspace) return 0;
  return error_set(err, "the GPU has no %s left for cuBLASLt's workspace",
                   size_text(gpu->workspace_bytes).text);
}

void gpu_close(Gpu *gpu) {
  if (gpu->stream) CUDA_CHECK(cudaStreamSynchronize(gpu->stream));
  if (gpu->workspace) CUDA_CHECK(cudaFree(gpu->workspace));
  if (gpu->blas) CUBLAS_CHECK(gpu->lt, gpu->lt->Destroy(gpu->blas));
  free(gpu->lt);
  if (gpu->stream) CUDA_CHECK(cudaStreamDestroy(gpu->stream));
  memset(gpu, 0, sizeof *gpu);
}

int gpu_memory(size_t *free_bytes, size_t *all, Error *err) {
  size_t limit;
  CUDA_TRY(err, cudaMemGetInfo(free_bytes, all));
  if (memory_limit(&limit, err) != 0) return -1;
  if (*all <= limit) return 0;
  const size_t beyond = *all - limit;
  *all = limit;
  *free_bytes = *free_bytes > beyond ? *free_bytes - beyond : 0;
  return 0;
}

void *gpu_alloc(size_t bytes) {
  size_t limit, left = bytes, all;
  Error ignored; // gpu_probe has found a limit that is none
  void *memory = NULL;
  if (memory_limit(&limit, &ignored) == 0 && limit < SIZE_MAX &&
      gpu_memory(&left, &all, &ignored) == 0 && left < bytes)
    return NULL;
  if (cudaMalloc(&memory, bytes ? bytes : 1) == cudaSuccess) return memory;
  (void)cudaGetLastError(); // else the next check of a launch would find it
  return NULL;
}

void *gpu_alloc_host(size_t bytes) {
  void *memory = NULL;
  const unsigned flags = cudaHostAllocPortable | cudaHostAllocMapped;
  if (cudaHostAlloc(&memory, bytes ? bytes : 1, flags) == cudaSuccess) return memory;
  (void)cudaGetLastError();
  return NULL;
}

size_t gpu_memory_taken(const Gpu *gpu) {
  size_t free_bytes, total;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
  const size_t used = total - free_bytes;
  return used > gpu->used_before ? used - gpu->used_before : 0; // another program may have ended
}

// ---- Timing

static int compare_doubles(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

double median(double *times, int count) {
  qsort(times, (size_t)count, sizeof *times, compare_doubles);
  return times[count / 2];
}

int time_calls(TimedCall *call, const void *context, int warm_up, int runs, cudaStream_t stream,
               double *milliseconds, Error *err) {
  cudaEvent_t events[MAX_TIMED_RUNS + 1];
  double times[MAX_TIMED_RUNS] = {0};
  int status = 0;
  assert(runs <= MAX_TIMED_RUNS);
  for (int i = 0; i <= runs; i++) CUDA_CHECK(cudaEventCreate(&events[i]));
  for (int i = -warm_up; i < runs && status == 0; i++) {
    if (i <= 0) CUDA_CHECK(cudaEventRecord(events[0], stream)); // its last record counts
    status = call(context, err);
    if (i >= 0) CUDA_CHECK(cudaEventRecord(events[i + 1], stream));
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
  for (int i = 0; i < runs && status == 0; i++) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, events[i], events[i + 1]));
    times[i] = ms;
  }
  for (int i = 0; i <= runs; i++) CUDA_CHECK(cudaEventDestroy(events[i]));
  *milliseconds = median(times, runs);
  return status;
}

enum { PATTERN = (1 << 18) - 5 }; // a prime: in a matrix filled with copies no two rows are alike

// Copies of a pattern of PATTERN elements, which it frees.
static void fill(void *to, size_t bytes, void *pattern, size_t element_bytes, cudaStream_t stream) {
  size_t done = bytes < PATTERN * element_bytes ? bytes : PATTERN * element_bytes;
  CUDA_CHECK(cudaMemcpyAsync(to, pattern, done, cudaMemcpyHostToDevice, stream));
  while (done < bytes) { // each copy doubles what is filled
    const size_t more = bytes - done < done ? bytes - done : done;
    CUDA_CHECK(cudaMemcpyAsync((char *)to + done, to, more, cudaMemcpyDeviceToDevice, stream));
    done += more;
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
  free(pattern);
}

void fill_random(void *to, size_t bytes, double scale, cudaStream_t stream) {
  uint16_t *pattern = xmalloc(PATTERN * sizeof *pattern);
#pragma omp parallel for schedule(static)
  for (int i = 0; i < PATTERN; i++) {
    const float value = (float)(scale * rng_normal(1, (uint64_t)i));
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    pattern[i] = (uint16_t)(bits >> 16);
  }
  fill(to, bytes, pattern, sizeof *pattern, stream);
}

void fill_random_fp8(void *to, size_t bytes, cudaStream_t stream) {
  uint8_t *pattern = xmalloc(PATTERN);
#pragma omp parallel for schedule(static)
  for (int i = 0; i < PATTERN; i++)
    pattern[i] = fp8_bits(FP8_E4M3, (float)rng_normal(1, (uint64_t)i));
  fill(to, bytes, pattern, sizeof *pattern, stream);
}
