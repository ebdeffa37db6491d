#include "kernels/cuda/peak.h"

#include <string.h>

// FLOPs of one multiprocessor and clock, from NVIDIA's data sheets and architecture whitepapers:
//   8.0   A100 312 TFLOP/s / (108 x 1.41 GHz)
//   8.6   A40 149.7 / (84 x 1.74)                       GeForce RTX 3090 71 / (82 x 1.695)
//   8.9   RTX 6000 Ada 364.2 / (142 x 2.505)            GeForce RTX 4090 165.2 / (128 x 2.52)
//   9.0   H100 SXM 989.5 / (132 x 1.83)
//   10.x  B200 2250 / (148 x 1.86)
//   12.0  RTX PRO 6000 503.8 / (188 x 2.617)            GeForce RTX 5090 209.5 / (170 x 2.407)
// GeForce cards add up in fp32 at half the rate of the others of their family.
static int flops_a_clock(const char *name, int major, int minor) {
  const int geforce = strstr(name, "GeForce") != NULL;
  switch (major * 10 + minor) {
  case 80:
    return 2048;
  case 86:
  case 89:
  case 120:
    return geforce ? 512 : 1024;
  case 90:
    return 4096;
  case 100:
  case 103:
    return 8192;
  default:
    return 0;
  }
}

double gpu_peak_flops(const char *name, int major, int minor, int sm_count, double hertz) {
  // The data sheet's clock is not their highest.
  if (strstr(name, "H100") || strstr(name, "H200")) hertz = 1.83e9;
  return flops_a_clock(name, major, minor) * sm_count * hertz;
}
