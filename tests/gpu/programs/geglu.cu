// The gated GELU, forward and backward, in place of the SwiGLU: arXiv 2002.05202. The GELU by its
// tanh formula, x / 2 (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3); and since
// tanh(u) = 2 sigmoid(2 u) - 1, that is x sigmoid(2 u).
//   The operands are those of Gated and GatedBackward (kernels/fused/bases.cuh).
#include "kernels/fused/define.cuh"

static DEVICE float gelu_sigmoid(float x) {
  return sigmoid(1.5957691f * x * (1 + 0.044715f * x * x));
}

struct Geglu : Gated<Geglu> {
  static DEVICE float activation(float gate, float up) {
    return gate * gelu_sigmoid(gate) * up;
  }
};
DEFINE_PROGRAM(Geglu, geglu)

struct GegluBackward : GatedBackward<GegluBackward, Bf16, 4> {
  static DEVICE float2 gradient(float gate, float up, float dy) {
    const float s = gelu_sigmoid(gate), gelu = gate * s;
    const float slope = 1.5957691f * (1 + 0.134145f * gate * gate); // of 2 u
    return {dy * up * (s + gelu * (1 - s) * slope), dy * gelu};
  }
};
DEFINE_PROGRAM(GegluBackward, geglu_backward)
