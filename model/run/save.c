// A run's saves: in parallel with training where the host has the memory, else while training
// waits. Before each one the run checks that its folder is still its own.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/os.h"
#include "base/range.h"
#include "model/run/run.h"

SavesPlan saves_plan(const Config *config, const Spec *spec, size_t run_bytes) {
  if (!config->output.background_save || config->train.save_interval < 0) return (SavesPlan){0};
  SavesPlan plan = {.bytes = background_bytes(config, spec), .left = memory_available()};
  const size_t needed = plan.bytes + params_largest_bytes(&config->model); // which is written
  plan.background = run_bytes <= plan.left && needed <= plan.left - run_bytes;
  return plan;
}

void saves_open(Run *run) {
  Error err;
  run->saves.background = background_open(&run->llama, run->config.output.save_optimizer, &err);
  if (!run->saves.background) printf("saves      while training waits: %s\n", err.text);
}

static BestLoss best_of(const TrainState *s) {
  return (BestLoss){s->best_val_loss, s->best_val_step};
}

// A best validation that was not saved is forgotten: the next one is compared with the saved one.
static void book_failure(Run *run, int64_t step) {
  TrainState *s = &run->state;
  run->saves.best_is_new = true;
  if (!run->config.train.keep_best || run->saves.best_saving.step != step) return;
  if (checkpoint_best(run->saves.lock.path.text) == step) { // the failure came after it
    run->saves.best_saved = run->saves.best_saving;
  } else if (s->best_val_step == step) {
    s->best_val_loss = run->saves.best_saved.loss;
    s->best_val_step = run->saves.best_saved.step;
  }
}

// Takes a save that has ended into the run.
static int book(Run *run, const SaveResult *r, Error *err) {
  *err = r->error;
  run_lock_name(&run->saves.lock, err);
  if (r->status != 0) {
    book_failure(run, r->step);
    return -1;
  }
  if (err->text[0] != '\0' && strcmp(err->text, run->saves.remarks.text) != 0)
    fprintf(stderr, "train: %s\n", err->text);
  run->saves.remarks = *err;
  run->saves.step = r->step;
  run->saves.best_saved = run->saves.best_saving;
  run->saves.longest_ms = fmax(run->saves.longest_ms, r->ms);
  const PathText path = step_path(run->saves.lock.given.text, r->step, "");
  run->saves.path = path;
  log_save(&run->log, r->step, path.text, r->ms, r->waited_ms);
  return 0;
}

int run_save(Run *run, Error *err) {
  Saves *s = &run->saves;
  const Config *c = &run->config;
  const char *dir = s->lock.path.text;
  int status = 0;
  if ((s->step == run->state.step && !s->best_is_new) || c->train.save_interval < 0) return 0;
  s->best_is_new = false;
  s->best_saving = best_of(&run->state);
  log_sources(&run->log, &run->state);
  log_sync(&run->log); // so that it has all lines up to this step before the checkpoint is there
  range_push("save");
  if (s->background) {
    background_begin(s->background, dir, c, &s->export, &run->state);
  } else {
    const StateSource source = state_source(&run->llama);
    const double from_ms = now_ms();
    SaveResult r = {.step = run->state.step};
    r.status = checkpoint_save(dir, &source, c, &s->export, &run->state, &r.error);
    r.ms = r.waited_ms = now_ms() - from_ms;
    status = book(run, &r, err);
  }
  range_pop();
  return status;
}

void run_save_copied(Run *run) {
  if (run->saves.background) background_copied(run->saves.background);
}

int run_save_end(Run *run, bool wait, Error *err) {
  SaveResult result;
  if (!run->saves.background || !background_end(run->saves.background, wait, &result)) return 0;
  return book(run, &result, err);
}

// ---- The last one

bool run_folder_due(const Run *run) {
  enum { EVERY_MS = 1000 };
  return now_ms() - run->saves.looked_ms >= EVERY_MS;
}

// Ends what this run writes: the folder is not its own any more. What a save under way says is
// of no interest then.
static int abandon_folder(Run *run, Error *err) {
  Error ignored;
  run_save_end(run, true, &ignored);
  log_abandon(&run->log);
  error_append(err, "; the run ends at step %lld", (long long)run->state.step);
  if (run->saves.step < 0) return error_append(err, "; it has saved no checkpoint");
  return error_append(err, "; its last checkpoint is of step %lld", (long long)run->saves.step);
}

int run_check_folder(Run *run, bool now, Error *err) {
  if (!now && !run_folder_due(run)) return 0;
  run->saves.looked_ms = now_ms();
  return run_lock_check(&run->saves.lock, err) == 0 ? 0 : abandon_folder(run, err);
}

// As run_save_last, but for the log's record of the end.
static int save_last(Run *run, Error *err) {
  run_save_end(run, true, err); // this save comes after it, whether it succeeded or not
  if (run_check_folder(run, true, err) != 0) return -1;
  int status = run_save(run, err);
  if (status == 0) status = run_save_end(run, true, err);
  const Error why = *err;
  if (run_check_folder(run, true, err) != 0) return -1; // it may be gone by now
  *err = why;
  return status;
}

int run_save_last(Run *run, Error *err) {
  if (save_last(run, err) == 0) return 0;
  log_stop(&run->log, run->state.step, err->text);
  return -1;
}

int run_bad_data(Run *run, Error *err) {
  Error why;
  if (run_settle(run, &why) != 0 || (run->state.step > 0 && save_last(run, &why) != 0))
    error_append(err, "; %s", why.text);
  else if (run->saves.step == run->state.step)
    error_append(err, "; step %lld is saved", (long long)run->state.step);
  log_stop(&run->log, run->state.step, err->text);
  return -1;
}

double run_end_ms(const Run *run) {
  // Of a disk without a measured save, and of closing the open files.
  const double bytes_per_ms = 200e3, close_ms = 1000;
  const double state_bytes = 12.0 * (double)model_parameters(&run->config.model, true);
  const double save_ms =
      run->saves.longest_ms > 0 ? run->saves.longest_ms : state_bytes / bytes_per_ms;
  const double saves =
      run->saves.background ? 2.5 : 1.5; // one may be under way, and the next one be slower
  return (double)(run->be->steps_ahead + 2) * run->log.ms_mean + saves * save_ms + close_ms;
}

void saves_close(Run *run) {
  if (!run->saves.background) return;
  Error err;
  if (run_save_end(run, true, &err) != 0) fprintf(stderr, "train: %s\n", err.text);
  background_close(run->saves.background);
}
