// The SwiGLU's backward on top of down's dgrad: dz' = r (dy d(silu(gate) up)), dy = A B.
//   args.in[0] sums of squares of the forward's A, inverse_D, eps, out[0] s = row sums of dz' z
//   loads[0] z [M, 2 N]   stores[0] dz' [M, 2 N], may be z
#include "kernels/fused/define.cuh"

struct SwigluBackward : GatedBackward<SwigluBackward> {
  static DEVICE float2 gradient(float gate, float up, float dy) {
    float2 dz;
    swiglu_backward(gate, up, dy, &dz.x, &dz.y);
    return dz;
  }
};
DEFINE_PROGRAM(SwigluBackward, swiglu_backward)
