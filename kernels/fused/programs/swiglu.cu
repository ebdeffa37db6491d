// z = r (A B^T), y = silu(gate) up of z's column pairs as stored: arXiv 2002.05202.
//   args.in[0] sums of squares of A's rows, inverse_D, eps   stores[0] z [M, N]
//   stores[1] y [M, N / 2]
#include "kernels/fused/define.cuh"

struct Swiglu : Gated<Swiglu> {
  static DEVICE float activation(float gate, float up) {
    return swiglu(gate, up);
  }
};
DEFINE_PROGRAM(Swiglu, swiglu)
