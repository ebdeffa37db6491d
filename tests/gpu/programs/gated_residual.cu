// A residual stream with a gate for each column, as Flamingo has it (arXiv 2204.14198):
// out = x + tanh(g) f, f = A B^T.
//   args.columns[0] g [N] fp32   loads[0] x [M, N]   stores[0] out [M, N], may be x
//   stores[1] f [M, N]
#include "kernels/fused/define.cuh"

struct Tanh {
  static constexpr int COUNT = 1;
  static DEVICE void compute(const ProgramArgs &args, int column, float (&values)[COUNT]) {
    Vectors<float>::compute(args, column, values);
    values[0] = 2 * sigmoid(2 * values[0]) - 1;
  }
};

struct GatedResidual : Pairs<GatedResidual> {
  using Loads = Chunks<64>;
  using Stores = Chunks<64, 64>;
  using ColumnValues = Tanh;

  template <class S> DEVICE uint2 pair(const S &s, int i, float2 v, uint32_t x) const {
    const float2 t = s.column_values(i);
    const uint32_t f = bf16_two(v.x, v.y);
    return {bf16_two(fmaf(t.x, bf16_low(f), bf16_low(x)), fmaf(t.y, bf16_high(f), bf16_high(x))),
            f};
  }
};
DEFINE_PROGRAM(GatedResidual, gated_residual)

// Its backward on top of a dgrad, to which out's other gradient d is added: dout = A B + d,
// df = tanh(g) dout; and the gradient of g, the sum over rows of (1 - tanh(g)^2) dout f.
//   args.columns[0] g [N]   loads[0] d [M, N]   loads[1] f [M, N]   stores[0] dout [M, N], may be d
//   stores[1] df [M, N], may be f   args.out[0] parts of g's gradient (ColumnSum)
struct GatedResidualBackward : Pairs<GatedResidualBackward> {
  static constexpr GemmForm FORM = GEMM_NN;
  using Loads = Chunks<64, 64>;
  using Stores = Chunks<64, 64>;
  using ColumnValues = Tanh;
  ColumnSum gate;

  template <class S> DEVICE uint2 pair(const S &s, int i, float2 v, uint32_t d, uint32_t f) {
    const float2 t = s.column_values(i);
    const uint32_t dout = bf16_two(v.x + bf16_low(d), v.y + bf16_high(d));
    const float x = bf16_low(dout), y = bf16_high(dout);
    gate.add(s, i, {(1 - t.x * t.x) * x * bf16_low(f), (1 - t.y * t.y) * y * bf16_high(f)},
             s.block.args.out[0]);
    return {dout, bf16_two(t.x * x, t.y * y)};
  }
};
DEFINE_PROGRAM(GatedResidualBackward, gated_residual_backward)
