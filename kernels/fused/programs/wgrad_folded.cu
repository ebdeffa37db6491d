// The gradient of a weight that a norm weight is folded into: qkv, gate_up and lm_head.
//   loads[0] W' [M, N]   stores[0] dW [M, N]   args.norm, column_sums, squares
#include "kernels/fused/wgrad.cuh"

#include "kernels/fused/define.cuh"

using WgradFolded = WgradOf<true>;
DEFINE_PROGRAM(WgradFolded, wgrad_folded)
