// The work around a step: a batch goes in, a result comes out, profilers watch.
#include <math.h>
#include <stdio.h>

#include "base/os.h"
#include "base/memory.h"
#include "base/range.h"
#include "model/optimizer.h"
#include "model/run/run.h"
#include "model/tensors.h"

enum { SATURATED_STEPS = 4 }; // in a row, after which a line names the tensor

static void profile(Run *run, bool open) {
  run->be->services.profile(run->be, open);
  run->steps.profiling = open;
}

// The line of the oldest step that was asked for, and its place in the state.
static StepLine take_result(Run *run) {
  TrainState *s = &run->state;
  const PendingStep *pending = &run->steps.pending[run->steps.booked++ % MAX_RESULTS];
  const StepResult result = run->be->services.step_result(run->be);
  const double peak = run->be->peak_flops;
  s->step++;
  s->updates = result.updates;
  s->sequences = pending->drawn.windows;
  for (int64_t i = 0; i < s->source_count; i++) {
    s->sources[i].since = pending->drawn.since[i];
    s->sources[i].drawn = pending->drawn.of[i];
  }
  s->nonfinite += !result.applied;
  s->nonfinite_row = result.applied ? 0 : s->nonfinite_row + 1;
  return (StepLine){.step = s->step,
                    .result = result,
                    .lr = pending->learning_rate,
                    .tokens = tokens_per_step(&run->config),
                    .counted = pending->counted,
                    .mfu = peak > 0 ? pending->flops / (result.ms * 1e-3 * peak) : NAN,
                    .fp8 = run->llama.spec.fp8};
}

// Says once that a tensor stays beyond its scale. In every second step one or another of many
// tensors is beyond its scale, which catches up in the next.
static void watch_saturation(Run *run, const StepLine *line) {
  const int first = line->fp8 && line->result.saturated > 0 ? line->result.saturated_first : -1;
  if (first != run->steps.saturated_first) run->steps.saturated_row = 0;
  run->steps.saturated_first = first;
  if (first < 0 || ++run->steps.saturated_row != SATURATED_STEPS) return;
  fflush(stdout);
  fprintf(stderr,
          "step %lld: for %d steps in a row '%s' had values beyond the reach of its FP8 scale; try "
          "a lower optimizer.learning_rate or backend.precision=bf16\n",
          (long long)line->step, SATURATED_STEPS, scaling_name(&run->config.model, first).text);
}

// Books the oldest step that was asked for in the state and the log; an error when too many updates
// in a row were skipped.
static int book_step(Run *run, Error *err) {
  const StepLine line = take_result(run);
  const Services *services = &run->be->services;
  if (run->steps.booked == 1) {
    phase_end(&run->phases, "first step");
    // Not before: libraries load their code when it is first called.
    log_opened(&run->log, line.step, &run->phases,
               services->memory_taken ? services->memory_taken(run->be) : 0);
  }
  log_train(&run->log, &line);
  watch_saturation(run, &line);
  if (line.result.applied || run->state.nonfinite_row < run->config.train.max_nonfinite) return 0;
  error_set(err,
            "stopped at step %lld: %lld updates in a row were skipped, as not finite; lower "
            "optimizer.learning_rate, or look at the data up to sequence %llu",
            (long long)line.step, (long long)run->state.nonfinite_row,
            (unsigned long long)run->state.sequences);
  log_stop(&run->log, line.step, err->text);
  return -1;
}

int run_settle(Run *run, Error *err) {
  while (run->steps.booked < run->steps.asked)
    if (book_step(run, err) != 0) return -1;
  return 0;
}

// ---- A step

// The step's batches, and what follows from them.
static int read_batches(Run *run, PendingStep *pending, Error *err) {
  const Config *c = &run->config;
  const int64_t tokens = batch_rows(&run->llama.spec), context = llama_context(&run->llama);
  run->inputs.train->pieces = c->train.sequence_length / context;
  run->inputs.train->piece_block =
      context_steps(&c->train) * c->train.gradient_accumulation * c->train.batch_size;
  double attended = 0;
  for (int64_t i = 0; i < c->train.gradient_accumulation; i++) {
    Batch *batch = &run->inputs.batches[i];
    if (loader_next(run->inputs.train, batch, err) != 0) return -1;
    pending->counted += batch->counted;
    attended += batch_attended(batch, tokens / context, context);
  }
  pending->drawn = run->inputs.train->drawn;
  pending->flops = model_step_flops(&c->model, (double)tokens_per_step(c), attended);
  return 0;
}

int run_step_begin(Run *run, AdamW *hyper, Error *err) {
  const Config *c = &run->config;
  if (run->steps.asked == 0) phase_end(&run->phases, "validation");
  *hyper = adamw_at(&c->optimizer, run_steps_asked(run), c->train.steps);
  PendingStep *pending = &run->steps.pending[run->steps.asked % MAX_RESULTS];
  *pending = (PendingStep){.learning_rate = hyper->learning_rate};
  run->llama.context = context_at(&c->train, run_steps_asked(run));
  if (read_batches(run, pending, err) != 0) return -1;
  run->be->services.clock_start(run->be);
  // The mean is over the rows that count; every window has one.
  hyper->gradient_scale = (double)tokens_per_step(c) / (double)pending->counted;
  if (c->output.profile_steps > 0 && run->steps.asked + 1 == PROFILE_START) profile(run, true);
  range_push("step");
  return 0;
}

int run_step_end(Run *run, Error *err) {
  RunSteps *steps = &run->steps;
  steps->asked++;
  run->llama.context = 0; // validations and samples see whole sequences
  range_pop();
  if (steps->profiling && steps->asked + 1 == PROFILE_START + run->config.output.profile_steps)
    profile(run, false);
  return steps->asked - steps->booked > run->be->steps_ahead ? book_step(run, err) : 0;
}
