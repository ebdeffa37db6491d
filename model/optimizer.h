// The learning-rate schedule. AdamW itself is an operation of the backend (kernels/ops.h).
//
// A run begins with a warm-up, in which the rate rises linearly to learning_rate (step 0 gets
// learning_rate / warmup_steps). Then, to the last step:
//   constant: the peak
//   cosine:   min + (peak - min) (1 + cos(pi t)) / 2
//   wsd:      the peak, and over the last decay_steps steps min + (peak - min) (1 - t)
// t is the part of these steps that was done before: 0 in the first one, below 1 in the last. So a
// run of one step trains at the peak, and the last step trains even where min is 0.
// Where warm-up and decay do not fit into the run, as in a short trial, the warm-up takes at most a
// tenth of the steps, and the decay a fifth.
//
// A resume that changes train.steps or the schedule, or asks for train.resume_warmup_steps, plans
// anew from its step on:
//   - The peak is the rate that this step would have had, so that the curve has no jump: a cosine
//     goes on from there to min at the new end.
//   - It is optimizer.learning_rate where that was changed, where a warm-up is asked for or was not
//     over, and where the rate had come down to its minimum.
//   - The rate goes to the peak linearly in train.resume_warmup_steps. Where that is 0 it falls at
//     once, and rises in what is left of the first warm-up, or in warmup_steps.
#pragma once
#include "kernels/ops.h"
#include "model/config/config.h"

// Zeros: the schedule that the configuration has from step 0 on.
typedef struct SchedulePlan {
  int64_t from;      // the first step that it is for
  int64_t warmup;    // steps from `rate` to `peak`, less those that the run has no room for
  double rate, peak; // before its first step, and after the warm-up
} SchedulePlan;

// Rate of optimizer step `step` (0-based, at least plan->from) of a run of `steps`.
double learning_rate(const OptimizerConfig *optimizer, const SchedulePlan *plan, int64_t step,
                     int64_t steps);

// AdamW's parameters at that step.
AdamW adamw_at(const OptimizerConfig *optimizer, const SchedulePlan *plan, int64_t step,
               int64_t steps);

// A run of `was` that had `plan` and goes on as `now` from `step`: the plan from there, and whether
// it is another.
bool schedule_plan(SchedulePlan *plan, const Config *was, const Config *now, int64_t step);
