#define _GNU_SOURCE // program_invocation_short_name, MAP_ANONYMOUS
#include "kernels/openblas.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "base/memory.h"
#include "base/os.h"

CpuFeatures cpu_features(void) {
#ifdef __x86_64__
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return (CpuFeatures){
      .avx2 = avx2,
      .avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")};
#else
  return (CpuFeatures){0};
#endif
}

CpuName cpu_name(void) {
  CpuName name = {""};
#ifdef __x86_64__
  uint32_t words[12];
  for (uint32_t i = 0; i < 3; i++) {
    uint32_t *w = words + 4 * i;
    if (!__get_cpuid(0x80000002 + i, w, w + 1, w + 2, w + 3)) return name;
  }
  memcpy(name.text, words, sizeof words);
#endif
  return name;
}

const char *better_core(const char *core, CpuFeatures has) {
  static const char *const before_avx2[] = {
      "Unknown",     "Generic",      "Katmai",     "Coppermine", "Northwood",  "Prescott",
      "Banias",      "Atom",         "Core2",      "Penryn",     "Dunnington", "Nehalem",
      "Sandybridge", "Nano",         "Athlon",     "Opteron",    "Bobcat",     "Barcelona",
      "Bulldozer",   "Opteron_SSE3", "Piledriver", "Steamroller"};
  if (!has.avx2) return NULL;
  for (size_t i = 0; i < sizeof before_avx2 / sizeof *before_avx2; i++)
    if (strcasecmp(core, before_avx2[i]) == 0) return has.avx512 ? "SkylakeX" : "Haswell";
  return NULL;
}

// A variable's value; NULL also where it is empty.
static const char *variable(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

static const char asked_name[] = "OPENBLAS_CORETYPE";
static const char taken_name[] = "CODA_OPENBLAS_TOOK"; // OpenBLAS's own choice, if it was changed

bool openblas_mend(void) {
  const char *asked = variable(asked_name), *core = openblas_get_corename();
  const bool again = variable(taken_name);
  if (asked && !again) return false;
  CpuFeatures has = cpu_features();
  if (again) has.avx512 = false; // this OpenBLAS was built without AVX-512 kernels
  const char *better = better_core(core, has);
  if (!better || (asked && strcmp(asked, better) == 0)) return false;
  return (again || setenv(taken_name, core, 1) == 0) && setenv(asked_name, better, 1) == 0;
}

MendText openblas_mended(void) {
  MendText text = {""};
  const char *asked = variable(asked_name), *taken = variable(taken_name);
  const char *core = openblas_get_corename(), *better = better_core(core, cpu_features());
  if (taken && !better)
    snprintf(text.text, sizeof text.text,
             "OpenBLAS does not know this CPU and took it for %s; mended: it runs %s's kernels",
             taken, core);
  else if (better && asked && !taken)
    snprintf(text.text, sizeof text.text,
             "OpenBLAS runs %s's kernels, as OPENBLAS_CORETYPE asks: a step may take several times "
             "as long as with %s's; unset it",
             core, better);
  else if (better)
    snprintf(text.text, sizeof text.text,
             "OpenBLAS takes this CPU for %s and has no better kernels; install a newer OpenBLAS",
             core);
  return text;
}

// The number at the start of a variable; 0 if it has no usable one.
static int threads_of_variable(const char *name) {
  enum { MOST_THREADS = 4096 };
  const char *asked = getenv(name);
  const long threads = asked ? strtol(asked, NULL, 10) : 0;
  return threads > 0 && threads <= MOST_THREADS ? (int)threads : 0;
}

// OpenMP knows which processors the process may run on, but nothing of a quota, under which more
// threads only wait for one another.
static ThreadsAsked threads_of_machine(const char *root) {
  const int processors = omp_get_num_procs();
  const double quota = ceil(control_group_cpus(root));
  if (quota < processors) return (ThreadsAsked){(int)quota, "as the control group's quota allows"};
  return (ThreadsAsked){processors, "one for each processor"};
}

int processors_usable(const char *root) {
  return threads_of_machine(root).count;
}

// OpenMP itself may have been set to another number by a backend before this one. OpenBLAS uses
// OpenMP's threads, as our loops do, so its variable counts, too.
ThreadsAsked threads_asked(const char *root) {
  const int by_openmp = threads_of_variable("OMP_NUM_THREADS");
  if (by_openmp > 0) return (ThreadsAsked){by_openmp, "as OMP_NUM_THREADS asks"};
  const int by_openblas = threads_of_variable("OPENBLAS_NUM_THREADS");
  if (by_openblas > 0) return (ThreadsAsked){by_openblas, "as OPENBLAS_NUM_THREADS asks"};
  return threads_of_machine(root);
}

// ---- Its buffers. OpenBLAS maps one for each thread when it is loaded, and one more for each
// thread that multiplies by itself, when it first does. 0.3.21 retries for ever where the system
// refuses one, as under `ulimit -v`, so the same amount is allocated before as a test.

#define BUFFER_BYTES ((size_t)128 << 20) // on x86-64 and ARM64

static void try_buffers(int count) {
  const size_t others = 32 << 20; // for other allocations meanwhile
  const size_t bytes = (size_t)count * BUFFER_BYTES + others;
  void *memory =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    out_of_memory("OpenBLAS needs %s of address space for its threads, and the system refused it; "
                  "allow more (ulimit -v), or set OMP_NUM_THREADS and backend.threads to fewer",
                  size_text(bytes).text);
  munmap(memory, bytes);
}

// glibc calls this before the constructors of shared libraries, of which OpenBLAS's is one and its
// own another: what they set is not there yet. Another libc may not call it.
static void before_loading(int argc, char **argv, char **variables) {
  const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
  if (!environ) environ = variables;
  if (argc > 0) program_invocation_short_name = slash ? (char *)(uintptr_t)slash + 1 : argv[0];
  prctl(PR_SET_NAME, program_invocation_short_name); // "exe" where the program started over
  const int asked = threads_of_variable("OMP_NUM_THREADS");
  const long processors = sysconf(_SC_NPROCESSORS_CONF);
  try_buffers(asked > 0 && asked < processors ? asked : (int)processors);
}
__attribute__((section(".preinit_array"),
               used)) static void (*const run_before_loading)(int, char **,
                                                              char **) = before_loading;

// OpenBLAS's own, which it exports without a header.
void *blas_memory_alloc(int unused) __attribute__((weak));
void blas_memory_free(void *buffer) __attribute__((weak));

void openblas_take_threads(int threads) {
  const int more = threads - openblas_get_num_threads();
  omp_set_num_threads(threads);
  thread_team(threads);
  try_buffers(threads + (more > 0 ? more : 0));
  openblas_set_num_threads(threads);
  if (!blas_memory_alloc || !blas_memory_free) return;
#pragma omp parallel
  {
    void *buffer = blas_memory_alloc(0); // which keeps its memory when it is freed
#pragma omp barrier
    blas_memory_free(buffer);
  }
}
