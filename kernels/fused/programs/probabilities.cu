// The head in training and validation: P = exp(r (A B^T) - c), the softmax before its normaliser.
//   args.in[0] sums of squares of A's rows, in[1] aims of rows (head.h), inverse_D, eps
//   stores[0] P [M, N or more columns, which become 0]   out[0] sums of P, out[1] of P log2(P)
#include "kernels/fused/define.cuh"
#include "kernels/fused/probabilities.cuh"

DEFINE_PROGRAM(Probabilities, probabilities)
