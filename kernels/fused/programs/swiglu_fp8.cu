// swiglu.cu in FP8: of y the copies alone.
//   The operands are those of CopiedGated (kernels/fused/bases.cuh).
#include "kernels/fused/define.cuh"

struct SwigluFp8 : CopiedGated<SwigluFp8> {
  static DEVICE float activation(float gate, float up) {
    return swiglu(gate, up);
  }
};
DEFINE_PROGRAM(SwigluFp8, swiglu_fp8)
