#include "kernels/cpu/cpu.h"

#include <string.h>

VECTORS static real dot(const real *a, const real *b, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
  return (real)sum;
}

void finish_norm_dgrad(Cpu *cpu, int64_t M, Operand x_, RowStat sumsq, RowStat s_, Operand dx_) {
  const int64_t D = cpu->base.spec.D;
  const real *x = reals(x_.data), *s = reals(s_.data);
  real *dx = reals(dx_.data);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real q = scale_of_row(x_, m),
               factor = row_rstd(&cpu->base.spec, sumsq, m) / (real)D * s[m];
    for (int64_t k = m * D; k < (m + 1) * D; k++) dx[k] = q * (dx[k] - factor * x[k]);
  }
  quantize(cpu, M, D, dx_, dx);
}

void cpu_norm_dgrad(Backend *be, int64_t M, int64_t N, Operand dz, Operand W, Operand x,
                    RowStat sumsq, RowStat s, const act_t *residual, Operand dx_) {
  Cpu *cpu = cpu_of(be);
  const int64_t D = cpu->base.spec.D;
  real *dx = reals(dx_.data);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < (residual ? M : 0); m++) {
    const real per_q = 1 / scale_of_row(x, m);
    for (int64_t k = m * D; k < (m + 1) * D; k++) dx[k] = per_q * reals(residual)[k];
  }
  multiply(cpu, GEMM_NN, M, D, N, dz, W, residual != NULL, dx, D);
  finish_norm_dgrad(cpu, M, x, sumsq, s, dx_);
}

// dz'' [2 F] of one row from dy [F] and z, times r; returns the sum of its products with z. dz''
// may be z. The values of dy for each pair are first put side by side, as the activation was.
VECTORS static real swiglu_backward_row(int64_t F, real r, const real *z, const real *dy,
                                        real *dz) {
  double product = 0;
  for (int64_t p0 = 0; p0 < F; p0 += PAIR_BLOCK) {
    const int64_t pairs = F - p0 < PAIR_BLOCK ? F - p0 : PAIR_BLOCK, grouped = pairs / 8 * 8;
    const real *from = dy + p0;
    real asked[PAIR_BLOCK];
    for (int64_t i = 0; i < grouped; i++) asked[i] = from[i / 8 * 8 + feature_of_pair(i % 8, 8)];
    for (int64_t i = grouped; i < pairs; i++) asked[i] = from[i];
#pragma omp simd reduction(+ : product)
    for (int64_t i = 0; i < pairs; i++) {
      const real gate = z[2 * (p0 + i)], up = z[2 * (p0 + i) + 1];
      real dgate, dup;
      swiglu_backward(gate, up, asked[i], &dgate, &dup);
      dz[2 * (p0 + i)] = dgate *= r;
      dz[2 * (p0 + i) + 1] = dup *= r;
      product += (double)dgate * (double)gate + (double)dup * (double)up;
    }
  }
  return (real)product;
}

void cpu_down_dgrad(Backend *be, int64_t M, Operand dx, Operand W, const act_t *z_, Operand x,
                    RowStat sumsq, Operand dz_, RowStat *s_) {
  Cpu *cpu = cpu_of(be);
  const Spec *c = &cpu->base.spec;
  const int64_t F = c->F;
  const real *z = reals(z_);
  real *dz = values_of(dz_), *s = sums_of(s_), *dy = cpu->dy;
  multiply(cpu, GEMM_NN, M, F, c->D, dx, W, false, dy, F);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real r = row_factor(c, x, sumsq, m);
    s[m] = swiglu_backward_row(F, r, z + m * 2 * F, dy + m * F, dz + m * 2 * F);
  }
  quantize(cpu, M, 2 * F, dz_, dz);
}

void cpu_dgrad(Backend *be, int64_t M, int64_t K, Operand dy, Operand W, act_t *da) {
  const Cpu *cpu = cpu_of(be);
  multiply(cpu, GEMM_NN, M, K, cpu->base.spec.D, dy, W, false, reals(da), K);
}

void cpu_rope_backward(Backend *be, int64_t M, int64_t T, act_t *dqkv_, const act_t *qkv_,
                       Operand x, RowStat sumsq, Operand out, RowStat *s_) {
  Cpu *cpu = cpu_of(be);
  const Spec *c = &cpu->base.spec;
  const int64_t R = packed_width(c), rotated = (c->H + c->KV) * c->d;
  real *dqkv = reals(dqkv_), *s = sums_of(s_);
  const real *qkv = reals(qkv_);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real r = row_factor(c, x, sumsq, m);
    real *row = dqkv + m * R;
    scale_row(R, r, row);
    s[m] = dot(row, qkv + m * R, R);
    rotate_heads(rotated, c->d, cpu->rope + m % T * c->d, -1, row);
  }
  quantize(cpu, M, R, out, dqkv);
}

void cpu_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x, grad_t *dW,
               bool accumulate) {
  multiply(cpu_of(be), GEMM_TN, N, K, M, dz, x, accumulate, reals(dW), K);
}

void cpu_head_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x,
                    stat_t *sum, bool add, grad_t *dW) {
  cpu_wgrad(be, M, N, K, dz, x, sum ? (grad_t *)sum : dW, add);
  if (sum && dW) memcpy(dW, sum, (size_t)(N * K) * sizeof(real));
}

void cpu_embed_backward(Backend *be, int64_t M, const int32_t *tokens, const act_t *dx_,
                        grad_t *dE_, bool accumulate) {
  const Spec *c = &be->spec;
  const int64_t D = c->D, slice = 64;
  const real *dx = reals(dx_);
  real *dE = reals(dE_);
  if (!accumulate) memset(dE, 0, (size_t)(c->V * D) * sizeof(real));
// Threads divide the columns among them, so that each sum runs over the tokens in order for any
// number of threads.
#pragma omp parallel for schedule(static)
  for (int64_t k0 = 0; k0 < D; k0 += slice) {
    const int64_t k1 = k0 + slice < D ? k0 + slice : D;
    for (int64_t m = 0; m < M; m++)
      for (int64_t k = k0; k < k1; k++) dE[tokens[m] * D + k] += dx[m * D + k];
  }
}
