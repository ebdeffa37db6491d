// gpt-oss's SwiGLU: (up + 1) gate sigmoid(1.702 gate), gate at most 7, up within -7 and 7.
//   The operands are those of Gated and GatedBackward (kernels/fused/bases.cuh).
#include "kernels/fused/define.cuh"

template <class In> struct ClampedSwiglu : Gated<ClampedSwiglu<In>, In> {
  static constexpr int STATIC_COLS = In::COPIES ? 192 : 0;
  static DEVICE float activation(float gate, float up) {
    const float g = clamp_with_nan(gate, -INFINITY, 7), u = clamp_with_nan(up, -7, 7);
    return (u + 1) * g * sigmoid(1.702f * g);
  }
};
DEFINE_PROGRAM(ClampedSwiglu<Bf16>, clamped_swiglu)
DEFINE_PROGRAM(ClampedSwiglu<E4m3<>>, clamped_swiglu_fp8)

template <class In> struct ClampedSwigluBackward : GatedBackward<ClampedSwigluBackward<In>, In> {
  static constexpr int STATIC_COLS = In::COPIES ? 0 : 192;
  static DEVICE float2 gradient(float gate, float up, float dy) {
    const float g = clamp_with_nan(gate, -INFINITY, 7), u = clamp_with_nan(up, -7, 7);
    const float s = sigmoid(1.702f * g), slope = dy * s;
    return {gate > 7 ? 0 : slope * (u + 1) * (1 + 1.702f * g * (1 - s)),
            fabsf(up) > 7 ? 0 : slope * g};
  }
};
DEFINE_PROGRAM(ClampedSwigluBackward<Bf16>, clamped_swiglu_backward)
DEFINE_PROGRAM(ClampedSwigluBackward<E4m3<>>, clamped_swiglu_backward_fp8)
