#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

VECTORS double row_sum_of_squares(int64_t n, const real *values) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += (double)values[i] * (double)values[i];
  return sum;
}

VECTORS void scale_row(int64_t n, real factor, real *values) {
  for (int64_t i = 0; i < n; i++) values[i] *= factor;
}

VECTORS void rotate_heads(int64_t columns, int64_t d, const real *angles, real direction,
                          real *row) {
  for (int64_t head = 0; head < columns; head += d)
    for (int64_t j = 0; j < d; j += 2)
      rope_rotate(row + head + j, row + head + j + 1, angles[j], direction * angles[j + 1]);
}

VECTORS real row_largest(int64_t n, const real *values) {
  real largest = -INFINITY;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; i++) largest = values[i] > largest ? values[i] : largest;
  return largest;
}

void cpu_embed(Backend *be, int64_t M, const int32_t *tokens, const act_t *E_, Operand x_,
               RowStat *sumsq_) {
  Cpu *cpu = cpu_of(be);
  const int64_t D = cpu->base.spec.D;
  const real *E = reals(E_);
  real *x = reals(x_.data), *sumsq = sums_of(sumsq_);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    memcpy(x + m * D, E + tokens[m] * D, (size_t)D * sizeof(real));
    sumsq[m] = (real)row_sum_of_squares(D, x + m * D);
  }
  leave_row_scales(cpu, M, x_, *sumsq_);
  quantize(cpu, M, D, x_, x);
}

void cpu_qkv(Backend *be, int64_t M, int64_t T, int64_t first, Operand x, RowStat sumsq, Operand W,
             act_t *qkv_) {
  const Cpu *cpu = cpu_of(be);
  const Spec *c = &cpu->base.spec;
  const int64_t R = packed_width(c), rotated = (c->H + c->KV) * c->d;
  real *qkv = reals(qkv_);
  multiply(cpu, GEMM_NT, M, R, c->D, x, W, false, qkv, R);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real r = row_factor(c, x, sumsq, m);
    real *row = qkv + m * R;
    scale_row(R, r, row);
    rotate_heads(rotated, c->d, cpu->rope + (first + m % T) * c->d, 1, row);
  }
}

void cpu_residual(Backend *be, int64_t M, int64_t K, Operand a, Operand W, const act_t *x,
                  RowStat x_sumsq, Operand out_, RowStat *sumsq_) {
  Cpu *cpu = cpu_of(be);
  const int64_t D = cpu->base.spec.D;
  real *out = reals(out_.data), *sumsq = sums_of(sumsq_);
  memcpy(out, x, (size_t)(M * D) * sizeof(real));
  multiply(cpu, GEMM_NT, M, D, K, a, W, true, out, D);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) sumsq[m] = (real)row_sum_of_squares(D, out + m * D);
  leave_row_scales(cpu, M, out_, x_sumsq);
  quantize(cpu, M, D, out_, out);
}

// z [2 F] of one row is multiplied by r; y [F] is its activation, which is computed on pairs side
// by side and put in order afterwards, so that both loops become vector instructions.
VECTORS static void swiglu_row(int64_t F, real r, real *z, real *y) {
  for (int64_t p0 = 0; p0 < F; p0 += PAIR_BLOCK) {
    const int64_t pairs = F - p0 < PAIR_BLOCK ? F - p0 : PAIR_BLOCK, grouped = pairs / 8 * 8;
    real made[PAIR_BLOCK], *block = z + 2 * p0, *to = y + p0;
    for (int64_t i = 0; i < 2 * pairs; i++) block[i] *= r;
    for (int64_t i = 0; i < pairs; i++) made[i] = swiglu(block[2 * i], block[2 * i + 1]);
    for (int64_t i = 0; i < grouped; i++) to[i] = made[i / 8 * 8 + pair_of_feature(i % 8, 8)];
    for (int64_t i = grouped; i < pairs; i++) to[i] = made[i];
  }
}

void cpu_gate_up(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *z_,
                 Operand y_) {
  Cpu *cpu = cpu_of(be);
  const Spec *c = &cpu->base.spec;
  const int64_t F = c->F;
  real *z = reals(z_), *y = values_of(y_);
  multiply(cpu, GEMM_NT, M, 2 * F, c->D, x, W, false, z, 2 * F);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real r = row_factor(c, x, sumsq, m);
    swiglu_row(F, r, z + m * 2 * F, y + m * F);
  }
  quantize(cpu, M, F, y_, y);
  if (!y_.by_row) return;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < M * 2 * F; i++)
    z[i] = Z_DIVISOR * fp8_round(FP8_E4M3, (float)z[i] / Z_DIVISOR);
}
