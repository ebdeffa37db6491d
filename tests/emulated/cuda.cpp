// CUDA as far as the tests of programs call it, for machines without a GPU: memory is the host's,
// kernels are the functions of tests/emulated/kernels/fused/define.cuh, which run at the launch.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/fused/programs.h"

extern "C" {
#include "kernels/cuda/gpu.h"
}

#include "tests/emulated/kernels/fused/define.cuh"

// ---- A block's shared memory

namespace {
enum { MOST_BYTES = 100 << 10, MOST_THREADS = 128, MOST_GROUPS = 8 };

struct AsyncLoad {
  uint32_t to;
  const void *from;
  int bytes;
};

struct SharedMemory {
  uint8_t bytes[MOST_BYTES];
  size_t size;
  std::vector<AsyncLoad> loads[MOST_THREADS][MOST_GROUPS]; // the oldest group first
  int groups[MOST_THREADS];
};
SharedMemory shared;

void memory_begin(size_t size) {
  shared.size = size;
  memset(shared.bytes, 0xff, sizeof shared.bytes);
  for (int i = 0; i < MOST_THREADS; i++) {
    shared.groups[i] = 0;
    for (std::vector<AsyncLoad> &group : shared.loads[i]) group.clear();
  }
}
} // namespace

uint8_t *shared_bytes(uint32_t address, int count) {
  if (address % (uint32_t)count || address + (size_t)count > shared.size) {
    fprintf(stderr, "a kernel uses %d bytes of shared memory at %u; it has %zu\n", count,
            (unsigned)address, shared.size);
    abort();
  }
  return shared.bytes + address;
}
void async_load(uint32_t to, const void *from, int bytes) {
  const int thread = block_thread();
  shared.loads[thread][shared.groups[thread]].push_back({to, from, bytes});
}
void async_commit() {
  if (++shared.groups[block_thread()] == MOST_GROUPS) abort();
}
void async_wait_for(int left) {
  const int thread = block_thread();
  std::vector<AsyncLoad> *groups = shared.loads[thread];
  for (; shared.groups[thread] > left; shared.groups[thread]--) {
    for (const AsyncLoad &load : groups[0]) {
      uint8_t *to = shared_bytes(load.to, 16);
      memset(to, 0, 16);
      if (load.bytes > 0) memcpy(to, load.from, (size_t)load.bytes);
    }
    groups[0].clear();
    for (int i = 0; i < shared.groups[thread]; i++) groups[i].swap(groups[i + 1]);
  }
}

namespace {
// A capture counts launches and runs none.
struct Capture {
  bool open;
  size_t launches;
};
Capture capture;

CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const int bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2;
  const unsigned atom = box[0] * bytes;
  if ((uintptr_t)data % 16 || strides[0] % 16 || (rank == 3 && strides[1] % 16) ||
      dims[0] > UINT32_MAX || dims[1] > UINT32_MAX ||
      swizzle != (atom == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                  : atom == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                               : CU_TENSOR_MAP_SWIZZLE_32B))
    return CUDA_ERROR_INVALID_VALUE;
  const EmulatedMap m = {data,
                         bytes,
                         (int64_t)dims[1],
                         (int64_t)dims[0],
                         (int64_t)strides[0] / bytes,
                         box[1],
                         box[0],
                         rank == 3 ? (int64_t)strides[1] / bytes : 0};
  memset(map, 0, sizeof *map);
  memcpy(map, &m, sizeof m);
  return CUDA_SUCCESS;
}
} // namespace

extern "C" {

int gpu_open(Gpu *, Error *) {
  return 0;
}

int gpu_probe(Gpu *gpu, Error *) {
  memset(gpu, 0, sizeof *gpu);
  snprintf(gpu->name, sizeof gpu->name, "programs on the CPU, no GPU");
  gpu->major = 9;
  gpu->compiled_for = 90;
  gpu->sm_count = 132;
  return 0;
}
void gpu_close(Gpu *) {}

cudaError_t cudaMalloc(void **memory, size_t bytes) {
  *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *memory) {
  free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
  memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t) {
  return "an error of the emulation";
}
const char *cudaGetErrorName(cudaError_t) {
  return "error";
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) {
  return cudaSuccess;
}
// Of mma.sync's kernels.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, const void *) {
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *kernel, dim3 blocks, dim3 threads, void **p, size_t bytes,
                             cudaStream_t) {
  if (capture.open) {
    capture.launches++;
    return cudaSuccess;
  }
  const ProgramCall &call = *(const ProgramCall *)p[0];
  for (blockIdx.x = 0; blockIdx.x < blocks.x; blockIdx.x++) {
    memory_begin(bytes);
    block_run((int)threads.x, [&](int) { ((void (*)(ProgramCall))kernel)(call); });
  }
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *,
                                           const cudaLaunchConfig_t *) {
  *clusters = 66;
  return cudaSuccess;
}
static cudaError_t driver_entry(void **entry, cudaDriverEntryPointQueryResult *found) {
  *entry = (void *)encode;
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **entry, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *found) {
  return driver_entry(entry, found);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char *, void **entry, unsigned long long,
                                    cudaDriverEntryPointQueryResult *found) {
  return driver_entry(entry, found);
}
#endif
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **p) {
  if (config->gridDim.x == 0 || config->gridDim.x % CLUSTER) return cudaErrorInvalidConfiguration;
  if (capture.open) {
    capture.launches++;
    return cudaSuccess;
  }
  ((void (*)(const CUtensorMap &, const CUtensorMap &, const EpilogueOperands &, int, int,
             int))kernel)(*(CUtensorMap *)p[0], *(CUtensorMap *)p[1], *(EpilogueOperands *)p[2],
                          *(int *)p[3], *(int *)p[4], *(int *)p[5]);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  capture = {true, 0};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph) {
  capture.open = false;
  *graph = NULL;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t *nodes, size_t *count) {
  if (nodes) *nodes = NULL;
  *count = capture.launches;
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t, cudaGraphNodeType *type) {
  *type = cudaGraphNodeTypeKernel;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) {
  return cudaSuccess;
}
}
