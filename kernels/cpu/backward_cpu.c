#include "kernels/cpu/cpu.h"

#include <string.h>

static real dot(const real *a, const real *b, int64_t n) {
  real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

void cpu_norm_dgrad(Backend *be, int64_t M, int64_t N, Operand dz, Operand W, Operand x_,
                    RowStat sumsq, RowStat s_, const act_t *residual, Operand dx_) {
  const OpsConfig *c = &cpu_of(be)->config;
  const int64_t D = c->D;
  const real *x = reals(x_.data), *s = reals(s_.data);
  real *dx = reals(dx_.data);
  if (residual && residual != dx_.data) memcpy(dx, residual, (size_t)(M * D) * sizeof(real));
  gemm(GEMM_NN, M, D, N, reals(dz.data), reals(W.data), residual ? 1 : 0, dx);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real factor = row_rstd(c, sumsq, m) / (real)D * s[m];
    for (int64_t k = 0; k < D; k++) dx[m * D + k] -= factor * x[m * D + k];
  }
}

void cpu_down_dgrad(Backend *be, int64_t M, Operand dx, Operand W, const act_t *z_, Operand x,
                    RowStat sumsq, Operand dz_, RowStat *s_) {
  Cpu *cpu = cpu_of(be);
  const OpsConfig *c = &cpu->config;
  const int64_t F = c->F;
  const real *z = reals(z_);
  real *dz = reals(dz_.data), *s = sums_of(s_), *dy = cpu->dy;
  (void)x;
  gemm(GEMM_NN, M, F, c->D, reals(dx.data), reals(W.data), 0, dy);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real r = row_rstd(c, sumsq, m);
    real product = 0;
    for (int64_t p = 0; p < F; p++) {
      const int64_t f = feature_of_pair(p, F), at = m * 2 * F + 2 * p;
      const real gate = z[at], up = z[at + 1];
      real dgate, dup;
      swiglu_backward(gate, up, dy[m * F + f], &dgate, &dup);
      dz[at] = r * dgate;
      dz[at + 1] = r * dup;
      product += dz[at] * gate + dz[at + 1] * up;
    }
    s[m] = product;
  }
}

void cpu_dgrad(Backend *be, int64_t M, int64_t K, Operand dy, Operand W, act_t *da) {
  gemm(GEMM_NN, M, K, cpu_of(be)->config.D, reals(dy.data), reals(W.data), 0, reals(da));
}

void cpu_rope_backward(Backend *be, int64_t M, int64_t T, act_t *dqkv_, const act_t *qkv_,
                       Operand x, RowStat sumsq, Operand out, RowStat *s_) {
  (void)x, (void)out;
  const Cpu *cpu = cpu_of(be);
  const OpsConfig *c = &cpu->config;
  const int64_t R = packed_width(c), rotated = (c->H + c->KV) * c->d, half = c->d / 2;
  real *dqkv = reals(dqkv_), *s = sums_of(s_);
  const real *qkv = reals(qkv_);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real r = row_rstd(c, sumsq, m);
    const real *angle = cpu->rope + m % T * half * 2;
    real *row = dqkv + m * R;
    for (int64_t i = 0; i < R; i++) row[i] *= r;
    s[m] = dot(row, qkv + m * R, R);
    for (int64_t head = 0; head < rotated; head += c->d)
      for (int64_t j = 0; j < half; j++)
        rope_rotate(row + head + 2 * j, row + head + 2 * j + 1, angle[2 * j], -angle[2 * j + 1]);
  }
}

void cpu_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x, grad_t *dW,
               bool accumulate) {
  (void)be;
  gemm_strided(GEMM_TN, N, K, M, 1, reals(dz.data), dz.row_stride ? dz.row_stride : N,
               reals(x.data), K, accumulate ? 1 : 0, reals(dW), K);
}

void cpu_embed_backward(Backend *be, int64_t M, const int32_t *tokens, const act_t *dx_,
                        grad_t *dE_, bool accumulate) {
  const OpsConfig *c = &cpu_of(be)->config;
  const int64_t D = c->D, slice = 64;
  const real *dx = reals(dx_);
  real *dE = reals(dE_);
  if (!accumulate) memset(dE, 0, (size_t)(c->V * D) * sizeof(real));
// Threads share out the columns, so that each sum runs over the tokens in order, whatever the
// number of threads.
#pragma omp parallel for schedule(static)
  for (int64_t k0 = 0; k0 < D; k0 += slice) {
    const int64_t k1 = k0 + slice < D ? k0 + slice : D;
    for (int64_t m = 0; m < M; m++)
      for (int64_t k = k0; k < k1; k++) dE[tokens[m] * D + k] += dx[m * D + k];
  }
}
