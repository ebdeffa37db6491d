// The learning-rate schedule. AdamW itself is an operation of the backend (kernels/ops.h).
#pragma once
#include "kernels/ops.h"
#include "model/config/config.h"

// Rate of optimizer step `step` (0-based) of a run of `steps`. Warm-up rises linearly to the peak
// over warmup_steps steps (step 0 gets peak / warmup_steps); then
//   constant: the peak
//   cosine:   min + (peak - min) (1 + cos(pi t)) / 2, t from 0 at the end of warm-up to 1 at the
//             last step
//   wsd:      the peak, and over the last decay_steps steps linearly down to min at the last step
double learning_rate(const OptimizerConfig *optimizer, int64_t step, int64_t steps);

// AdamW's parameters at that step.
AdamW adamw_at(const OptimizerConfig *optimizer, int64_t step, int64_t steps);
