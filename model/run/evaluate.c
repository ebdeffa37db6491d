// What a run does between steps: validate, sample, save.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/range.h"
#include "data/tokenizer.h"
#include "model/run/run.h"
#include "model/run/write.h"

// The mean loss of the first `batches` batches; false where the run was asked to stop.
static bool validation_loss(Run *run, int64_t batches, double *loss) {
  Backend *be = run->be;
  be->step_begin(be);
  run->val_data->cursor = 0;
  for (int64_t i = 0; i < batches; i++) {
    if (*run->stop) return false;
    loader_next(run->val_data, run->tokens, run->targets);
    llama_load_batch(&run->llama, run->tokens, run->targets);
    llama_forward(&run->llama);
    llama_loss(&run->llama, 1 / (double)batches);
  }
  be->step_end(be);
  *loss = be->step_result(be).loss;
  return true;
}

void run_validate(Run *run) {
  if (!run->val_data) return;
  const TrainConfig *c = &run->config.train;
  const int64_t whole = run->val_data->windows / c->batch_size, asked = c->eval_batches;
  const int64_t batches = asked > 0 && asked < whole ? asked : whole;
  double loss = NAN;
  range_push("evaluation");
  const bool finished = validation_loss(run, batches, &loss);
  range_pop();
  if (!finished) return;
  const bool best = !(loss >= run->state.best_val_loss) && isfinite(loss);
  if (best) {
    run->state.best_val_loss = loss;
    run->state.best_val_step = run->state.step;
  }
  log_val(&run->log, run->state.step, loss, batches * c->batch_size * c->sequence_length, best);
}

// Writes on from the prompt into text; returns the bytes there.
static size_t write_sample(Run *run, char *text) {
  size_t count = strlen(run->config.train.sample_prompt);
  memcpy(text, run->config.train.sample_prompt, count);
  for (int32_t id; !*run->stop && (id = generator_next(run->generator)) >= 0;)
    if (id < 256) text[count++] = (char)id; // begin and end of document are no text
  return count;
}

void run_sample(Run *run) {
  if (!run->generator) return;
  const TrainConfig *c = &run->config.train;
  const SampleOptions options = {.temperature = c->sample_temperature,
                                 .top_p = 1,
                                 .seed = c->seed,
                                 .max_tokens = c->sample_tokens,
                                 .end = TOKEN_END};
  int64_t count;
  int32_t *prompt = byte_prompt(c->sample_prompt, &count);
  char *text = xmalloc((size_t)(count + c->sample_tokens));
  Error err;
  range_push("sample");
  if (generator_start(run->generator, prompt, count, &options, &err) == 0) {
    const size_t bytes = write_sample(run, text);
    printf("step %lld | sample\n----\n%.*s\n----\n", (long long)run->state.step, (int)bytes, text);
    fflush(stdout);
    log_sample(&run->log, run->state.step, text, bytes);
  } else {
    fprintf(stderr, "no sample: %s\n", err.text);
  }
  range_pop();
  free(text);
  free(prompt);
}

int run_save(Run *run, Error *err) {
  const Config *c = &run->config;
  if (run->saved_step == run->state.step || c->train.save_interval < 0) return 0;
  range_push("save");
  const int status =
      checkpoint_save(c->output.dir, &run->llama, c, &run->state, c->train.keep_checkpoints, err);
  range_pop();
  if (status != 0) return -1;
  run->saved_step = run->state.step;
  const long long step = run->state.step;
  log_save(&run->log, step, path_text("%s/step-%08lld", c->output.dir, step).text);
  return 0;
}
