// What a benchmark needs of the GPU beside the operations of kernels/ops.h: bare products, an
// emptied cache, time stamps, clocks and power. Where the build has no CUDA,
// kernels/no_cuda.c stands in and says so. Needs no CUDA header.
#pragma once
#include "kernels/ops.h"

// How the operands are stored, as GemmForm in kernels/cuda/gemm_cublaslt.h.
typedef enum BareForm { BARE_NT, BARE_NN, BARE_TN } BareForm;

// D = A B in cuBLASLt and nothing around it: D [M, N] bf16, or fp32.
typedef struct BareProduct {
  int64_t M, N, K;
  BareForm form;
  bool out_fp32;
} BareProduct;

typedef struct BenchGpu BenchGpu;

// What the driver's management library says at one moment; NAN where it says nothing.
typedef struct GpuSample {
  double clock_mhz, watts, celsius;
} GpuSample;

typedef struct GpuFacts {
  char driver[96];                    // the driver's version, "" where not known
  double most_clock_mhz, limit_watts; // NAN where not known
  size_t l2_bytes;
} GpuFacts;

// Bytes that bench_gpu_open takes; scratch_bytes: the largest result of a bare product.
size_t bench_gpu_bytes(size_t scratch_bytes);
// Both backends are of the same GPU, and may be the same one. Their streams are used; nothing is
// owned.
BenchGpu *bench_gpu_open(Backend *fused, Backend *unfused, size_t scratch_bytes, Error *err);
void bench_gpu_close(BenchGpu *g); // NULL is fine
GpuFacts bench_gpu_facts(const BenchGpu *g);
GpuSample bench_gpu_sample(const BenchGpu *g); // a call takes up to a millisecond of the host

// Has cuBLASLt's algorithm chosen as the backends have it chosen: the fastest.
int bench_gpu_prepare(BenchGpu *g, const BareProduct *product, Error *err);
// On the unfused backend's stream, as are the next two. D NULL: into scratch.
void bench_gpu_product(BenchGpu *g, const BareProduct *product, const void *A, const void *B,
                       void *D);
// A product of 8192 x 8192 x 8192, by whose rate the others are measured, and a copy.
BareProduct bench_gpu_peak(BenchGpu *g);
double bench_gpu_copy(BenchGpu *g); // bytes read and written

// Writes on the backend's stream that leave nothing else in the second-level cache. Also long
// enough for the host to launch what is timed before its turn comes.
void bench_gpu_flush(BenchGpu *g, Backend *be);

// Random normal values in bf16, on the backend's stream.
void bench_gpu_fill(BenchGpu *g, Backend *be, void *to, size_t bytes);

// What is asked of `be` from here on waits for all that was asked of either backend.
void bench_gpu_turn(BenchGpu *g, Backend *be);
// A time stamp behind all that `be` was asked for. bench_gpu_ms waits for the second of two;
// bench_gpu_forget gives all of them back.
int bench_gpu_mark(BenchGpu *g, Backend *be);
double bench_gpu_ms(const BenchGpu *g, int from, int to);
void bench_gpu_forget(BenchGpu *g);
