// The SwiGLU's backward on top of down's dgrad, where the forward's y was kept.
//   args.sumsq, inverse_D, eps, sums   loads[0] z [M, 2 N]   stores[0] dz' [M, 2 N], may be z
#include "kernels/fused/define.cuh"
#include "kernels/fused/swiglu_backward.cuh"

struct SwigluBackward : SwigluBackwardOf<false> {};
DEFINE_PROGRAM(SwigluBackward, swiglu_backward)
