// The gradient of a weight that is used plain: attention's output and the MLP's down projection.
//   stores[0] dW [M, N]   args.squares
#include "kernels/fused/wgrad.cuh"

#include "kernels/fused/define.cuh"

using Wgrad = WgradOf<false>;
DEFINE_PROGRAM(Wgrad, wgrad)
