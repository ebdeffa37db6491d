// Whether this GPU multiplies in FP8, for tests that need it: not before compute capability 8.9.
#pragma once
#include "kernels/fused/program.h"
#include "tests/support/test.h"

static inline bool fp8_here(void) {
  Gpu gpu;
  Error err;
  return gpu_probe(&gpu, &err) == 0 && gpu.compiled_for >= 89;
}

static inline bool wgmma_here(void) {
  Gpu gpu;
  Mainloop mainloop;
  Error err;
  return gpu_probe(&gpu, &err) == 0 && fused_mainloop(MAINLOOP_WGMMA, &gpu, &mainloop, &err) == 0;
}

// A TEST_GROUP's set-up: ends a whole program of tests where it is skipped.
static inline int needs_fp8(void **state) {
  (void)state;
  if (fp8_here()) return 0;
  printf("ok - fp8 # SKIP this GPU, or this build for it, has no FP8\n");
  exit(EXIT_SUCCESS);
}
