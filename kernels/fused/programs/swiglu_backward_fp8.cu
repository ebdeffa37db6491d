// swiglu_backward.cu in FP8: of dz'' the copies alone.
//   The operands are those of CopiedGatedBackward (kernels/fused/bases.cuh).
#include "kernels/fused/define.cuh"

struct SwigluBackwardFp8 : CopiedGatedBackward<SwigluBackwardFp8> {
  // The sigmoid and silu's slope, which are at most 1.1, in fp16: 10 bits of mantissa are enough
  // for copies with 3. A gate beyond fp16 is taken for its largest value: the sigmoid is 0 or 1.
  static DEVICE void slopes(float2 gate, float2 up, float2 &of_gate, float2 &of_up) {
    const __half2 half = __float2half2_rn(0.5f), finite = half_two_finite(gate.x, gate.y);
    const __half2 sigma = __hfma2(half_tanh(__hmul2(finite, half)), half, half);
    const __half2 slope =
        __hfma2(__hmul2(finite, sigma), __hsub2(__float2half2_rn(1), sigma), sigma);
    of_up = {gate.x * __low2float(sigma), gate.y * __high2float(sigma)};
    of_gate = {up.x * __low2float(slope), up.y * __high2float(slope)};
  }
};
DEFINE_PROGRAM(SwigluBackwardFp8, swiglu_backward_fp8)
