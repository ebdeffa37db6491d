// Stands in for the GPU backends in a build without CUDA.
#include "kernels/cuda/bench_gpu.h"
#include "kernels/gpu_backends.h"

int gpu_usable(size_t *memory_bytes, Error *err) {
  *memory_bytes = 0;
  return error_set(
      err, "this build has no CUDA: install the CUDA toolkit (nvcc, cuBLASLt) and run make again");
}

static int no_gpu(Error *err) {
  size_t none;
  return gpu_usable(&none, err);
}

Backend *backend_unfused_create(const OpsConfig *config, const UnfusedOptions *options,
                                Error *err) {
  (void)config;
  (void)options;
  no_gpu(err);
  return NULL;
}

Backend *backend_fused_create(const OpsConfig *config, const UnfusedOptions *options, Error *err) {
  (void)config;
  (void)options;
  no_gpu(err);
  return NULL;
}

int backend_fused_supported(const OpsConfig *config, Error *err) {
  (void)config;
  return no_gpu(err);
}

// Without a backend nothing is benched: bench_gpu_open is what a caller gets to.
size_t bench_gpu_bytes(size_t scratch_bytes) {
  return scratch_bytes;
}

BenchGpu *bench_gpu_open(Backend *fused, Backend *unfused, size_t scratch_bytes, Error *err) {
  (void)fused;
  (void)unfused;
  (void)scratch_bytes;
  no_gpu(err);
  return NULL;
}

void bench_gpu_close(BenchGpu *g) {
  (void)g;
}

GpuFacts bench_gpu_facts(const BenchGpu *g) {
  (void)g;
  return (GpuFacts){.driver = ""};
}

GpuSample bench_gpu_sample(const BenchGpu *g) {
  (void)g;
  return (GpuSample){0};
}

int bench_gpu_prepare(BenchGpu *g, const BareProduct *product, Error *err) {
  (void)g;
  (void)product;
  return no_gpu(err);
}

void bench_gpu_product(BenchGpu *g, const BareProduct *product, const void *A, const void *B,
                       void *D) {
  (void)g;
  (void)product;
  (void)A;
  (void)B;
  (void)D;
}

BareProduct bench_gpu_peak(BenchGpu *g) {
  (void)g;
  return (BareProduct){0};
}

double bench_gpu_copy(BenchGpu *g) {
  (void)g;
  return 0;
}

void bench_gpu_flush(BenchGpu *g, Backend *be) {
  (void)g;
  (void)be;
}

void bench_gpu_fill(BenchGpu *g, Backend *be, void *to, size_t bytes) {
  (void)g;
  (void)be;
  (void)to;
  (void)bytes;
}

void bench_gpu_turn(BenchGpu *g, Backend *be) {
  (void)g;
  (void)be;
}

int bench_gpu_mark(BenchGpu *g, Backend *be) {
  (void)g;
  (void)be;
  return 0;
}

double bench_gpu_ms(const BenchGpu *g, int from, int to) {
  (void)g;
  (void)from;
  (void)to;
  return 0;
}

void bench_gpu_forget(BenchGpu *g) {
  (void)g;
}
