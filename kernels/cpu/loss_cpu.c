#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

void cpu_lm_head(Backend *be, int64_t M, const act_t *x, RowStat sumsq, const act_t *W,
                 act_t *logits_) {
  const OpsConfig *c = &cpu_of(be)->config;
  const int64_t V = c->V;
  real *logits = reals(logits_);
  gemm(GEMM_NT, M, V, c->D, reals(x), reals(W), 0, logits);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real r = row_rstd(c, sumsq, m);
    for (int64_t v = 0; v < V; v++) logits[m * V + v] *= r;
  }
}

// z [V] of one row becomes factor * (softmax(z) - onehot(target)); returns the row sum of the two's
// product.
static real row_gradient(real *z, int64_t V, int32_t target, real largest, real sum, real factor) {
  const real per_sum = 1 / sum;
  real product = 0;
  for (int64_t v = 0; v < V; v++) {
    const real p = real_exp(z[v] - largest) * per_sum;
    const real dz = factor * (v == target ? p - 1 : p);
    product += dz * z[v];
    z[v] = dz;
  }
  return product;
}

void cpu_loss(Backend *be, int64_t M, RowStat sumsq, const int32_t *targets, act_t *logits_,
              double scale, RowStat *s_) {
  Cpu *cpu = cpu_of(be);
  const OpsConfig *c = &cpu->config;
  const int64_t V = c->V;
  real *logits = reals(logits_), *s = s_ ? sums_of(s_) : NULL;
  double *row_loss = xmalloc((size_t)M * sizeof *row_loss);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    real *row = logits + m * V;
    real largest = -INFINITY, sum = 0;
    for (int64_t v = 0; v < V; v++)
      if (row[v] > largest) largest = row[v];
    for (int64_t v = 0; v < V; v++) sum += real_exp(row[v] - largest);
    row_loss[m] = (double)largest + log((double)sum) - (double)row[targets[m]];
    if (s)
      s[m] = row_gradient(row, V, targets[m], largest, sum, row_rstd(c, sumsq, m) * (real)scale);
  }
  double total = 0; // in order: the same bits for any number of threads
  for (int64_t m = 0; m < M; m++) total += row_loss[m];
  cpu->step.loss += scale * total;
  free(row_loss);
}

void cpu_head_loss(Backend *be, int64_t M, const act_t *x, RowStat sumsq, const act_t *W,
                   const int32_t *targets, act_t *logits, double scale, RowStat *s) {
  cpu_lm_head(be, M, x, sumsq, W, logits);
  cpu_loss(be, M, sumsq, targets, logits, scale, s);
}
