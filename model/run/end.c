// What a run says when it ends, and one that had ended before.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/command.h"
#include "data/chat/template.h"
#include "model/run/process.h"
#include "model/run/run.h"

// Frees `word`.
static void print_word(const char *before, char *word) {
  printf("%s%s", before, word);
  free(word);
}

// Whether it learnt conversations that --generate can continue: a mask says what counts in them.
static bool is_chat(const Run *run) {
  Error ignored;
  bool masked = false;
  for (int i = 0; i < run->train_data->file_count; i++)
    masked |= run->train_data->files[i].documents.masked;
  return masked && run->tokenizer && template_choose(run->tokenizer, NULL, "", &ignored);
}

// RUN/best where it is kept and is not the end, else "".
static PathText best_of(const Run *run) {
  const PathText best = path_text("%s/" BEST_LINK, run->config.output.dir);
  const bool other =
      isfinite(run->state.best_val_loss) && run->state.best_val_step < run->state.step;
  return path_text("%s",
                   run->config.train.keep_best && other && path_exists(best.text) ? best.text : "");
}

static void print_model(const Run *run) {
  const PathText best = best_of(run), saved = path_text("%s", run->saved.text);
  print_word("the model: ", shell_word(saved.text));
  if (best.text[0]) print_word("; the best by validation: ", shell_word(best.text));
  print_word("; write with it: ./train --generate ",
             shell_word(best.text[0] ? best.text : saved.text));
  printf(" %s \"...\"\n", is_chat(run) ? "--user" : "--prompt");
}

static void print_validation(const Run *run) {
  const TrainState *s = &run->state;
  if (!isfinite(run->last_val_loss)) return;
  printf("validation loss %.4f at the end", run->last_val_loss);
  if (s->best_val_step == s->step)
    printf(", the best of the run\n");
  else
    printf("; the best: %.4f at step %lld%s\n", s->best_val_loss, (long long)s->best_val_step,
           run->config.train.keep_best || s->best_val_step == 0
               ? ""
               : ", which train.keep_best=true would keep");
}

void run_print_finished(const Run *run) {
  const long long step = run->state.step, steps = run->config.train.steps;
  if (step > steps) {
    printf("nothing to train: the run is at step %lld already, beyond train.steps=%lld; a larger "
           "train.steps resumes it\n",
           step, steps);
  } else {
    printf("nothing to do: the run is done, at step %lld of %lld; ", step, steps);
    print_model(run);
  }
}

// How to continue a run that was stopped.
static void print_resume(const Run *run, const char *path, int override_count,
                         char *const *overrides) {
  const char *left_out = run->left_out;
  if (!run->config.output.save_optimizer) {
    printf("no run resumes from it, as output.save_optimizer=false asks; ");
    print_model(run);
    return;
  }
  if (left_out) printf("the checkpoint is saved, but the stop skipped %s; ", left_out);
  print_word(left_out ? "for the rest run: ./train " : "resume with: ./train ", shell_word(path));
  for (int i = 0; i < override_count; i++)
    if (strncmp(overrides[i], "train.resume=", 13) != 0) print_word(" ", shell_word(overrides[i]));
  printf(" train.resume=auto\n");
}

void run_print_end(const Run *run, const char *path, int override_count, char *const *overrides) {
  const long long step = run->state.step, steps = run->config.train.steps;
  if (run->saved_step < 0) {
    printf("ended after step %lld of %lld; nothing was saved, as train.save_interval asks\n", step,
           steps);
  } else if (step == steps && !run->left_out) {
    print_validation(run);
    printf("done; ");
    print_model(run);
  } else {
    printf("stopped after step %lld of %lld", step, steps);
    if (*run->stop == STOP_BY_TIME)
      printf(", as train.max_minutes=%g asks", run->config.train.max_minutes);
    printf("; ");
    print_resume(run, path, override_count, overrides);
  }
}
