// How a run's Spec (kernels/spec.h) follows from its configuration, its model and its hardware.
#pragma once
#include "kernels/gpu.h"
#include "model/config/config.h"

// What a run computes on.
typedef struct Hardware {
  bool gpu;            // on `card`; false: on the CPU
  Gpu card;            // all zeros on the CPU
  size_t memory_bytes; // free on the device
  size_t host_bytes;   // free on the host
  Error why_no_gpu;    // "" where one is used, or none was asked for
} Hardware;

// The micro-batches of a training run, with room for samples where any are asked for (they need a
// tokenizer). loss_chunks as configured, 0 = spec_resolve chooses. The model's dimensions and the
// documents are not set.
Spec run_spec(const Config *config);
// `asked` with the model's dimensions, and with max_tokens and max_positions of its micro-batches
// and its context.
Spec model_spec(const ModelConfig *model, Spec asked);
// `asked`, which says what a micro-batch is and what is kept of it, with all else of a run on this
// hardware. Of memory it has estimates.
Spec spec_resolve(const Config *config, Spec asked, const Hardware *hardware);
// The same for a configuration that differs a little from that of a resolved spec; of `like` the
// micro-batch, what is kept of it, and the hardware stay.
Spec spec_again(const Config *config, Spec like);

// train.first_context: how often sequence_length is halved, to pieces of at least so many tokens.
// The steps of each length, which add up to context_warmup, but to three quarters of all steps at
// most. The length that attention sees in a step, from 0 on.
int context_halvings(const TrainConfig *t);
int64_t context_steps(const TrainConfig *t);
int64_t context_at(const TrainConfig *t, int64_t step);

// Tokens of an optimizer step.
int64_t tokens_per_step(const Config *config);
// Its model FLOPs (model/tensors.h), were every window one document.
double flops_per_step(const Config *config);
