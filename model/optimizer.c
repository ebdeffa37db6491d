#include "model/optimizer.h"

#include <math.h>

#include "base/minmax.h"

ScheduleLengths schedule_lengths(const OptimizerConfig *o, int64_t steps) {
  const int64_t warmup = o->warmup_steps, decay = o->schedule == SCHEDULE_WSD ? o->decay_steps : 0;
  if (warmup + decay <= steps) return (ScheduleLengths){warmup, decay};
  return (ScheduleLengths){min_i64(warmup, steps / 10 + 1), min_i64(decay, steps / 5 + 1)};
}

double learning_rate(const OptimizerConfig *o, int64_t step, int64_t steps) {
  const ScheduleLengths lengths = schedule_lengths(o, steps);
  const int64_t warmup = lengths.warmup,
                decay = o->schedule == SCHEDULE_LINEAR ? steps - warmup : lengths.decay;
  const double floor_rate = o->min_learning_rate, above = o->learning_rate - floor_rate;
  const int64_t left = steps > step ? steps - step : 0;
  if (step < warmup) return o->learning_rate * (double)(step + 1) / (double)warmup;
  if (o->schedule == SCHEDULE_COSINE) {
    const int64_t length = steps - warmup;
    const double t = length > 0 ? fmin(1, (double)(step - warmup) / (double)length) : 1;
    return floor_rate + above * 0.5 * (1 + cos(3.14159265358979323846 * t));
  }
  if (left < decay) return floor_rate + above * (double)left / (double)decay;
  return o->learning_rate;
}

double muon_momentum(const OptimizerConfig *o, int64_t step, int64_t steps) {
  const int64_t warmup = min_i64(o->momentum_warmup, steps / 3);
  const double first = fmin(MUON_FIRST_MOMENTUM, o->momentum);
  if (step >= warmup) return o->momentum;
  return first + (o->momentum - first) * (double)step / (double)warmup;
}

AdamW adamw_at(const OptimizerConfig *o, int64_t step, int64_t steps) {
  return (AdamW){
      .learning_rate = learning_rate(o, step, steps),
      .norm_rate = o->norm_rate,
      .beta1 = o->beta1,
      .beta2 = o->beta2,
      .eps = o->eps,
      .weight_decay = o->weight_decay,
      .momentum = muon_momentum(o, step, steps),
      .clip_norm = o->clip_norm,
      .gradient_scale = 1,
  };
}
