// Which kernels OpenBLAS runs, and on how many threads. It chooses its kernels, "a core", when it
// is loaded. A release takes a CPU newer than itself for an old one: 0.3.21 (Debian 12) takes an
// Emerald Rapids Xeon for a Prescott, and a step then takes 3 to 5 times as long.
#pragma once
#include <stdbool.h>

// What the CPU offers, and the system saves the registers of.
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

// The core that serves such a CPU better than `core` does; NULL: none. Only cores that are older
// than AVX2 are too weak: a name that is not known here is newer.
const char *better_core(const char *core, CpuFeatures has);

// Before main's work: if OpenBLAS took the CPU for one too weak, sets OPENBLAS_CORETYPE, which it
// reads at the next start of the program. Whether it did so. What the user set is left alone.
bool openblas_mend(void);
// What the doctor says of it: mended, kept as the user asked, or an empty text where all is well.
typedef struct MendText {
  char text[240];
} MendText;
MendText openblas_mended(void);

// Takes now what `threads` threads, this one among them, multiply with: OpenMP's threads and
// OpenBLAS's buffers. out_of_memory where the system refuses them; OpenBLAS would ask for ever.
void openblas_take_threads(int threads);

// How many threads the CPU backend takes where the config leaves it open, and why so many. root: of
// the files that tell quotas, as base/memory.h has it.
typedef struct ThreadsAsked {
  int count;
  const char *why; // "as OMP_NUM_THREADS asks"
} ThreadsAsked;
ThreadsAsked threads_asked(const char *root);
