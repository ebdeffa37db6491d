// The GPU functions of a benchmark besides the operations of kernels/ops.h: their GEMMs alone, an
// emptied cache, time stamps, clocks and power. Needs no CUDA header; where the build has no CUDA,
// kernels/no_cuda.c says so.
#pragma once
#include "kernels/record.h"

// One reading of the driver's management library; NAN where it gives no value.
typedef struct GpuSample {
  double clock_mhz, watts, celsius;
} GpuSample;

typedef struct GpuFacts {
  char driver[96];                    // the driver's version, "" where not known
  double most_clock_mhz, limit_watts; // NAN where not known
  size_t l2_bytes;
} GpuFacts;

typedef struct BenchGpu BenchGpu;
struct BenchGpu {
  GpuFacts facts;

  void (*close)(BenchGpu *g);
  GpuSample (*sample)(BenchGpu *g); // a call takes up to a millisecond of the host
  // Only the GEMM of an operation, in cuBLASLt, on the unfused backend's stream. The result is
  // written to separate memory where it fits, else to call->out.
  void (*gemm)(BenchGpu *g, const OperationCall *call);
  // On the unfused backend's stream: a GEMM of 8192 x 8192 x 8192, by whose rate the others are
  // measured, and a copy. Return FLOPs, and bytes read and written.
  double (*peak)(BenchGpu *g);
  double (*copy)(BenchGpu *g);
  // Evicts the second-level cache by writes on the backend's stream. They also take long enough for
  // the host to launch the timed work meanwhile.
  void (*flush)(BenchGpu *g, Backend *be);
  // Random normal values in bf16, on the backend's stream. Their standard deviation is 1 until
  // spread, which waits for the GPU, sets another.
  void (*fill)(BenchGpu *g, Backend *be, act_t *to, int64_t count);
  void (*spread)(BenchGpu *g, double deviation);
  // Work queued on `be` from now on waits for all earlier work of both backends.
  void (*turn)(BenchGpu *g, Backend *be);
  // mark queues a time stamp behind all work of `be`. ms waits for the second of two; forget
  // releases all of them.
  int (*mark)(BenchGpu *g, Backend *be);
  double (*ms)(BenchGpu *g, int from, int to);
  void (*forget)(BenchGpu *g);
};

// Both backends are of the same GPU, and may be the same one; nothing is owned. Chooses cuBLASLt's
// algorithms for the GEMMs of these calls as the backends do: the fastest. NULL and a sentence on
// failure.
BenchGpu *bench_gpu_open(Backend *fused, Backend *unfused, const OperationCall *calls, int count,
                         Error *err);
// The bytes that it allocates on the GPU besides the backends' memory.
size_t bench_gpu_bytes(const OperationCall *calls, int count);
