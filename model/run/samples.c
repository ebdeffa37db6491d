// What a run writes between steps: a sample of the model's text.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/range.h"
#include "model/run/run.h"
#include "model/run/text.h"

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
  Writing writing = {
      .generator = run->generator,
      .tokenizer = run->tokenizer,
      .options = {.temperature = 0.8, .top_p = 1, .seed = c->seed, .max_tokens = c->sample_tokens},
      .stop = run->stop,
      .show = append,
      .context = &sample};
  sample_options_end(&writing.options, tokenizer_facts(run->tokenizer)->end);
  TokenIds ids = {0};
  range_push("sample");
  if (prompt_ids(run->tokenizer, "", 0, &ids, &err) == 0 &&
      text_write(&writing, "", 0, &ids, &err) == 0) {
    printf("step %lld | sample\n----\n%.*s\n----\n", (long long)run->state.step, (int)sample.bytes,
           sample.text);
    fflush(stdout);
    log_sample(&run->log, run->state.step, sample.text, sample.bytes);
  } else {
    fprintf(stderr, "no sample: %s\n", err.text);
  }
  range_pop();
  if (run->llama.shape.fp8) run->be->scalings_discard(run->be);
  free(ids.ids);
  free(sample.text);
  return !*run->stop;
}
