#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

void cpu_step_begin(Backend *be) {
  StepResult *step = &cpu_of(be)->step;
  *step = (StepResult){.updates = step->updates};
}

// dW' -> dW (+= where the matrix is used plain too), and dwn = column sums of dW' W. Columns are
// shared out, so that each sum runs over the rows in order, whatever the number of threads.
static void unfold(const ParamTensor *t, const ParamTensor *norm) {
  const int64_t slice = 64;
  const real *W = reals(t->master), *wn = reals(norm->master), *folded = reals(t->grad_folded);
  real *dW = reals(t->grad), *dwn = reals(norm->grad);
  const bool plain_too = t->grad != t->grad_folded;
#pragma omp parallel for schedule(static)
  for (int64_t k0 = 0; k0 < t->cols; k0 += slice) {
    const int64_t k1 = k0 + slice < t->cols ? k0 + slice : t->cols;
    double sum[64] = {0};
    for (int64_t n = 0; n < t->rows; n++)
      for (int64_t k = k0; k < k1; k++) {
        const int64_t at = n * t->cols + k;
        sum[k - k0] += (double)folded[at] * (double)W[at];
        dW[at] = folded[at] * wn[k] + (plain_too ? dW[at] : 0);
      }
    for (int64_t k = k0; k < k1; k++) dwn[k] = (real)sum[k - k0];
  }
}

// Rows are summed one by one and then added up in order: the same bits for any number of threads.
static double sum_of_squares(const ParamTensor *t) {
  const real *g = reals(t->grad);
  double *row_sum = xmalloc((size_t)t->rows * sizeof *row_sum);
#pragma omp parallel for schedule(static)
  for (int64_t n = 0; n < t->rows; n++) {
    double sum = 0;
    for (int64_t k = 0; k < t->cols; k++)
      sum += (double)g[n * t->cols + k] * (double)g[n * t->cols + k];
    row_sum[n] = sum;
  }
  double total = 0;
  for (int64_t n = 0; n < t->rows; n++) total += row_sum[n];
  free(row_sum);
  return total;
}

void cpu_grads_finish(Backend *be, const ParamTensor *list, int count) {
  for (int i = 0; i < count; i++)
    if (list[i].norm >= 0) unfold(&list[i], &list[list[i].norm]);
  double total = 0;
  for (int i = 0; i < count; i++) total += sum_of_squares(&list[i]);
  cpu_of(be)->step.grad_norm = sqrt(total);
}

static void refresh_tensor(const ParamTensor *list, const ParamTensor *t) {
  const real *W = reals(t->master), *wn = t->norm >= 0 ? reals(list[t->norm].master) : NULL;
  real *plain = reals(t->compute.data), *folded = reals(t->folded.data);
  if (!plain && !folded) return;
#pragma omp parallel for schedule(static)
  for (int64_t n = 0; n < t->rows; n++)
    for (int64_t k = 0; k < t->cols; k++) {
      const int64_t at = n * t->cols + k;
      if (plain) plain[at] = W[at];
      if (folded) folded[at] = W[at] * wn[k];
    }
}

void cpu_refresh(Backend *be, const ParamTensor *list, int count) {
  (void)be;
  for (int i = 0; i < count; i++) refresh_tensor(list, &list[i]);
}

// W -= lr (m^ / (sqrt(v^) + eps) + decay W), with bias-corrected moments. arXiv 1711.05101, as
// torch.optim.AdamW.
static void adamw_tensor(const ParamTensor *t, const AdamW *a, double clip, int64_t update) {
  const real beta1 = (real)a->beta1, beta2 = (real)a->beta2, eps = (real)a->eps, scale = (real)clip;
  const real step_size = (real)(a->learning_rate / (1 - pow(a->beta1, (double)update)));
  const real per_root = (real)(1 / sqrt(1 - pow(a->beta2, (double)update)));
  const real keep = (real)(1 - a->learning_rate * (t->decay ? a->weight_decay : 0));
  real *W = reals(t->master), *m = reals(t->m), *v = reals(t->v);
  const real *grad = reals(t->grad);
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < t->rows * t->cols; i++) {
    const real g = grad[i] * scale;
    m[i] = beta1 * m[i] + (1 - beta1) * g;
    v[i] = beta2 * v[i] + (1 - beta2) * g * g;
    W[i] = keep * W[i] - step_size * m[i] / (real_sqrt(v[i]) * per_root + eps);
  }
}

void cpu_set_hyper(Backend *be, const AdamW *hyper) {
  cpu_of(be)->hyper = *hyper;
}

void cpu_adamw(Backend *be, const ParamTensor *list, int count) {
  StepResult *step = &cpu_of(be)->step;
  const AdamW *hyper = &cpu_of(be)->hyper;
  step->applied = isfinite(step->loss) && isfinite(step->grad_norm);
  if (!step->applied) return;
  step->updates++;
  const bool clipped = hyper->clip_norm > 0 && step->grad_norm > hyper->clip_norm;
  const double clip = clipped ? hyper->clip_norm / step->grad_norm : 1;
  for (int i = 0; i < count; i++) adamw_tensor(&list[i], hyper, clip, step->updates);
  cpu_refresh(be, list, count); // after all masters: a folded copy reads its norm weight too
}

void cpu_step_end(Backend *be) {
  Cpu *cpu = cpu_of(be);
  assert(cpu->ended - cpu->taken < MAX_RESULTS);
  cpu->results[cpu->ended++ % MAX_RESULTS] = cpu->step;
}

StepResult cpu_step_result(Backend *be) {
  Cpu *cpu = cpu_of(be);
  assert(cpu->taken < cpu->ended);
  return cpu->results[cpu->taken++ % MAX_RESULTS];
}

void cpu_set_updates(Backend *be, int64_t updates) {
  cpu_of(be)->step.updates = updates;
}
