#include "kernels/cuda/bench_gpu.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/library.h"
#include "kernels/unfused/state.h"

enum {
  PEAK = 8192,            // rows and columns of the product that is the measure
  FLUSHED = 3,            // times the second-level cache's size
  PATTERN = (1 << 22) - 3 // a prime: in a matrix filled with copies of it no two rows are alike
};
static const size_t operand_bytes = (size_t)PEAK * PEAK * sizeof(bf16_bits);

_Static_assert((int)BARE_NT == (int)GEMM_NT && (int)BARE_NN == (int)GEMM_NN &&
                   (int)BARE_TN == (int)GEMM_TN,
               "the same forms");

// The driver's management library, as far as it is called: loaded at run time, since a machine
// without a driver has none. Statuses are 0 for success; the numbers are those of its nvml.h.
typedef struct Nvml {
  int (*init)(void);
  int (*shutdown)(void);
  int (*driver_version)(char *text, unsigned bytes);
  int (*device_by_bus)(const char *bus, void **device);
  int (*clock)(void *device, int type, unsigned *mhz);
  int (*most_clock)(void *device, int type, unsigned *mhz);
  int (*power)(void *device, unsigned *milliwatts);
  int (*power_limit)(void *device, unsigned *milliwatts);
  int (*temperature)(void *device, int sensor, unsigned *celsius);
  void *library, *device; // NULL: nothing is known
} Nvml;
enum { NVML_CLOCK_SM = 1, NVML_TEMPERATURE_GPU = 0 };

struct BenchGpu {
  Backend *fused, *unfused;
  char *operands; // [2, PEAK, PEAK] random
  char *scratch;
  size_t scratch_bytes;
  cudaEvent_t handover;
  cudaEvent_t *marks;
  int mark_count, mark_capacity;
  Nvml nvml;
};

// ---- The management library

static void nvml_open(Nvml *n, int device) {
  static const LibraryFunction functions[] = {
      {"nvmlInit_v2", offsetof(Nvml, init)},
      {"nvmlShutdown", offsetof(Nvml, shutdown)},
      {"nvmlSystemGetDriverVersion", offsetof(Nvml, driver_version)},
      {"nvmlDeviceGetHandleByPciBusId_v2", offsetof(Nvml, device_by_bus)},
      {"nvmlDeviceGetClockInfo", offsetof(Nvml, clock)},
      {"nvmlDeviceGetMaxClockInfo", offsetof(Nvml, most_clock)},
      {"nvmlDeviceGetPowerUsage", offsetof(Nvml, power)},
      {"nvmlDeviceGetEnforcedPowerLimit", offsetof(Nvml, power_limit)},
      {"nvmlDeviceGetTemperature", offsetof(Nvml, temperature)},
  };
  char bus[32];
  if (cudaDeviceGetPCIBusId(bus, sizeof bus, device) != cudaSuccess) return;
  n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!n->library) return;
  if (library_functions(n->library, functions, sizeof functions / sizeof *functions, n) ||
      n->init() != 0) {
    dlclose(n->library);
    *n = (Nvml){0};
  } else if (n->device_by_bus(bus, &n->device) != 0) {
    n->device = NULL;
  }
}

static void nvml_close(Nvml *n) {
  if (!n->library) return;
  (void)n->shutdown(); // nothing can be done about a failure, and nothing depends on it
  dlclose(n->library);
}

static double number_or_nan(int status, unsigned value, double unit) {
  return status == 0 ? (double)value * unit : NAN;
}

GpuSample bench_gpu_sample(const BenchGpu *g) {
  const Nvml *n = &g->nvml;
  if (!n->device) return (GpuSample){NAN, NAN, NAN};
  unsigned mhz = 0, milliwatts = 0, celsius = 0;
  const int clock = n->clock(n->device, NVML_CLOCK_SM, &mhz),
            power = n->power(n->device, &milliwatts),
            heat = n->temperature(n->device, NVML_TEMPERATURE_GPU, &celsius);
  return (GpuSample){.clock_mhz = number_or_nan(clock, mhz, 1),
                     .watts = number_or_nan(power, milliwatts, 1e-3),
                     .celsius = number_or_nan(heat, celsius, 1)};
}

GpuFacts bench_gpu_facts(const BenchGpu *g) {
  const Nvml *n = &g->nvml;
  GpuFacts facts = {
      .most_clock_mhz = NAN, .limit_watts = NAN, .l2_bytes = unfused_of(g->unfused)->gpu.l2_bytes};
  if (!n->device) return facts;
  if (n->driver_version(facts.driver, sizeof facts.driver) != 0) facts.driver[0] = '\0';
  unsigned mhz = 0, milliwatts = 0;
  const int clock = n->most_clock(n->device, NVML_CLOCK_SM, &mhz),
            limit = n->power_limit(n->device, &milliwatts);
  facts.most_clock_mhz = number_or_nan(clock, mhz, 1);
  facts.limit_watts = number_or_nan(limit, milliwatts, 1e-3);
  return facts;
}

// ---- Opening

static size_t scratch_for(size_t bytes) {
  return bytes > 2 * operand_bytes ? bytes : 2 * operand_bytes;
}

size_t bench_gpu_bytes(size_t scratch_bytes) {
  return 2 * operand_bytes + scratch_for(scratch_bytes);
}

// Random normal values: the clock that a GPU holds depends on the data.
static int fill_operands(char *operands, Error *err) {
  const size_t bytes = 2 * operand_bytes;
  size_t done = PATTERN * sizeof(bf16_bits);
  bf16_bits *pattern = xmalloc(done);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < PATTERN; i++) {
    const float value = (float)rng_normal(17, (uint64_t)i);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    pattern[i] = (bf16_bits)(bits >> 16);
  }
  cudaError_t status = cudaMemcpy(operands, pattern, done, cudaMemcpyHostToDevice);
  free(pattern);
  while (status == cudaSuccess && done < bytes) {
    const size_t next = bytes - done < done ? bytes - done : done;
    status = cudaMemcpy(operands + done, operands, next, cudaMemcpyDeviceToDevice);
    done += next;
  }
  CUDA_TRY(err, status);
  CUDA_TRY(err, cudaDeviceSynchronize());
  return 0;
}

static const BareProduct peak_product = {.M = PEAK, .N = PEAK, .K = PEAK, .form = BARE_NT};

static GemmProblem problem_of(const BareProduct *p) {
  return (GemmProblem){.M = p->M,
                       .N = p->N,
                       .K = p->K,
                       .form = (GemmForm)p->form,
                       .out_fp32 = p->out_fp32,
                       .alignment = 16};
}

static int open_parts(BenchGpu *g, Error *err) {
  CUDA_TRY(err, cudaMalloc((void **)&g->operands, 2 * operand_bytes));
  CUDA_TRY(err, cudaMalloc((void **)&g->scratch, g->scratch_bytes));
  CUDA_TRY(err, cudaEventCreateWithFlags(&g->handover, cudaEventDisableTiming));
  if (fill_operands(g->operands, err)) return -1;
  return bench_gpu_prepare(g, &peak_product, err);
}

BenchGpu *bench_gpu_open(Backend *fused, Backend *unfused, size_t scratch_bytes, Error *err) {
  BenchGpu *g = xcalloc(1, sizeof *g);
  g->fused = fused;
  g->unfused = unfused;
  g->scratch_bytes = scratch_for(scratch_bytes);
  if (open_parts(g, err) != 0) {
    bench_gpu_close(g);
    return NULL;
  }
  nvml_open(&g->nvml, unfused_of(unfused)->gpu.device);
  return g;
}

void bench_gpu_close(BenchGpu *g) {
  if (!g) return;
  CUDA_CHECK(cudaDeviceSynchronize());
  nvml_close(&g->nvml);
  for (int i = 0; i < g->mark_capacity; i++) CUDA_CHECK(cudaEventDestroy(g->marks[i]));
  free(g->marks);
  if (g->handover) CUDA_CHECK(cudaEventDestroy(g->handover));
  CUDA_CHECK(cudaFree(g->operands));
  CUDA_CHECK(cudaFree(g->scratch));
  free(g);
}

// ---- Work

static cudaStream_t stream_of(Backend *be) {
  return unfused_of(be)->gpu.stream;
}

int bench_gpu_prepare(BenchGpu *g, const BareProduct *product, Error *err) {
  const GemmProblem problem = problem_of(product);
  return gemm_prepare(&unfused_of(g->unfused)->gemm, &problem, 1, err);
}

void bench_gpu_product(BenchGpu *g, const BareProduct *p, const void *A, const void *B, void *D) {
  gemm_run(&unfused_of(g->unfused)->gemm, problem_of(p), A, B, NULL, D ? D : g->scratch);
}

BareProduct bench_gpu_peak(BenchGpu *g) {
  bench_gpu_product(g, &peak_product, g->operands, g->operands + operand_bytes, NULL);
  return peak_product;
}

double bench_gpu_copy(BenchGpu *g) {
  CUDA_CHECK(cudaMemcpyAsync(g->scratch, g->operands, 2 * operand_bytes, cudaMemcpyDeviceToDevice,
                             stream_of(g->unfused)));
  return 4 * (double)operand_bytes;
}

void bench_gpu_flush(BenchGpu *g, Backend *be) {
  const Gpu *gpu = &unfused_of(be)->gpu;
  const size_t bytes = FLUSHED * gpu->l2_bytes;
  CUDA_CHECK(cudaMemsetAsync(g->scratch, g->mark_count & 0xff,
                             bytes < g->scratch_bytes ? bytes : g->scratch_bytes, gpu->stream));
}

void bench_gpu_fill(BenchGpu *g, Backend *be, void *to, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t more = bytes - done < 2 * operand_bytes ? bytes - done : 2 * operand_bytes;
    CUDA_CHECK(cudaMemcpyAsync((char *)to + done, g->operands, more, cudaMemcpyDeviceToDevice,
                               stream_of(be)));
    done += more;
  }
}

void bench_gpu_turn(BenchGpu *g, Backend *be) {
  Backend *other = be == g->fused ? g->unfused : g->fused;
  if (other == be) return;
  CUDA_CHECK(cudaEventRecord(g->handover, stream_of(other)));
  CUDA_CHECK(cudaStreamWaitEvent(stream_of(be), g->handover, 0));
}

// ---- Time stamps

int bench_gpu_mark(BenchGpu *g, Backend *be) {
  if (g->mark_count == g->mark_capacity) {
    const int more = g->mark_capacity + 256;
    g->marks = xrealloc(g->marks, (size_t)more * sizeof *g->marks);
    for (; g->mark_capacity < more; g->mark_capacity++)
      CUDA_CHECK(cudaEventCreate(&g->marks[g->mark_capacity]));
  }
  CUDA_CHECK(cudaEventRecord(g->marks[g->mark_count], stream_of(be)));
  return g->mark_count++;
}

double bench_gpu_ms(const BenchGpu *g, int from, int to) {
  float ms = 0;
  CUDA_CHECK(cudaEventSynchronize(g->marks[to]));
  CUDA_CHECK(cudaEventElapsedTime(&ms, g->marks[from], g->marks[to]));
  return (double)ms;
}

void bench_gpu_forget(BenchGpu *g) {
  g->mark_count = 0;
}
