// qkv = r (A B^T), then the pairs of the q and k heads rotated by their row's position: arXiv
// 2104.09864.
//   args.in[0] sums of squares of A's rows, inverse_D, eps, params (rope.h)
//   stores[0] qkv [M, N]
//   loads[0] cosines and sines of pairs as fp16, [positions, columns]: row p holds, at columns c
//   and c + 1, those of position p and of the pair at c % head_dim. A step takes 64 x 64 of it, so
//   rows up to first + period + 62 and columns up to head_dim + 63 are read; beyond may lie
//   anything.
#include "kernels/fused/define.cuh"
#include "kernels/fused/rope.cuh"

DEFINE_PROGRAM(Rope, rope)
