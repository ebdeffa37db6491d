#include "model/optimizer.h"

#include <math.h>

double learning_rate(const OptimizerConfig *o, int64_t step, int64_t steps) {
  const double peak = o->learning_rate, floor_rate = o->min_learning_rate;
  const int64_t left = steps - 1 - step; // 0 at the last step
  if (step < o->warmup_steps) return peak * (double)(step + 1) / (double)o->warmup_steps;
  if (o->schedule == SCHEDULE_COSINE) {
    const int64_t length = steps - 1 - o->warmup_steps;
    const double t = length > 0 ? fmin(1, (double)(step - o->warmup_steps) / (double)length) : 1;
    return floor_rate + (peak - floor_rate) * 0.5 * (1 + cos(3.14159265358979323846 * t));
  }
  if (o->schedule == SCHEDULE_WSD && left < o->decay_steps)
    return floor_rate + (peak - floor_rate) * (double)left / (double)o->decay_steps;
  return peak;
}

AdamW adamw_at(const OptimizerConfig *o, int64_t step, int64_t steps) {
  return (AdamW){
      .learning_rate = learning_rate(o, step, steps),
      .beta1 = o->beta1,
      .beta2 = o->beta2,
      .eps = o->eps,
      .weight_decay = o->weight_decay,
      .clip_norm = o->clip_norm,
  };
}
