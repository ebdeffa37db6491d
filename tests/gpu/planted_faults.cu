// A fault for each of compute-sanitizer's tools, so that tests/gpu/sanitize.sh can show that a tool
// would report one of ours. usage: planted_faults memcheck|racecheck|initcheck|synccheck
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 64, BYTES = THREADS * 4 };

// One element past the end.
__global__ void planted_memcheck_kernel(int *out) {
  out[threadIdx.x + 1] = (int)threadIdx.x;
}

// Reads what another warp may not have written yet.
__global__ void planted_racecheck_kernel(int *out) {
  __shared__ int values[THREADS];
  values[threadIdx.x] = (int)threadIdx.x;
  out[threadIdx.x] = values[THREADS - 1 - threadIdx.x];
}

// `in` has not been written.
__global__ void planted_initcheck_kernel(const int *in, int *out) {
  out[threadIdx.x] = in[threadIdx.x];
}

// A barrier that half of each warp does not come to.
__global__ void planted_synccheck_kernel(int *out) {
  if (threadIdx.x % 2 == 0) __syncthreads();
  out[threadIdx.x] = (int)threadIdx.x;
}

int main(int argc, char **argv) {
  const char *fault = argc > 1 ? argv[1] : "";
  int *in = NULL, *out = NULL;
  if (cudaMalloc(&in, BYTES) != cudaSuccess || cudaMalloc(&out, BYTES) != cudaSuccess) {
    fprintf(stderr, "no GPU memory: %s\n", cudaGetErrorString(cudaGetLastError()));
    return 2;
  }
  if (strcmp(fault, "memcheck") == 0) {
    planted_memcheck_kernel<<<1, THREADS>>>(out);
  } else if (strcmp(fault, "racecheck") == 0) {
    planted_racecheck_kernel<<<1, THREADS>>>(out);
  } else if (strcmp(fault, "initcheck") == 0) {
    planted_initcheck_kernel<<<1, THREADS>>>(in, out);
  } else if (strcmp(fault, "synccheck") == 0) {
    planted_synccheck_kernel<<<1, THREADS>>>(out);
  } else {
    fprintf(stderr, "usage: planted_faults memcheck|racecheck|initcheck|synccheck\n");
    return 2;
  }
  // The fault itself may end the kernel with an error: it is the tool that has to report it.
  (void)cudaDeviceSynchronize();
  return 0;
}
