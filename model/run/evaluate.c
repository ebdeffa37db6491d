// What a run does between steps: validate and sample. save.c has the third.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/range.h"
#include "model/run/run.h"
#include "model/run/text.h"

// The mean loss of the first `batches` batches; false where the run was asked to stop, and where
// the data are bad.
static bool validation_loss(Run *run, int64_t batches, double *loss) {
  Backend *be = run->be;
  const TrainConfig *c = &run->config.train;
  int32_t *tokens = run->batches, *targets = tokens + c->batch_size * c->sequence_length;
  be->step_begin(be);
  run->val_data->cursor = 0;
  for (int64_t i = 0; i < batches; i++) {
    if (*run->stop) return false;
    if (loader_next(run->val_data, tokens, targets, &run->data_error) != 0) return false;
    llama_load_batch(&run->llama, tokens, targets);
    llama_forward(&run->llama);
    llama_loss(&run->llama, 1 / (double)batches);
  }
  be->step_end(be);
  *loss = be->step_result(be).loss;
  return true;
}

// What a forward that trains nothing has left is no part of training's scales.
static void forget_scalings(Run *run) {
  if (fp8_used(&run->llama.shape)) run->be->scalings_discard(run->be);
}

// False where the run was asked to stop. Only where there is something to validate on.
static bool validate(Run *run, double *loss, int64_t *tokens) {
  const TrainConfig *c = &run->config.train;
  const int64_t whole = run->val_data->windows / c->batch_size, asked = c->eval_batches;
  const int64_t batches = asked > 0 && asked < whole ? asked : whole;
  *loss = NAN;
  *tokens = batches * c->batch_size * c->sequence_length;
  range_push("evaluation");
  const bool finished = validation_loss(run, batches, loss);
  range_pop();
  forget_scalings(run);
  return finished;
}

bool run_validate(Run *run) {
  double loss;
  int64_t tokens;
  if (!run->val_data) return true;
  if (*run->stop || !validate(run, &loss, &tokens)) return false;
  const bool best = !(loss >= run->state.best_val_loss) && isfinite(loss);
  if (best) {
    run->state.best_val_loss = loss;
    run->state.best_val_step = run->state.step;
    run->best_is_new = true;
  }
  log_val(&run->log, run->state.step, loss, tokens, best);
  return true;
}

bool run_validate_in_bf16(Run *run) {
  double loss;
  int64_t tokens;
  if (!run->val_data || !fp8_used(&run->llama.shape)) return true;
  if (*run->stop) return false;
  llama_become_bf16(&run->llama);
  if (!validate(run, &loss, &tokens)) return false;
  log_val_bf16(&run->log, run->state.step, loss, tokens);
  return true;
}

// A sample, as it grows.
typedef struct SampleText {
  char *text;
  size_t bytes;
} SampleText;

static int append(void *sample_, const char *text, size_t bytes, Error *err) {
  (void)err;
  SampleText *sample = sample_;
  sample->text = xrealloc(sample->text, sample->bytes + bytes);
  memcpy(sample->text + sample->bytes, text, bytes);
  sample->bytes += bytes;
  return 0;
}

bool run_sample(Run *run) {
  if (!run->generator) return true;
  if (*run->stop) return false;
  const TrainConfig *c = &run->config.train;
  Error err;
  SampleText sample = {0};
  Writing writing = {.generator = run->generator,
                     .tokenizer = run->tokenizer,
                     .options = {.temperature = c->sample_temperature,
                                 .top_p = 1,
                                 .seed = c->seed,
                                 .max_tokens = c->sample_tokens},
                     .stop = run->stop,
                     .show = append,
                     .context = &sample};
  sample_options_end(&writing.options, tokenizer_facts(run->tokenizer)->end);
  const char *prompt = c->sample_prompt;
  TokenIds ids = {0};
  range_push("sample");
  llama_calibrate(&run->llama, true);
  if (prompt_ids(run->tokenizer, prompt, strlen(prompt), &ids, &err) == 0 &&
      text_write(&writing, prompt, strlen(prompt), &ids, &err) == 0) {
    printf("step %lld | sample\n----\n%.*s\n----\n", (long long)run->state.step, (int)sample.bytes,
           sample.text);
    fflush(stdout);
    log_sample(&run->log, run->state.step, sample.text, sample.bytes);
  } else {
    fprintf(stderr, "no sample: %s\n", err.text);
  }
  range_pop();
  forget_scalings(run);
  free(ids.ids);
  free(sample.text);
  return !*run->stop;
}
