// What the bench needs of a GPU: marks, a copy, and what the driver's management library says.
#include <assert.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cudnn.h"

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

struct Bench {
  Nvml nvml;
  cudaEvent_t *events; // [most], and what each marks
  int *what;
  int count, most;
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
  (void)n->shutdown(); // a failure has no consequence
  dlclose(n->library);
}

// The value that a call with this status returned, in units of a sample; NAN where it failed.
static double reading(int status, const unsigned *value, double unit) {
  return status == 0 ? (double)*value * unit : NAN;
}

static Bench *bench_of(Cuda *c) {
  if (c->bench) return c->bench;
  c->bench = xcalloc(1, sizeof *c->bench);
  nvml_open(&c->bench->nvml, c->gpu.device);
  return c->bench;
}

static GpuGauges op_gauges(Backend *be) {
  GpuGauges g = {"", NAN, NAN, NAN, NAN, NAN};
  const Nvml *n = &bench_of(cuda_of(be))->nvml;
  if (!n->device) return g;
  unsigned mhz, milliwatts, celsius;
  if (n->driver_version(g.driver, sizeof g.driver) != 0) g.driver[0] = '\0';
  g.clock_mhz = reading(n->clock(n->device, NVML_CLOCK_SM, &mhz), &mhz, 1);
  g.most_clock_mhz = reading(n->most_clock(n->device, NVML_CLOCK_SM, &mhz), &mhz, 1);
  g.watts = reading(n->power(n->device, &milliwatts), &milliwatts, 1e-3);
  g.limit_watts = reading(n->power_limit(n->device, &milliwatts), &milliwatts, 1e-3);
  g.celsius = reading(n->temperature(n->device, NVML_TEMPERATURE_GPU, &celsius), &celsius, 1);
  return g;
}

// ---- Marks

static void forget_marks(Bench *b) {
  for (int i = 0; i < b->most; i++) CUDA_CHECK(cudaEventDestroy(b->events[i]));
  free(b->events);
  free(b->what);
}

static void op_marks_open(Backend *be, int most) {
  Bench *b = bench_of(cuda_of(be));
  forget_marks(b);
  b->count = 0;
  b->most = most;
  b->what = xcalloc((size_t)most, sizeof *b->what);
  b->events = xcalloc((size_t)most, sizeof *b->events);
  for (int i = 0; i < most; i++) CUDA_CHECK(cudaEventCreate(&b->events[i]));
}

void cuda_mark(Backend *be, int what) {
  const Cuda *c = cuda_of(be);
  Bench *b = c->bench;
  assert(b->count < b->most);
  b->what[b->count] = what;
  CUDA_CHECK(cudaEventRecord(b->events[b->count++], c->gpu.stream));
}

static int op_marks_read(Backend *be, Mark *marks) {
  const Cuda *c = cuda_of(be);
  Bench *b = c->bench;
  const int count = b->count;
  CUDA_CHECK(cudaStreamSynchronize(c->gpu.stream));
  double since_first = 0; // in fp32 the seconds of a block would round microseconds away
  for (int i = 0; i < count; i++) {
    float ms;
    CUDA_CHECK(cudaEventElapsedTime(&ms, b->events[i > 0 ? i - 1 : 0], b->events[i]));
    since_first += (double)ms;
    marks[i] = (Mark){b->what[i], since_first};
  }
  b->count = 0;
  return count;
}

static void op_copy(Backend *be, void *to, const void *from, size_t bytes) {
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_of(be)->gpu.stream));
}

void cuda_set_bench(Cuda *c) {
  Backend *be = &c->base;
  be->services.marks_open = op_marks_open;
  be->services.mark = cuda_mark;
  be->services.marks_read = op_marks_read;
  be->services.copy = op_copy;
  be->services.gauges = op_gauges;
}

void cuda_bench_close(Cuda *c) {
  if (!c->bench) return;
  forget_marks(c->bench);
  nvml_close(&c->bench->nvml);
  free(c->bench);
}
