// swiglu_backward.cu in FP8: of dz'' the copies alone.
//   The operands are those of CopiedGatedBackward (kernels/fused/bases.cuh).
#include "kernels/fused/define.cuh"

struct SwigluBackwardFp8 : CopiedGatedBackward<SwigluBackwardFp8> {
  // The sigmoid, silu and its slope in fp16, whose 10 bits of mantissa are enough for copies with
  // 3: of a gate up to 65504, for which a larger one is taken, they are finite.
  static DEVICE void slopes(float2 gate, float2 up, float2 &of_gate, float2 &of_up) {
    const __half2 half = __float2half2_rn(0.5f), finite = half_two_finite(gate.x, gate.y);
    const __half2 sigma = __hfma2(half_tanh(__hmul2(finite, half)), half, half);
    const __half2 silu = __hmul2(finite, sigma),
                  slope = __hfma2(silu, __hsub2(__float2half2_rn(1), sigma), sigma);
    of_up = {__low2float(silu), __high2float(silu)};
    of_gate = {up.x * __low2float(slope), up.y * __high2float(slope)};
  }
};
DEFINE_PROGRAM(SwigluBackwardFp8, swiglu_backward_fp8)
