#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/os.h"
#include "kernels/formats.h"

void cpu_step_begin(Backend *be) {
  StepResult *step = &cpu_of(be)->step;
  *step = (StepResult){.updates = step->updates, .saturated_first = -1};
}

// sum [n] += a b, element by element.
VECTORS static void add_products(int64_t n, const real *a, const real *b, double *sum) {
  for (int64_t k = 0; k < n; k++) sum[k] += (double)a[k] * (double)b[k];
}

// dwn = column sums of dW' W. Threads divide the columns among them, so that each sum runs over the
// rows in order for any number of threads.
static void norm_gradient(const ParamTensor *t, const ParamTensor *norm) {
  const int64_t slice = 64;
  const real *W = reals(t->master), *folded = reals(t->grad_folded);
  real *dwn = reals(norm->grad);
#pragma omp parallel for schedule(static)
  for (int64_t k0 = 0; k0 < t->cols; k0 += slice) {
    const int64_t k1 = k0 + slice < t->cols ? k0 + slice : t->cols;
    double sum[64] = {0};
    for (int64_t n = 0; n < t->rows; n++)
      add_products(k1 - k0, folded + n * t->cols + k0, W + n * t->cols + k0, sum);
    for (int64_t k = k0; k < k1; k++) dwn[k] = (real)sum[k - k0];
  }
}

VECTORS const real *gradient_row(const ParamTensor *list, const ParamTensor *t, int64_t n,
                                 real *made) {
  const real *plain = t->grad ? reals(t->grad) + n * t->cols : NULL;
  if (t->norm < 0) return plain;
  const real *folded = reals(t->grad_folded) + n * t->cols, *wn = reals(list[t->norm].master);
  for (int64_t k = 0; k < t->cols; k++) made[k] = folded[k] * wn[k];
  for (int64_t k = 0; plain && k < t->cols; k++) made[k] += plain[k];
  return made;
}

// Rows are summed one by one and then added up in order: the same bits for any number of threads.
static double sum_of_squares(const ParamTensor *list, const ParamTensor *t) {
  double *row_sum = xmalloc((size_t)t->rows * sizeof *row_sum);
#pragma omp parallel
  {
    real *made = xmalloc((size_t)t->cols * sizeof *made);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < t->rows; n++)
      row_sum[n] = row_sum_of_squares(t->cols, gradient_row(list, t, n, made));
    free(made);
  }
  double total = 0;
  for (int64_t n = 0; n < t->rows; n++) total += row_sum[n];
  free(row_sum);
  return total;
}

void cpu_grads_finish(Backend *be, const ParamTensor *list, int count) {
  for (int i = 0; i < count; i++)
    if (list[i].norm >= 0) norm_gradient(&list[i], &list[list[i].norm]);
  double total = 0;
  for (int i = 0; i < count; i++) total += sum_of_squares(list, &list[i]);
  cpu_of(be)->step.grad_norm = sqrt(total);
}

static void refresh_tensor(Cpu *cpu, const ParamTensor *list, const ParamTensor *t) {
  const real *W = reals(t->master), *wn = t->norm >= 0 ? reals(list[t->norm].master) : NULL;
  real *plain = values_of(t->compute), *folded = values_of(t->folded);
  if (plain == W) plain = NULL; // it is the master
  if (!plain && !folded) return;
#pragma omp parallel for schedule(static)
  for (int64_t n = 0; n < t->rows; n++)
    for (int64_t k = 0; k < t->cols; k++) {
      const int64_t at = n * t->cols + k;
      if (plain) plain[at] = W[at];
      if (folded) folded[at] = W[at] * wn[k];
    }
  leave_weight_copies(cpu, t->rows, t->cols, t->compute, plain);
  leave_weight_copies(cpu, t->rows, t->cols, t->folded, folded);
}

void cpu_refresh(Backend *be, const ParamTensor *list, int count) {
  for (int i = 0; i < count; i++) refresh_tensor(cpu_of(be), list, &list[i]);
}

// Elements `first` and following of a tensor. The step used the moments before rounding.
static void round_moments(int64_t count, int64_t first, uint32_t key, real *m, real *v) {
  for (int64_t k = 0; k < count; k++) {
    const uint32_t noise = moment_noise(key, first + k);
    m[k] = (real)moment_round((float)m[k], noise);
    v[k] = (real)moment_round((float)v[k], noise >> 16);
  }
}

void round_masters(int64_t count, int64_t first, uint32_t key, real *W) {
  for (int64_t k = 0; k < count; k++) W[k] = (real)master_round((float)W[k], key, first + k);
}

// The factors of AdamW's update, including its bias corrections.
typedef struct Factors {
  real beta1, beta2, eps, scale, step_size, per_root, keep;
} Factors;

// W -= lr (m^ / (sqrt(v^) + eps) + decay W), with bias-corrected moments. arXiv 1711.05101, as
// torch.optim.AdamW.
VECTORS static void adamw_row(int64_t n, const Factors *factors, const real *grad, real *W, real *m,
                              real *v) {
  const Factors f = *factors;
#pragma omp simd
  for (int64_t k = 0; k < n; k++) {
    const real g = grad[k] * f.scale;
    m[k] = f.beta1 * m[k] + (1 - f.beta1) * g;
    v[k] = f.beta2 * v[k] + (1 - f.beta2) * g * g;
    W[k] = f.keep * W[k] - f.step_size * m[k] / (real_sqrt(v[k]) * f.per_root + f.eps);
  }
}

static void adamw_tensor(const Cpu *cpu, const ParamTensor *list, int index, double scale) {
  const ParamTensor *t = &list[index];
  const AdamW *a = &cpu->hyper;
  const int64_t update = cpu->step.updates;
  const uint32_t key = moment_key(update, index), of_masters = master_key(update, index);
  const bool rounds = cpu_rounds_master(cpu, t);
  const double rate = a->learning_rate * (t->vector ? a->norm_rate : 1),
               keep = 1 - a->learning_rate * (t->vector ? 0 : a->weight_decay);
  const Factors factors = {
      .beta1 = (real)a->beta1,
      .beta2 = (real)a->beta2,
      .eps = (real)a->eps,
      .scale = (real)scale,
      .step_size = (real)(rate / (1 - pow(a->beta1, (double)update))),
      .per_root = (real)(1 / sqrt(1 - pow(a->beta2, (double)update))),
      .keep = (real)keep,
  };
#pragma omp parallel
  {
    real *made = xmalloc((size_t)t->cols * sizeof *made);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < t->rows; n++) {
      const real *grad = gradient_row(list, t, n, made);
      const int64_t first = n * t->cols;
      real *W = reals(t->master) + first, *m = reals(t->m) + first, *v = reals(t->v) + first;
      adamw_row(t->cols, &factors, grad, W, m, v);
      if (cpu->base.spec.moments == MOMENTS_BF16) round_moments(t->cols, first, key, m, v);
      if (rounds) round_masters(t->cols, first, of_masters, W);
    }
    free(made);
  }
}

void cpu_set_hyper(Backend *be, const AdamW *hyper) {
  cpu_of(be)->hyper = *hyper;
  be->calibrating = false;
}

void decide_update(Cpu *cpu) {
  StepResult *step = &cpu->step;
  const AdamW *hyper = &cpu->hyper;
  step->loss *= hyper->gradient_scale;
  step->grad_norm *= hyper->gradient_scale;
  step->applied = isfinite(step->loss) && isfinite(step->grad_norm);
  if (step->applied) step->updates++;
  const bool clipped = hyper->clip_norm > 0 && step->grad_norm > hyper->clip_norm;
  cpu->gradient_factor = hyper->gradient_scale * (clipped ? hyper->clip_norm / step->grad_norm : 1);
}

void cpu_adamw(Backend *be, const ParamTensor *list, int count) {
  Cpu *cpu = cpu_of(be);
  bool decided = false; // muon did
  for (int i = 0; i < count; i++) decided = decided || list[i].part_count > 0;
  if (!decided) decide_update(cpu);
  scalings_update(cpu);
  if (!cpu->step.applied) return;
  for (int vectors = 0; vectors < 2; vectors++) // last: gradients of matrices read the old ones
    for (int i = 0; i < count; i++)
      if (list[i].vector == vectors && list[i].part_count == 0)
        adamw_tensor(cpu, list, i, cpu->gradient_factor);
  cpu_refresh(be, list, count); // after all masters: a folded copy reads its norm weight too
}

void cpu_clock_start(Backend *be) {
  cpu_of(be)->began_ms = now_ms();
}

void cpu_step_end(Backend *be) {
  Cpu *cpu = cpu_of(be);
  assert(cpu->ended - cpu->taken < MAX_RESULTS);
  cpu->step.ms = now_ms() - cpu->began_ms;
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
