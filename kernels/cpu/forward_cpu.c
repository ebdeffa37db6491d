#include "kernels/cpu/cpu.h"

#include <string.h>

static real row_sum_of_squares(const real *x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
  return (real)sum;
}

void cpu_embed(Backend *be, int64_t M, const int32_t *tokens, const act_t *E_, Operand x_,
               RowStat *sumsq_) {
  Cpu *cpu = cpu_of(be);
  const int64_t D = cpu->config.D;
  const real *E = reals(E_);
  real *x = reals(x_.data), *sumsq = sums_of(sumsq_);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    memcpy(x + m * D, E + tokens[m] * D, (size_t)D * sizeof(real));
    sumsq[m] = row_sum_of_squares(x + m * D, D);
  }
  leave_row_scales(cpu, M, x_, *sumsq_);
  leave_copies(cpu, M, D, x_, x);
}

void cpu_qkv(Backend *be, int64_t M, int64_t T, int64_t first, Operand x, RowStat sumsq, Operand W,
             act_t *qkv_) {
  const Cpu *cpu = cpu_of(be);
  const OpsConfig *c = &cpu->config;
  const int64_t R = packed_width(c), rotated = (c->H + c->KV) * c->d, half = c->d / 2;
  real *qkv = reals(qkv_);
  multiply(cpu, GEMM_NT, M, R, c->D, x, W, 0, qkv, R);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real r = row_factor(c, x, sumsq, m);
    const real *angle = cpu->rope + (first + m % T) * half * 2;
    real *row = qkv + m * R;
    for (int64_t i = 0; i < R; i++) row[i] *= r;
    for (int64_t head = 0; head < rotated; head += c->d)
      for (int64_t j = 0; j < half; j++)
        rope_rotate(row + head + 2 * j, row + head + 2 * j + 1, angle[2 * j], angle[2 * j + 1]);
  }
}

void cpu_residual(Backend *be, int64_t M, int64_t K, Operand a, Operand W, const act_t *x,
                  RowStat x_sumsq, Operand out_, RowStat *sumsq_) {
  Cpu *cpu = cpu_of(be);
  const int64_t D = cpu->config.D;
  real *out = reals(out_.data), *sumsq = sums_of(sumsq_);
  memcpy(out, x, (size_t)(M * D) * sizeof(real));
  multiply(cpu, GEMM_NT, M, D, K, a, W, 1, out, D);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) sumsq[m] = row_sum_of_squares(out + m * D, D);
  leave_row_scales(cpu, M, out_, x_sumsq);
  leave_copies(cpu, M, D, out_, out);
}

void cpu_gate_up(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *z_,
                 Operand y_) {
  Cpu *cpu = cpu_of(be);
  const OpsConfig *c = &cpu->config;
  const int64_t F = c->F;
  real *z = reals(z_), *y = values_of(y_);
  multiply(cpu, GEMM_NT, M, 2 * F, c->D, x, W, 0, z, 2 * F);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real r = row_factor(c, x, sumsq, m);
    real *row = z + m * 2 * F;
    for (int64_t p = 0; p < F; p++) {
      row[2 * p] *= r;
      row[2 * p + 1] *= r;
      y[m * F + feature_of_pair(p, F)] = swiglu(row[2 * p], row[2 * p + 1]);
    }
  }
  leave_copies(cpu, M, F, y_, y);
}
