#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

void cpu_logits(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *logits_) {
  const Cpu *cpu = cpu_of(be);
  const Spec *c = &cpu->base.spec;
  const int64_t V = c->V, stride = padded_vocab(c);
  real *logits = reals(logits_);
  multiply(cpu, GEMM_NT, M, V, c->D, x, W, false, logits, stride);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real r = row_factor(c, x, sumsq, m);
    scale_row(V, r, logits + m * stride);
  }
}

void cpu_row_logits(Backend *be, Operand x, RowStat sumsq, Operand W, act_t *logits) {
  cpu_logits(be, 1, x, sumsq, W, logits);
}

// The sum of exp(z - largest) over z [V].
VECTORS static double sum_of_powers(int64_t V, const real *z, real largest) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t v = 0; v < V; v++) sum += (double)real_exp(z[v] - largest);
  return sum;
}

static RowScore score_row(int64_t V, const real *z, int32_t target) {
  const real largest = row_largest(V, z);
  int64_t likeliest = 0;
  while (likeliest < V - 1 && !(z[likeliest] == largest)) likeliest++;
  return (RowScore){
      (float)((double)largest + log(sum_of_powers(V, z, largest)) - (double)z[target]),
      likeliest == target};
}

// Rows without a target are not multiplied: they are most rows of a long context.
void cpu_score_rows(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W,
                    const int32_t *targets, act_t *logits, RowScore *scores) {
  const Spec *c = &be->spec;
  for (int64_t m = 0, end; m < M; m = end) {
    for (end = m + 1; end < M && (targets[end] >= 0) == (targets[m] >= 0); end++) continue;
    if (targets[m] < 0) continue;
    cpu_logits(be, end - m, operand_from(be, x, m, c->D), row_stat_from(be, sumsq, m), W, logits);
#pragma omp parallel for schedule(static)
    for (int64_t i = m; i < end; i++)
      scores[i] = score_row(c->V, reals(logits) + (i - m) * padded_vocab(c), targets[i]);
  }
}

// z [V] of one row becomes factor * (softmax(z) - onehot(target)); returns the row sum of the two's
// product.
VECTORS static real row_gradient(real *z, int64_t V, int32_t target, real largest, double sum,
                                 real factor) {
  const real per_sum = (real)(1 / sum);
  const real to_target = z[target];
  double product = -(double)factor * (double)to_target;
#pragma omp simd reduction(+ : product)
  for (int64_t v = 0; v < V; v++) {
    const real dz = factor * real_exp(z[v] - largest) * per_sum;
    product += (double)dz * (double)z[v];
    z[v] = dz;
  }
  z[target] = factor * (real_exp(to_target - largest) * per_sum - 1);
  return (real)product;
}

void cpu_loss(Backend *be, int64_t M, Operand x, RowStat sumsq, const int32_t *targets,
              act_t *logits_, double scale, RowStat *s_) {
  Cpu *cpu = cpu_of(be);
  const Spec *c = &cpu->base.spec;
  const int64_t V = c->V;
  real *logits = reals(logits_), *s = s_ ? sums_of(s_) : NULL;
  double *row_loss = xmalloc((size_t)M * sizeof *row_loss);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    real *row = logits + m * padded_vocab(c);
    const bool counts = targets[m] >= 0;
    const real largest = row_largest(V, row);
    const double sum = sum_of_powers(V, row, largest);
    row_loss[m] = counts ? (double)largest + log(sum) - (double)row[targets[m]] : 0;
    if (!s) continue;
    s[m] = counts ? row_gradient(row, V, targets[m], largest, sum,
                                 row_factor(c, x, sumsq, m) * (real)scale)
                  : 0;
    for (int64_t v = counts ? V : 0; v < padded_vocab(c); v++) row[v] = 0;
  }
  double total = 0; // in order: the same bits for any number of threads
  for (int64_t m = 0; m < M; m++) total += row_loss[m];
  cpu->step.loss += scale * total;
  free(row_loss);
}

void cpu_head_loss(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W,
                   const int32_t *targets, act_t *logits, double scale, HeadGradient *g) {
  cpu_logits(be, M, x, sumsq, W, logits);
  cpu_loss(be, M, x, sumsq, targets, logits, scale, g ? &g->s : NULL);
  if (g) leave_dlogits_copies(cpu_of(be), M, g->p, reals(logits), scale);
}

void cpu_head_dgrad(Backend *be, int64_t M, const HeadGradient *g, Operand W, Operand x,
                    RowStat sumsq, Operand dx) {
  Cpu *cpu = cpu_of(be);
  const int64_t D = cpu->base.spec.D;
  multiply(cpu, GEMM_NN, M, D, cpu->base.spec.V, g->p, W, false, reals(dx.data), D);
  finish_norm_dgrad(cpu, M, x, sumsq, g->s, dx);
}
