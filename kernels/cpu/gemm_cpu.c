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
