#include <assert.h>
#include <cblas.h>

#include "kernels/cpu/cpu.h"

#ifdef REAL_IS_DOUBLE
#define real_gemm cblas_dgemm
#define real_gemv cblas_dgemv
#else
#define real_gemm cblas_sgemm
#define real_gemv cblas_sgemv
#endif

static blasint blas_int(int64_t n) {
  assert(n >= 0 && n <= INT32_MAX);
  return (blasint)n;
}

void gemm_strided(GemmForm form, int64_t M, int64_t N, int64_t K, real alpha, const real *A,
                  int64_t lda, const real *B, int64_t ldb, real beta, real *C, int64_t ldc) {
  if (M == 1 && form == GEMM_NT) { // generation: a matrix-vector product reads B at memory speed
    real_gemv(CblasRowMajor, CblasNoTrans, blas_int(N), blas_int(K), alpha, B, blas_int(ldb), A, 1,
              beta, C, 1);
    return;
  }
  real_gemm(CblasRowMajor, form == GEMM_TN ? CblasTrans : CblasNoTrans,
            form == GEMM_NT ? CblasTrans : CblasNoTrans, blas_int(M), blas_int(N), blas_int(K),
            alpha, A, blas_int(lda), B, blas_int(ldb), beta, C, blas_int(ldc));
}

void gemm(GemmForm form, int64_t M, int64_t N, int64_t K, const real *A, const real *B, real beta,
          real *C) {
  gemm_strided(form, M, N, K, 1, A, form == GEMM_TN ? M : K, B, form == GEMM_NT ? K : N, beta, C,
               N);
}

void multiply(const Cpu *cpu, GemmForm form, int64_t M, int64_t N, int64_t K, Operand A, Operand B,
              bool add, real *C, int64_t ldc) {
  const int64_t A_cols = form == GEMM_TN ? M : K, B_cols = form == GEMM_NT ? K : N;
  const int64_t lda = A.row_stride ? A.row_stride : A_cols,
                ldb = B.row_stride ? B.row_stride : B_cols;
  if (!A.by_row || !B.by_row) {
    const real *a = reals(A.data), *b = reals(B.data);
    if (!cpu->products || M == 1 ||
        bf16_product(cpu->products, form, M, N, K, a, lda, b, ldb, add, C, ldc) != 0)
      gemm_strided(form, M, N, K, 1, a, lda, b, ldb, add, C, ldc);
    return;
  }
  // Copies have what is summed over in their rows.
  const real alpha =
      1 / (real)cpu->scalings[A.scaling].state.scale / (real)cpu->scalings[B.scaling].state.scale;
  const bool A_by_col = form == GEMM_TN, B_by_col = form != GEMM_NT;
  gemm_strided(GEMM_NT, M, N, K, alpha, reals(A_by_col ? A.by_col : A.by_row),
               A_by_col ? A.stride : lda, reals(B_by_col ? B.by_col : B.by_row),
               B_by_col ? B.stride : ldb, add, C, ldc);
}
