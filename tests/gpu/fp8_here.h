// Whether this GPU multiplies in FP8, for tests that need it: not before compute capability 8.9,
// and the fused kernels on Hopper alone.
#pragma once
#include <stdio.h>

#include "kernels/fused/program.h"

static inline bool fp8_here(bool fused) {
  Gpu gpu;
  Mainloop mainloop;
  Error err;
  return gpu_probe(&gpu, &err) == 0 && gpu.compiled_for >= 89 &&
         (!fused || fused_mainloop(MAINLOOP_WGMMA, &gpu, &mainloop, &err) == 0);
}

// For a whole program of tests: says that they are skipped.
static inline bool skipped_without_fp8(const char *name) {
  if (fp8_here(false)) return false;
  printf("1..1\nok 1 - %s # SKIP this GPU, or this build for it, has no FP8\n", name);
  return true;
}
