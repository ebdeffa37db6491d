// The SwiGLU's backward on top of down's dgrad, which makes y again.
//   args.sumsq, inverse_D, eps, sums   loads[0] z [M, 2 N]   stores[0] dz' [M, 2 N], may be z
//   stores[1] y [M, N]
#include "kernels/fused/define.cuh"
#include "kernels/fused/swiglu_backward.cuh"

struct SwigluBackwardY : SwigluBackwardOf<true> {};
DEFINE_PROGRAM(SwigluBackwardY, swiglu_backward_y)
