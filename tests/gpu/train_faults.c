// train with faults of the GPU, for tests/gpu/test_faults.sh: these stand before the real functions
// by the linker's --wrap (tests/tests.mk), which gives this program train's main, too.
#include <cuda_runtime_api.h>
#include <stdlib.h>

// The environment's number `name`, 0 where it is not set.
static long number(const char *name) {
  const char *text = getenv(name);
  return text ? strtol(text, NULL, 10) : 0;
}

void *__real_gpu_alloc(size_t bytes);
void *__real_gpu_alloc_host(size_t bytes);
cudaError_t __real_cudaEventSynchronize(cudaEvent_t event);

// Allocation FAIL_ALLOCATION of the process finds no memory.
void *__wrap_gpu_alloc(size_t bytes) {
  static long allocations;
  return ++allocations == number("FAIL_ALLOCATION") ? NULL : __real_gpu_alloc(bytes);
}

// With FAIL_HOST_ALLOCATION the system refuses pinned memory.
void *__wrap_gpu_alloc_host(size_t bytes) {
  return number("FAIL_HOST_ALLOCATION") ? NULL : __real_gpu_alloc_host(bytes);
}

// From wait LOSE_GPU on the GPU is lost: CUDA says so to every call from then on.
cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event) {
  static long waits;
  const long at = number("LOSE_GPU");
  if (at > 0 && ++waits >= at) return cudaErrorIllegalAddress;
  return __real_cudaEventSynchronize(event);
}
