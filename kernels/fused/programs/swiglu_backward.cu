// The SwiGLU's backward on top of down's dgrad: dz' = r (dy d(silu(gate) up)), dy = A B.
//   The operands are those of GatedBackward (kernels/fused/bases.cuh).
#include "kernels/fused/define.cuh"

template <class In> struct SwigluBackward : GatedBackward<SwigluBackward<In>, In> {
  static DEVICE float2 gradient(float gate, float up, float dy) {
    float2 dz;
    swiglu_backward(gate, up, dy, &dz.x, &dz.y);
    return dz;
  }
  // For copies: the sigmoid, silu and its slope in fp16, whose 10 bits of mantissa are enough for
  // copies with 3.
  // Products of gate, up and dy stay in fp32: outliers of SwiGLU, which grow late in training, take
  // them beyond fp16.
  static DEVICE void gradients(__half2 gate, __half2 up, float2 dy, float2 &dz0, float2 &dz1) {
    const __half2 half = __float2half2_rn(0.5f);
    const __half2 sigma = __hfma2(half_tanh(__hmul2(gate, half)), half, half);
    const __half2 silu = __hmul2(gate, sigma),
                  slope = __hfma2(silu, __hsub2(__float2half2_rn(1), sigma), sigma);
    dz0 = {dy.x * (__low2float(up) * __low2float(slope)), dy.x * __low2float(silu)};
    dz1 = {dy.y * (__high2float(up) * __high2float(slope)), dy.y * __high2float(silu)};
  }
};
DEFINE_PROGRAM(SwigluBackward<Bf16>, swiglu_backward)
DEFINE_PROGRAM(SwigluBackward<E4m3<>>, swiglu_backward_fp8)
