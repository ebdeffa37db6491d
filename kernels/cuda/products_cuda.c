// GEMMs, and the operations that are nothing else.
#include "kernels/cuda/cuda.h"

void cuda_gemm(Cuda *c, GemmForm form, int64_t M, int64_t N, int64_t K, const act_t *A,
               const act_t *B, const act_t *add, act_t *out) {
  if (form == GEMM_NT && cuda_one_row(c, M)) {
    launch_gemv(N, K, A, B, add, NULL, out, c->gpu.stream);
    return;
  }
  const GemmProblem p = {.M = M, .N = N, .K = K, .form = form, .add = add != NULL};
  gemm_run(&c->gemm, p, A, B, add, out);
}

void cuda_dgrad(Backend *be, int64_t M, int64_t K, Operand dy, Operand W, act_t *da) {
  Cuda *c = cuda_of(be);
  cuda_gemm(c, GEMM_NN, M, K, c->config.D, dy.data, W.data, NULL, da);
}

void cuda_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x, grad_t *dW,
                bool accumulate) {
  Cuda *c = cuda_of(be);
  const GemmProblem p = {.M = N,
                         .N = K,
                         .K = M,
                         .form = GEMM_TN,
                         .out_fp32 = c->options.grads_fp32,
                         .add = accumulate};
  gemm_run(&c->gemm, p, dz.data, x.data, dW, dW);
}
