#include "model/optimizer.h"

#include <math.h>

// Of what lies between the least rate and the peak.
static const double NEARLY_NOTHING = 0.01;

// The plan with its warm-up in full, and the decay, as they fit into the steps that it is for.
typedef struct Fitted {
  SchedulePlan plan;
  int64_t decay;
} Fitted;

static int64_t at_most(int64_t value, int64_t limit) {
  return value < limit ? value : limit;
}

static Fitted fit(const OptimizerConfig *o, const SchedulePlan *plan, int64_t steps) {
  Fitted f = {.plan = *plan, .decay = o->schedule == SCHEDULE_WSD ? o->decay_steps : 0};
  if (plan->from == 0) f.plan = (SchedulePlan){.warmup = o->warmup_steps, .peak = o->learning_rate};
  const int64_t left = steps - f.plan.from;
  if (f.plan.warmup + f.decay <= left) return f;
  f.plan.warmup = at_most(f.plan.warmup, left / 10 + 1);
  f.decay = at_most(f.decay, left / 5 + 1);
  return f;
}

double learning_rate(const OptimizerConfig *o, const SchedulePlan *plan_, int64_t step,
                     int64_t steps) {
  const Fitted f = fit(o, plan_, steps);
  const SchedulePlan *plan = &f.plan;
  const double floor_rate = o->min_learning_rate, above = plan->peak - floor_rate;
  const int64_t done = step - plan->from, left = steps > step ? steps - step : 0;
  if (done < plan->warmup)
    return plan->rate + (plan->peak - plan->rate) * (double)(done + 1) / (double)plan->warmup;
  if (o->schedule == SCHEDULE_COSINE) {
    const int64_t length = steps - plan->from - plan->warmup;
    const double t = length > 0 ? fmin(1, (double)(done - plan->warmup) / (double)length) : 1;
    return floor_rate + above * 0.5 * (1 + cos(3.14159265358979323846 * t));
  }
  if (o->schedule == SCHEDULE_WSD && left < f.decay)
    return floor_rate + above * (double)left / (double)f.decay;
  return plan->peak;
}

AdamW adamw_at(const OptimizerConfig *o, const SchedulePlan *plan, int64_t step, int64_t steps) {
  return (AdamW){
      .learning_rate = learning_rate(o, plan, step, steps),
      .beta1 = o->beta1,
      .beta2 = o->beta2,
      .eps = o->eps,
      .weight_decay = o->weight_decay,
      .clip_norm = o->clip_norm,
  };
}

static bool same_schedule(const OptimizerConfig *a, const OptimizerConfig *b) {
  return a->schedule == b->schedule && a->learning_rate == b->learning_rate &&
         a->min_learning_rate == b->min_learning_rate && a->warmup_steps == b->warmup_steps &&
         a->decay_steps == b->decay_steps;
}

bool schedule_plan(SchedulePlan *plan, const Config *was, const Config *now, int64_t step) {
  const OptimizerConfig *o = &now->optimizer;
  const int64_t asked = now->train.resume_warmup_steps;
  const bool asks = asked > 0 && asked != was->train.resume_warmup_steps;
  if (step == 0 || step >= now->train.steps ||
      (!asks && now->train.steps == was->train.steps && same_schedule(&was->optimizer, o)))
    return false;
  const double before = learning_rate(&was->optimizer, plan, step - 1, was->train.steps),
               rate = learning_rate(&was->optimizer, plan, step, was->train.steps),
               least = o->min_learning_rate;
  const int64_t warmed_up = plan->from > 0 ? plan->from + plan->warmup : o->warmup_steps;
  const bool to_peak = asked > 0 || step < warmed_up ||
                       rate - least <= NEARLY_NOTHING * (o->learning_rate - least) ||
                       o->learning_rate != was->optimizer.learning_rate;
  *plan = (SchedulePlan){.from = step, .warmup = asked, .rate = before, .peak = rate};
  if (!to_peak) return true;
  plan->peak = o->learning_rate;
  if (asked == 0 && plan->peak > rate)
    plan->warmup = step < warmed_up ? warmed_up - step : o->warmup_steps;
  return true;
}
