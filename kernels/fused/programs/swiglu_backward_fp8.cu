// swiglu_backward.cu in FP8: of dz'' the copies alone.
//   The operands are those of CopiedGatedBackward (kernels/fused/bases.cuh).
#include "kernels/fused/define.cuh"

struct SwigluBackwardFp8 : CopiedGatedBackward<SwigluBackwardFp8> {
  static DEVICE void slopes(__half2 gate, __half2 up, __half2 &of_gate, __half2 &of_up) {
    const __half2 half = __float2half2_rn(0.5f);
    const __half2 sigma = __hfma2(half_tanh(__hmul2(gate, half)), half, half);
    of_up = __hmul2(gate, sigma);
    of_gate = __hmul2(up, __hfma2(of_up, __hsub2(__float2half2_rn(1), sigma), sigma));
  }
};
DEFINE_PROGRAM(SwigluBackwardFp8, swiglu_backward_fp8)
