// Schedules of the learning rate and of Muon's momentum. The optimizers themselves are operations
// of the backend (kernels/ops.h).
//
// A run begins with a warm-up, in which the rate rises linearly to learning_rate (step 0 gets
// learning_rate / warmup_steps). Then, to the last step:
//   constant: the peak
//   cosine:   min + (peak - min) (1 + cos(pi t)) / 2
//   linear:   min + (peak - min) (1 - t)
//   wsd:      the peak, and over the last decay_steps steps min + (peak - min) (1 - t)
// t is the part of these steps that was done before: 0 in the first one, below 1 in the last. So a
// run of one step trains at the peak, and the last step trains even where min is 0.
// Where warm-up and decay together are longer than the run, as in a short trial, schedule_lengths
// shortens both.
//
// Both depend only on the configuration and the step: a run that resumes with other steps or
// another schedule has the values of a run that always had this configuration.
#pragma once
#include "kernels/ops.h"
#include "model/config/config.h"

// The steps of warm-up and decay that hold in a run of `steps`: the configured ones where they fit
// together, else at most steps / 10 + 1 and steps / 5 + 1. decay is wsd's alone, else 0.
typedef struct ScheduleLengths {
  int64_t warmup, decay;
} ScheduleLengths;
ScheduleLengths schedule_lengths(const OptimizerConfig *optimizer, int64_t steps);

// Rate of optimizer step `step` (0-based) of a run of `steps`.
double learning_rate(const OptimizerConfig *optimizer, int64_t step, int64_t steps);

// Muon's momentum at that step. At first weights change fast, and old gradients say little: in the
// first min(momentum_warmup, steps / 3) steps momentum rises linearly to the configured one from
// MUON_FIRST_MOMENTUM, or from itself where it is lower.
#define MUON_FIRST_MOMENTUM 0.85
double muon_momentum(const OptimizerConfig *optimizer, int64_t step, int64_t steps);

// The optimizers' parameters at that step, if all rows of the step count.
AdamW adamw_at(const OptimizerConfig *optimizer, int64_t step, int64_t steps);
