// The bare product of A [M, K] and B [N, K], rounded to bf16: what a program without an epilogue
// costs.
//   stores[0] [M, N]
#include "kernels/fused/define.cuh"
#include "kernels/fused/plain.cuh"

struct PlainNt : Plain {};
DEFINE_PROGRAM(PlainNt, plain_nt)
