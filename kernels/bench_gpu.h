// What a benchmark needs of the GPU beside the operations of kernels/ops.h: their GEMMs alone, an
// emptied cache, time stamps, clocks and power. Needs no CUDA header; where the build has no CUDA,
// kernels/no_cuda.c says so.
#pragma once
#include "kernels/record.h"

// What the driver's management library says at one moment; NAN where it says nothing.
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
  // The GEMM of an operation and nothing around it, in cuBLASLt, on the unfused backend's stream.
  // The result goes to a place of its own where it fits, else to call->out.
  void (*gemm)(BenchGpu *g, const OperationCall *call);
  // On the unfused backend's stream: a GEMM of 8192 x 8192 x 8192, by whose rate the others are
  // measured, and a copy. Return FLOPs, and bytes read and written.
  double (*peak)(BenchGpu *g);
  double (*copy)(BenchGpu *g);
  // Writes on the backend's stream that leave nothing else in the second-level cache. Also long
  // enough for the host to launch what is timed before its turn comes.
  void (*flush)(BenchGpu *g, Backend *be);
  // Random normal values in bf16, on the backend's stream. Their standard deviation is 1 until
  // spread, which waits for the GPU, gives another.
  void (*fill)(BenchGpu *g, Backend *be, act_t *to, int64_t count);
  void (*spread)(BenchGpu *g, double deviation);
  // What is asked of `be` from here on waits for all that was asked of either backend.
  void (*turn)(BenchGpu *g, Backend *be);
  // A time stamp behind all that `be` was asked for. ms waits for the second of two; forget gives
  // all of them back.
  int (*mark)(BenchGpu *g, Backend *be);
  double (*ms)(BenchGpu *g, int from, int to);
  void (*forget)(BenchGpu *g);
};

// Both backends are of the same GPU, and may be the same one; nothing is owned. Has cuBLASLt's
// algorithms chosen for the GEMMs of these calls as the backends have them chosen: the fastest.
// NULL and a sentence on failure.
BenchGpu *bench_gpu_open(Backend *fused, Backend *unfused, const OperationCall *calls, int count,
                         Error *err);
// The bytes that it takes on the GPU beside the backends.
size_t bench_gpu_bytes(const OperationCall *calls, int count);
