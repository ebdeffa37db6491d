// GEMMs, and the operations that are nothing else.
#include "kernels/cuda/cuda.h"
#include "kernels/record.h"

// Of a forward. A sum of one sign is 6 % short there where the tensor cores add alone.
enum { MOST_FAST_K = 4096 };

static int64_t whole_groups(int64_t n) {
  return (n + FP8_GROUP - 1) / FP8_GROUP * FP8_GROUP;
}

// The same product of FP8 copies, whose rows are along K, and padded: lda, ldb of the copies.
static GemmProblem of_copies(GemmProblem p, int64_t lda, int64_t ldb) {
  p.formats = GEMM_E4M3;
  p.form = GEMM_NT;
  p.N = whole_groups(p.N);
  p.K = whole_groups(p.K);
  p.lda = lda;
  p.ldb = ldb;
  return p;
}

// As the operations below and the unfused ones ask for it.
static bool is_accurate(const OperationCall *call) {
  return call->form == GEMM_NT ? call->K > MOST_FAST_K : call->operation != OP_OUT_DGRAD;
}

// What norm_dgrad adds comes behind a factor of each row where the operands are FP8.
GemmProblem cuda_problem_of(const Cuda *c, const OperationCall *call) {
  const bool added_later = call->fp8 && call->form == GEMM_NN;
  const GemmProblem p = {.M = call->M,
                         .N = call->N,
                         .K = call->K,
                         .form = call->form,
                         .accurate = call->fp8 && is_accurate(call),
                         .out_fp32 =
                             call->out_is_sum || (call->out_is_gradient && c->options.grads_fp32),
                         .add = call->add && !added_later,
                         .alignment = 16,
                         .lda = call->lda,
                         .ldd = call->ldd};
  return call->fp8 ? of_copies(p, call->lda, call->ldb) : p;
}

void cuda_multiply(Cuda *c, GemmProblem p, Operand A, Operand B, const void *add, void *out) {
  p.add = add != NULL;
  if (!A.by_row || !B.by_row) {
    p.accurate = false;
    p.lda = A.row_stride;
    gemm_run(&c->gemm, p, A.data, B.data, add, out);
    return;
  }
  const bool A_by_col = p.form == GEMM_TN, B_by_row = p.form == GEMM_NT;
  p = of_copies(p, A_by_col ? A.stride : A.row_stride, B_by_row ? 0 : B.stride);
  gemm_run_fp8(&c->gemm, p, A_by_col ? A.by_col : A.by_row, &c->scalings[A.scaling].inverse,
               B_by_row ? B.by_row : B.by_col, &c->scalings[B.scaling].inverse, add, out);
}

void cuda_forward(Cuda *c, int64_t M, int64_t N, int64_t K, Operand a, Operand W, const act_t *add,
                  act_t *out, int64_t stride) {
  if (cuda_one_row(c, M)) {
    cuda_gemv(c, N, K, a, W, add, NULL, out);
    return;
  }
  const GemmProblem p = {
      .M = M, .N = N, .K = K, .form = GEMM_NT, .accurate = K > MOST_FAST_K, .ldd = stride};
  cuda_multiply(c, p, a, W, add, out);
}

void cuda_gemv(Cuda *c, int64_t N, int64_t K, Operand a, Operand W, const act_t *add,
               const int32_t *row, act_t *out) {
  if (a.by_row && W.by_row)
    launch_gemv_fp8(N, K, a.by_row, &c->scalings[a.scaling], W.by_row, &c->scalings[W.scaling], add,
                    row, out, c->gpu.stream);
  else
    launch_gemv(N, K, a.data, W.data, add, row, out, c->gpu.stream);
}

void cuda_dgrad(Backend *be, int64_t M, int64_t K, Operand dy, Operand W, act_t *da) {
  Cuda *c = cuda_of(be);
  const GemmProblem p = {.M = M, .N = K, .K = c->config.D, .form = GEMM_NN};
  cuda_multiply(c, p, dy, W, NULL, da);
}

void cuda_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x, grad_t *dW,
                bool accumulate) {
  Cuda *c = cuda_of(be);
  const GemmProblem p = {
      .M = N, .N = K, .K = M, .form = GEMM_TN, .accurate = true, .out_fp32 = c->options.grads_fp32};
  cuda_multiply(c, p, dz, x, accumulate ? dW : NULL, dW);
}

void cuda_wgrad_part(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x,
                     stat_t *sum, bool add, grad_t *dW) {
  Cuda *c = cuda_of(be);
  const GemmProblem p = {
      .M = N, .N = K, .K = M, .form = GEMM_TN, .accurate = true, .out_fp32 = true};
  cuda_multiply(c, p, dz, x, add ? sum : NULL, sum);
  if (dW) cuda_round_gradient(c, N * K, sum, dW);
}
