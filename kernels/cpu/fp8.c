// FP8 on the CPU: rounding to copies, and their scales.
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

void leave_row_scales(const Cpu *cpu, int64_t M, Operand x, RowStat previous) {
  if (!x.row_scale) return;
  for (int64_t m = 0; m < M; m++)
    reals(x.row_scale)[m] = power_of_two_below((float)row_rstd(&cpu->base.spec, previous, m));
}

// Of floats that are not negative bits compare as the values do, and NaN is above all.
static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static void find_largest(const Cpu *cpu, int64_t M, int64_t N, Operand x, const real *values) {
  const int64_t stride = x.row_stride ? x.row_stride : N;
  CpuScaling *s = &cpu->scalings[x.scaling];
  uint32_t largest = bits_of(s->largest);
#pragma omp parallel for schedule(static) reduction(max : largest)
  for (int64_t m = 0; m < M; m++)
    for (int64_t k = 0; k < N; k++) {
      const uint32_t bits = bits_of(fabsf((float)(scale_of_row(x, m) * values[m * stride + k])));
      if (bits > largest) largest = bits;
    }
  memcpy(&s->largest, &largest, sizeof largest);
}

static void set_scale(CpuScaling *s, float largest) {
  if (s->kind.fixed == 0) s->state.scale = fp8_scale(s->kind.format, largest);
}

static void write_copies(const Cpu *cpu, int64_t M, int64_t N, Operand x, const real *values,
                         bool stochastic) {
  const int64_t stride = x.row_stride ? x.row_stride : N;
  const CpuScaling *s = &cpu->scalings[x.scaling];
  real *by_row = reals(x.by_row), *by_col = reals(x.by_col);
  assert(s->state.scale > 0); // otherwise the run has not calibrated
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    const real scale = scale_of_row(x, m) * (real)s->state.scale;
    const uint32_t key = noise_mix((uint32_t)m);
    for (int64_t k = 0; k < N; k++) {
      const float value = (float)(scale * values[m * stride + k]);
      const real copy = stochastic ? fp8_round_stochastic(value, key, (uint32_t)k)
                                   : fp8_round(s->kind.format, value);
      by_row[m * stride + k] = copy;
      if (by_col) by_col[k * x.stride + m] = copy;
    }
  }
}

void quantize(Cpu *cpu, int64_t M, int64_t N, Operand x, const real *values) {
  if (!x.by_row) return;
  find_largest(cpu, M, N, x, values);
  CpuScaling *s = &cpu->scalings[x.scaling];
  if (cpu->base.calibrating) set_scale(s, s->largest);
  write_copies(cpu, M, N, x, values, false);
}

void leave_dlogits_copies(Cpu *cpu, int64_t M, Operand dlogits, const real *values,
                          double grad_scale) {
  if (!dlogits.by_row) return;
  CpuScaling *s = &cpu->scalings[dlogits.scaling];
  assert(s->kind.format == FP8_E4M3);
  s->state.scale = fp8_dlogits_scale(s->kind.format, grad_scale);
  find_largest(cpu, M, cpu->base.spec.V, dlogits, values);
  write_copies(cpu, M, cpu->base.spec.V, dlogits, values, true);
}

void leave_weight_copies(Cpu *cpu, int64_t N, int64_t K, Operand W, const real *values) {
  if (!W.by_row) return;
  find_largest(cpu, N, K, W, values);
  CpuScaling *s = &cpu->scalings[W.scaling];
  if (s->state.scale == 0) set_scale(s, s->largest);
  write_copies(cpu, N, K, W, values, false);
}

void cpu_requantize(Backend *be, int64_t M, int64_t N, Operand x) {
  quantize(cpu_of(be), M, N, x, reals(x.data));
}

// ---- The scales

void scalings_open(Cpu *cpu) {
  const Spec *c = &cpu->base.spec;
  cpu->scalings = xcalloc((size_t)c->scaling_count, sizeof *cpu->scalings);
  cpu->base.calibrating = c->scaling_count > 0 && !c->fp8_weights;
  for (int i = 0; i < c->scaling_count; i++) {
    cpu->scalings[i].kind = c->scalings[i];
    cpu->scalings[i].state.scale = c->scalings[i].fixed;
  }
}

// Puts the step's largest value in front of the history; returns the history's largest.
static float push(CpuScaling *s) {
  float *history = s->state.history, top = 0;
  memmove(history + 1, history, (SCALE_HISTORY - 1) * sizeof *history);
  history[0] = fp8_counted(s->kind.format, s->state.scale, s->largest);
  for (int i = 0; i < SCALE_HISTORY; i++) top = fmaxf(top, history[i]);
  return top;
}

// A weight's copies are written after the update, those of other tensors before it. A largest value
// of 0 is ignored: no copies were written, or all values are 0.
static void update_scale(CpuScaling *s, bool weight, double learning_rate) {
  if (weight && s->state.scale > 0)
    set_scale(s, fp8_weight_reach(push(s), learning_rate));
  else if (s->largest != 0)
    set_scale(s, push(s));
}

void scalings_update(Cpu *cpu) {
  StepResult *step = &cpu->step;
  for (int i = 0; i < cpu->base.spec.scaling_count; i++) {
    CpuScaling *s = &cpu->scalings[i];
    if (s->largest * s->state.scale <= fp8_largest(s->kind.format)) continue;
    if (step->saturated++ == 0) step->saturated_first = i; // NaN is beyond, too
  }
  if (!step->applied) cpu_scalings_discard(&cpu->base);
  for (int i = 0; step->applied && i < cpu->base.spec.scaling_count; i++) {
    update_scale(&cpu->scalings[i], i < cpu->base.spec.weight_scalings, cpu->hyper.learning_rate);
    cpu->scalings[i].largest = 0;
  }
}

// The largest values of the parameters' copies belong to the next update.
void cpu_scalings_discard(Backend *be) {
  Cpu *cpu = cpu_of(be);
  for (int i = cpu->base.spec.weight_scalings; i < cpu->base.spec.scaling_count; i++)
    cpu->scalings[i].largest = 0;
}

// A fixed scale is not state: head_loss computes the scale of dlogits'.
static ScalingState state_of(const CpuScaling *s, ScalingState state) {
  if (s->kind.fixed != 0) state.scale = s->kind.fixed;
  return state;
}

void cpu_scalings_read(Backend *be, ScalingState *to_host) {
  const Cpu *cpu = cpu_of(be);
  for (int i = 0; i < cpu->base.spec.scaling_count; i++)
    to_host[i] = state_of(&cpu->scalings[i], cpu->scalings[i].state);
}

void cpu_scalings_write(Backend *be, const ScalingState *from_host) {
  const Cpu *cpu = cpu_of(be);
  for (int i = 0; i < cpu->base.spec.scaling_count; i++) {
    CpuScaling *s = &cpu->scalings[i];
    s->state = state_of(s, from_host[i]);
    s->largest = 0;
  }
  be->calibrating = false;
}
