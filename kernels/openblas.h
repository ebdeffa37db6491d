// Which kernels OpenBLAS runs, and on how many threads. It chooses its kernels, "a core", when it
// is loaded. A release mistakes a CPU newer than itself for an old one: 0.3.21 (Debian 12) treats
// an Emerald Rapids Xeon as a Prescott, and a step then takes 3 to 5 times as long.
#pragma once
#include <stdbool.h>

// Instruction sets of the CPU whose registers the system saves.
typedef struct CpuFeatures {
  bool avx2;   // with FMA
  bool avx512; // F, DQ, BW and VL
} CpuFeatures;
CpuFeatures cpu_features(void);
// "Intel(R) Xeon(R) Processor", NUL-terminated; empty where it does not say.
typedef struct CpuName {
  char text[49];
} CpuName;
CpuName cpu_name(void);

// The core that is faster than `core` on such a CPU, or NULL. Only cores that are older than AVX2
// are too slow: a name that is not known here is newer.
const char *better_core(const char *core, CpuFeatures has);

// Called before main's work: if OpenBLAS mistook the CPU for an older one, sets OPENBLAS_CORETYPE,
// which OpenBLAS reads at the next start of the program, and returns true. A value that the user
// set is not changed.
bool openblas_mend(void);
// The doctor's sentence about it: the core was corrected, or kept as the user asked; empty where
// OpenBLAS chose well.
typedef struct MendText {
  char text[240];
} MendText;
MendText openblas_mended(void);

// Allocates the resources with which `threads` threads, this one among them, multiply: OpenMP's
// threads and OpenBLAS's buffers. Calls out_of_memory where the system refuses them; OpenBLAS would
// retry for ever.
void openblas_take_threads(int threads);

// The number of threads of the CPU backend where the config does not set it, and its reason. root:
// of the files with quotas, as in base/memory.h.
typedef struct ThreadsAsked {
  int count;
  const char *why; // "as OMP_NUM_THREADS asks"
} ThreadsAsked;
ThreadsAsked threads_asked(const char *root);
// The processors that the process may use at once: by its affinity, and by the control group.
int processors_usable(const char *root);
