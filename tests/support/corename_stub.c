// A library for LD_PRELOAD: OpenBLAS takes the CPU for a Prescott until it is told a core, as an
// old release does with a new CPU.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

char *openblas_get_corename(void);

__attribute__((visibility("default"))) char *openblas_get_corename(void) {
  static char prescott[] = "Prescott";
  const char *told = getenv("OPENBLAS_CORETYPE");
  if (!told || !*told) return prescott;
  char *(*real)(void) = NULL;
  *(void **)&real = dlsym(RTLD_NEXT, "openblas_get_corename");
  return real ? real() : prescott;
}
