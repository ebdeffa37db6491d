#include "kernels/bench_gpu.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cudnn.h"

enum {
  PEAK = 8192, // rows and columns of the GEMM that is the measure
  FLUSHED = 3  // times the second-level cache's size
};
static const size_t operand_bytes = (size_t)PEAK * PEAK * sizeof(bf16_bits);
static const GemmProblem peak_problem = {
    .M = PEAK, .N = PEAK, .K = PEAK, .form = GEMM_NT, .alignment = 16};

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
  void *library, *device; // NULL where the library is not loaded
} Nvml;
enum { NVML_CLOCK_SM = 1, NVML_TEMPERATURE_GPU = 0 };

typedef struct Probe {
  BenchGpu base; // first: a BenchGpu * is a Probe *
  Cuda *fused, *unfused;
  char *operands; // [2, PEAK, PEAK] random; the second also fills what is to be filled
  char *scratch;
  size_t scratch_bytes;
  cudaEvent_t handover;
  cudaEvent_t *marks;
  int mark_count, mark_capacity;
  Nvml nvml;
} Probe;

static Probe *probe_of(BenchGpu *bench) {
  return (Probe *)bench;
}

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
  (void)n->shutdown(); // a failure has no consequence
  dlclose(n->library);
}

// The value that a call with this status returned, in units of a sample; NAN where it failed.
static double reading(int status, const unsigned *value, double unit) {
  return status == 0 ? (double)*value * unit : NAN;
}

static GpuSample op_sample(BenchGpu *bench) {
  const Nvml *n = &probe_of(bench)->nvml;
  if (!n->device) return (GpuSample){NAN, NAN, NAN};
  unsigned mhz, milliwatts, celsius;
  return (GpuSample){
      .clock_mhz = reading(n->clock(n->device, NVML_CLOCK_SM, &mhz), &mhz, 1),
      .watts = reading(n->power(n->device, &milliwatts), &milliwatts, 1e-3),
      .celsius = reading(n->temperature(n->device, NVML_TEMPERATURE_GPU, &celsius), &celsius, 1)};
}

static GpuFacts read_facts(const Probe *p) {
  const Nvml *n = &p->nvml;
  GpuFacts facts = {
      .most_clock_mhz = NAN, .limit_watts = NAN, .l2_bytes = p->unfused->gpu.l2_bytes};
  if (!n->device) return facts;
  unsigned mhz, milliwatts;
  if (n->driver_version(facts.driver, sizeof facts.driver) != 0) facts.driver[0] = '\0';
  facts.most_clock_mhz = reading(n->most_clock(n->device, NVML_CLOCK_SM, &mhz), &mhz, 1);
  facts.limit_watts = reading(n->power_limit(n->device, &milliwatts), &milliwatts, 1e-3);
  return facts;
}

// ---- Work

static GemmProblem problem_of(const Probe *p, const OperationCall *call) {
  GemmProblem problems[MOST_PROBLEMS];
  cuda_problems_of(p->unfused, call->operation, problems);
  problems[0].add = false;
  return problems[0];
}

static void op_gemm(BenchGpu *bench, const OperationCall *call) {
  Probe *p = probe_of(bench);
  const GemmProblem problem = problem_of(p, call);
  if (!gemm_find(&p->unfused->gemm, &problem)) {
    fprintf(stderr, "the bench's GEMM %s was not prepared\n", call->shape);
    exit(EXIT_FAILURE);
  }
  const size_t bytes =
      (size_t)(call->M * call->N) * (problem.out_fp32 ? sizeof(float) : sizeof(bf16_bits));
  void *out = bytes <= p->scratch_bytes ? p->scratch : call->out;
  const Scaling *all = p->unfused->scalings;
  if (call->fp8)
    gemm_run_fp8(&p->unfused->gemm, problem, call->A, &all[call->scaling_A].inverse, call->B,
                 &all[call->scaling_B].inverse, NULL, out);
  else
    gemm_run(&p->unfused->gemm, problem, call->A, call->B, NULL, out);
}

static Cuda *side_of(const Probe *p, Backend *be) {
  return be == &p->fused->base ? p->fused : p->unfused;
}

static double op_peak(BenchGpu *bench) {
  Probe *p = probe_of(bench);
  gemm_run(&p->unfused->gemm, peak_problem, p->operands, p->operands + operand_bytes, NULL,
           p->scratch);
  return 2.0 * PEAK * PEAK * PEAK;
}

static double op_copy(BenchGpu *bench) {
  Probe *p = probe_of(bench);
  CUDA_CHECK(cudaMemcpyAsync(p->scratch, p->operands, 2 * operand_bytes, cudaMemcpyDeviceToDevice,
                             p->unfused->gpu.stream));
  return 4 * (double)operand_bytes;
}

static void op_flush(BenchGpu *bench, Backend *be) {
  Probe *p = probe_of(bench);
  const Gpu *gpu = &side_of(p, be)->gpu;
  const size_t bytes = FLUSHED * gpu->l2_bytes;
  CUDA_CHECK(cudaMemsetAsync(p->scratch, p->mark_count & 0xff,
                             bytes < p->scratch_bytes ? bytes : p->scratch_bytes, gpu->stream));
}

static void op_fill(BenchGpu *bench, Backend *be, act_t *to, int64_t count) {
  Probe *p = probe_of(bench);
  const size_t bytes = (size_t)count * sizeof(bf16_bits);
  for (size_t done = 0; done < bytes;) {
    const size_t more = bytes - done < operand_bytes ? bytes - done : operand_bytes;
    CUDA_CHECK(cudaMemcpyAsync((char *)to + done, p->operands + operand_bytes, more,
                               cudaMemcpyDeviceToDevice, side_of(p, be)->gpu.stream));
    done += more;
  }
}

// The peak is not affected: only exponents change.
static void op_spread(BenchGpu *bench, double deviation) {
  Probe *p = probe_of(bench);
  CUDA_CHECK(cudaDeviceSynchronize());
  fill_random(p->operands + operand_bytes, operand_bytes, deviation, p->unfused->gpu.stream);
  CUDA_CHECK(cudaDeviceSynchronize());
}

static void op_turn(BenchGpu *bench, Backend *be) {
  Probe *p = probe_of(bench);
  Cuda *mine = side_of(p, be), *other = mine == p->fused ? p->unfused : p->fused;
  if (other == mine) return;
  CUDA_CHECK(cudaEventRecord(p->handover, other->gpu.stream));
  CUDA_CHECK(cudaStreamWaitEvent(mine->gpu.stream, p->handover, 0));
}

// ---- Time stamps

static int op_mark(BenchGpu *bench, Backend *be) {
  Probe *p = probe_of(bench);
  if (p->mark_count == p->mark_capacity) {
    const int more = p->mark_capacity + 256;
    p->marks = xrealloc(p->marks, (size_t)more * sizeof *p->marks);
    for (; p->mark_capacity < more; p->mark_capacity++)
      CUDA_CHECK(cudaEventCreate(&p->marks[p->mark_capacity]));
  }
  CUDA_CHECK(cudaEventRecord(p->marks[p->mark_count], side_of(p, be)->gpu.stream));
  return p->mark_count++;
}

static double op_ms(BenchGpu *bench, int from, int to) {
  const Probe *p = probe_of(bench);
  float ms = 0;
  CUDA_CHECK(cudaEventSynchronize(p->marks[to]));
  CUDA_CHECK(cudaEventElapsedTime(&ms, p->marks[from], p->marks[to]));
  return (double)ms;
}

static void op_forget(BenchGpu *bench) {
  probe_of(bench)->mark_count = 0;
}

// ---- Opening

// Large enough for every result that has no place of its own size.
static size_t scratch_for(const OperationCall *calls, int count) {
  size_t most = 2 * operand_bytes;
  for (int i = 0; i < count; i++) {
    const size_t bytes = (size_t)(calls[i].M * calls[i].N) * sizeof(bf16_bits);
    if (calls[i].M * calls[i].N != calls[i].out_count && bytes > most) most = bytes;
  }
  return most;
}

size_t bench_gpu_bytes(const OperationCall *calls, int count) {
  return 2 * operand_bytes + scratch_for(calls, count);
}

static int prepare(Probe *p, const OperationCall *calls, int count, Error *err) {
  GemmProblem problems[OPERATION_COUNT + 1] = {peak_problem};
  int used = 1;
  for (int i = 0; i < count && used <= OPERATION_COUNT; i++)
    if (calls[i].class == CLASS_GEMM) problems[used++] = problem_of(p, &calls[i]);
  return gemm_prepare(&p->unfused->gemm, problems, used, err);
}

static int open_parts(Probe *p, const OperationCall *calls, int count, Error *err) {
  p->scratch_bytes = scratch_for(calls, count);
  CUDA_TRY(err, cudaMalloc((void **)&p->operands, 2 * operand_bytes));
  CUDA_TRY(err, cudaMalloc((void **)&p->scratch, p->scratch_bytes));
  CUDA_TRY(err, cudaEventCreateWithFlags(&p->handover, cudaEventDisableTiming));
  fill_random(p->operands, 2 * operand_bytes, 1, p->unfused->gpu.stream);
  return prepare(p, calls, count, err);
}

static void op_close(BenchGpu *bench) {
  Probe *p = probe_of(bench);
  CUDA_CHECK(cudaDeviceSynchronize());
  nvml_close(&p->nvml);
  for (int i = 0; i < p->mark_capacity; i++) CUDA_CHECK(cudaEventDestroy(p->marks[i]));
  free(p->marks);
  if (p->handover) CUDA_CHECK(cudaEventDestroy(p->handover));
  CUDA_CHECK(cudaFree(p->operands));
  CUDA_CHECK(cudaFree(p->scratch));
  free(p);
}

BenchGpu *bench_gpu_open(Backend *fused, Backend *unfused, const OperationCall *calls, int count,
                         Error *err) {
  Probe *p = xcalloc(1, sizeof *p);
  p->fused = cuda_of(fused);
  p->unfused = cuda_of(unfused);
  if (open_parts(p, calls, count, err) != 0) {
    op_close(&p->base);
    return NULL;
  }
  nvml_open(&p->nvml, p->unfused->gpu.device);
  p->base = (BenchGpu){.facts = read_facts(p),
                       .close = op_close,
                       .sample = op_sample,
                       .gemm = op_gemm,
                       .peak = op_peak,
                       .copy = op_copy,
                       .flush = op_flush,
                       .fill = op_fill,
                       .spread = op_spread,
                       .turn = op_turn,
                       .mark = op_mark,
                       .ms = op_ms,
                       .forget = op_forget};
  return &p->base;
}
