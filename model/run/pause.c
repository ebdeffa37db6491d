// The work between steps: a run validates, samples, saves, checks its folder, and ends.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "base/range.h"
#include "base/text.h"
#include "model/run/run.h"
#include "model/run/token_text.h"

// ---- A sample of the model's text

static int append(void *sample, const char *text, size_t bytes, Error *err) {
  (void)err;
  text_append(sample, text, bytes);
  return 0;
}

// False where the run was asked to stop before it was done.
static bool write_sample(Run *run) {
  if (!run->generator) return true;
  if (*run->stop) return false;
  const TrainConfig *c = &run->config.train;
  Error err;
  Text sample = {0};
  TextGeneration generation = {
      .generator = run->generator,
      .tokenizer = run->inputs.tokenizer,
      .options = {.temperature = 0.8, .top_p = 1, .seed = c->seed, .max_tokens = c->sample_tokens},
      .stop = run->stop,
      .show = append,
      .context = &sample};
  sample_options_end(&generation.options, tokenizer_facts(run->inputs.tokenizer)->eos);
  TokenIds ids = {0};
  range_push("sample");
  if (prompt_ids(run->inputs.tokenizer, "", 0, &ids, &err) == 0 &&
      text_generate(&generation, "", 0, &ids, &err) == 0) {
    printf("step %lld | sample\n----\n%.*s\n----\n", (long long)run->state.step, (int)sample.bytes,
           sample.data);
    fflush(stdout);
    log_sample(&run->log, run->state.step, sample.data, sample.bytes);
  } else {
    fprintf(stderr, "no sample: %s\n", err.text);
  }
  range_pop();
  if (run->llama.spec.fp8) run->be->services.scalings_discard(run->be);
  free(ids.ids);
  free(sample.data);
  return !*run->stop;
}

// ---- Scores

// False where the run was asked to stop before it was done.
static bool score(Run *run) {
  Scorer *scorer = run->inputs.scorer;
  TaskResult r;
  Error err;
  if (!scorer) return true;
  range_push("scores");
  const int scored = scorer_run(scorer, &run->llama, run->stop, false, &err);
  range_pop();
  if (run->llama.spec.fp8) run->be->services.scalings_discard(run->be);
  if (scored < 0) fprintf(stderr, "no scores: %s\n", err.text);
  for (int i = 0; scored > 0 && scorer_result(scorer, i, &r); i++)
    log_score(&run->log, run->state.step, &r);
  return scored != 0;
}

// ---- Work that is due

// After the steps asked for: at this interval, and at the end.
static bool due(const Run *run, int64_t interval) {
  const int64_t step = run_steps_asked(run), steps = run->config.train.steps;
  return step > 0 && (step >= steps || (interval > 0 && step % interval == 0));
}

static bool step_due(const Run *run) {
  const TrainConfig *c = &run->config.train;
  const int64_t step = run_steps_asked(run);
  return *run->stop || (step != run->steps.paused &&
                        (step == 0 || due(run, c->eval_interval) || due(run, c->sample_interval) ||
                         due(run, c->save_interval)));
}

bool run_pause_due(const Run *run) {
  return step_due(run) || run_folder_due(run) ||
         (run->saves.background && background_ended(run->saves.background));
}

// ---- Saves

// A failed save, with its sentence, ends a run only where its folder is gone, or it was the last.
static int survive(Run *run, int status, Error *err) {
  if (status == 0) return 0;
  const Error why = *err;
  if (run_check_folder(run, true, err) != 0) return -1;
  fprintf(stderr, "train: %s; training goes on\n", why.text);
  return 0;
}

// Reports a finished background save; `wait` waits for it first.
static int end_save(Run *run, bool wait, Error *err) {
  return survive(run, run_save_end(run, wait, err), err);
}

// ---- The pause

int run_pause(Run *run, Error *err) {
  const TrainConfig *c = &run->config.train;
  const int64_t step = run_steps_asked(run); // the GPU may still be busy with the last one
  if (end_save(run, false, err) != 0 || run_check_folder(run, false, err) != 0) return -1;
  if (c->max_minutes > 0 && !*run->stop) // the alarm comes in time for a last save
    process_alarm(run->deadline_ms - now_ms() - run_end_ms(run));
  if (!step_due(run)) return 0;
  run->steps.paused = step;
  if (run_settle(run, err) != 0) return -1;
  const bool validates = step == 0 || due(run, c->eval_interval);
  const int validated = validates ? run_validate(run, err) : 1;
  const bool scored = !validates || validated < 1 || score(run),
             sampled = !due(run, c->sample_interval) || write_sample(run);
  if (validated < 0) return run_bad_data(run, err);
  const bool saves =
      due(run, c->save_interval) || (c->keep_best && step > 0 && run->state.best_val_step == step);
  if ((saves || *run->stop) && end_save(run, true, err) != 0) return -1;
  run->done = step >= c->steps || *run->stop; // a signal may have come meanwhile
  run->left_out = step >= c->steps && !(validated && scored && sampled);
  if (run->done) return run_save_last(run, err);
  if (!saves) return 0;
  return run_check_folder(run, true, err) != 0 ? -1 : survive(run, run_save(run, err), err);
}
