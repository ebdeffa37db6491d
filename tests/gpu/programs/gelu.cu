// The GELU by its tanh formula, x / 2 (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3); and
// since tanh(u) = 2 sigmoid(2 u) - 1, that is x sigmoid(2 u).
#include "kernels/fused/define.cuh"

static DEVICE float gelu_sigmoid(float x) {
  return sigmoid(1.5957691f * x * (1 + 0.044715f * x * x));
}
// The derivative, where the sigmoid is s.
static DEVICE float gelu_slope(float x, float s) {
  return s + x * s * (1 - s) * (1.5957691f * (1 + 0.134145f * x * x));
}

// ---- Gated, in place of the SwiGLU: arXiv 2002.05202
//   The operands are those of Gated and GatedBackward (kernels/fused/bases.cuh).
struct Geglu : Gated<Geglu> {
  static DEVICE float activation(float gate, float up) {
    return gate * gelu_sigmoid(gate) * up;
  }
};
DEFINE_PROGRAM(Geglu, geglu)

struct GegluBackward : GatedBackward<GegluBackward, Bf16, 4> {
  static DEVICE float2 gradient(float gate, float up, float dy) {
    const float s = gelu_sigmoid(gate);
    return {dy * up * gelu_slope(gate, s), dy * gate * s};
  }
};
DEFINE_PROGRAM(GegluBackward, geglu_backward)

// ---- With a bias, as GPT-2 has it: z = A B^T + b, y = gelu(z) of z as stored.
//   args.columns[0] b [N]   stores[0] z [M, N]   stores[1] y [M, N]
struct BiasGelu : Pairs<BiasGelu> {
  using Stores = Chunks<64, 64>;
  using ColumnValues = Vectors<float>;

  template <class S> DEVICE uint2 pair(const S &s, int i, float2 v) const {
    const float2 b = s.column_values(i);
    const uint32_t z = bf16_two(v.x + b.x, v.y + b.y);
    const float x = bf16_low(z), y = bf16_high(z);
    return {z, bf16_two(x * gelu_sigmoid(x), y * gelu_sigmoid(y))};
  }
};
DEFINE_PROGRAM(BiasGelu, bias_gelu)

// Its backward on top of a dgrad: dz = A B gelu'(z), and the bias gradient.
//   loads[0] z [M, N]   stores[0] dz [M, N], may be z
//   args.out[0] sums of dz's columns (ColumnSum)
struct BiasGeluBackward : Pairs<BiasGeluBackward> {
  static constexpr GemmForm FORM = GEMM_NN;
  using Loads = Chunks<64>;
  ColumnSum bias;

  template <class S> DEVICE uint32_t pair(const S &s, int i, float2 v, uint32_t z) {
    const float x = bf16_low(z), y = bf16_high(z);
    const float2 dz = {v.x * gelu_slope(x, gelu_sigmoid(x)), v.y * gelu_slope(y, gelu_sigmoid(y))};
    bias.add(s, i, dz, s.block.args.out[0]);
    return bf16_two(dz.x, dz.y);
  }
};
DEFINE_PROGRAM(BiasGeluBackward, bias_gelu_backward)
