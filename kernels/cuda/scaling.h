// Scales of FP8 copies, on the device. A tensor's copies hold scale * value, saturated. The scale
// is a power of two and delayed: it follows from the largest values of earlier steps, so that an
// epilogue knows it before it has seen the tensor. Whoever writes copies also takes the largest
// value, and once a step all scales are set anew.
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>
#include "kernels/ops.h"

enum { MAXIMA = 32 }; // words that blocks spread their largest values over: a warp's lanes

typedef struct Scaling {
  float inverse, scale; // 1 / scale, which cuBLASLt wants at a 16-byte boundary, and what copies
                        // were multiplied by: both powers of two. 0: none
  int32_t format;       // Fp8Format
  int32_t fixed;        // the scale stays as it is: maxima are looked at for saturation only
  float history[SCALE_HISTORY]; // largest values of the last steps, newest first; 0: none
  uint32_t maxima[MAXIMA]; // bits of the largest |value| of the running step, before `scale`; the
                           // largest of them counts. Bits of floats >= 0 compare as integers.
} Scaling;
