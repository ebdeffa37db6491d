// A run's saves: beside training where the host has the memory, else while training waits.
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/range.h"
#include "model/run/run.h"

SavesPlan saves_plan(const Config *config, const Backend *be, size_t planned_bytes) {
  if (!config->output.background_save || config->train.save_interval < 0) return (SavesPlan){0};
  const size_t run_bytes = be->memory_taken ? 0 : planned_bytes; // a GPU's are elsewhere
  SavesPlan plan = {.bytes = background_bytes(&config->model, be), .left = memory_available()};
  plan.background = run_bytes <= plan.left && plan.bytes <= plan.left - run_bytes;
  return plan;
}

void saves_open(Run *run) {
  Error err;
  run->saves = background_open(&run->llama, &err);
  if (!run->saves) printf("saves      while training waits: %s\n", err.text);
}

// Takes a save that has ended into the run.
static int book(Run *run, const SaveResult *r, Error *err) {
  *err = r->error;
  if (r->status != 0) return -1;
  run->saved_step = r->step;
  run->save_ms = fmax(run->save_ms, r->ms);
  const PathText path = path_text("%s/step-%08lld", run->config.output.dir, (long long)r->step);
  run->saved = path;
  log_save(&run->log, r->step, path.text, r->ms, r->waited_ms);
  return 0;
}

static int save_at_once(Run *run, Error *err) {
  const Config *c = &run->config;
  const StateSource source = state_source(&run->llama);
  const double from_ms = now_ms();
  SaveResult r = {.step = run->state.step};
  r.status = checkpoint_save(c->output.dir, &source, c, &run->export, &run->state, &r.error);
  r.ms = r.waited_ms = now_ms() - from_ms;
  return book(run, &r, err);
}

// Once, where data were made anew under the run.
static void watch_names(Run *run) {
  const char *path = loader_replaced(run->train_data);
  if (!path && run->val_data) path = loader_replaced(run->val_data);
  if (!path || run->replaced) return;
  run->replaced = true;
  fprintf(stderr,
          "train: '%s' was replaced or removed; the run goes on with the files that it opened, but "
          "cannot be resumed on others\n",
          path);
}

int run_save(Run *run, Error *err) {
  const Config *c = &run->config;
  int status = 0;
  const bool saved = run->saved_step == run->state.step && !run->best_is_new;
  if (saved || c->train.save_interval < 0) return 0;
  run->best_is_new = false;
  watch_names(run);
  log_sync(&run->log); // so that it has all lines up to this step before the checkpoint is there
  range_push("save");
  if (run->saves)
    background_begin(run->saves, c, &run->export, &run->state);
  else
    status = save_at_once(run, err);
  range_pop();
  return status;
}

void run_save_copied(Run *run) {
  if (run->saves) background_copied(run->saves);
}

int run_save_end(Run *run, bool wait, Error *err) {
  SaveResult result;
  if (!run->saves || !background_end(run->saves, wait, &result)) return 0;
  return book(run, &result, err);
}

// Saves what was done, if anything was, and waits for it.
static int save_the_last(Run *run, Error *err) {
  if (run_settle(run, err) != 0) return -1;
  if (run->state.step == 0) return 0;
  run_save_end(run, true, err); // whether the one before succeeded
  return run_save(run, err) == 0 ? run_save_end(run, true, err) : -1;
}

int run_check_data(Run *run, Error *err) {
  Error why;
  if (run->data_error.text[0] == '\0') return 0;
  *err = run->data_error;
  if (save_the_last(run, &why) != 0)
    error_append(err, "; the run was not saved: %s", why.text);
  else if (run->saved_step == run->state.step)
    error_append(err, "; step %lld is saved", (long long)run->state.step);
  log_stop(&run->log, run->state.step, err->text);
  return -1;
}

double run_end_ms(const Run *run) {
  // Of a disk that no save has been seen on, and of closing what is open.
  const double bytes_per_ms = 200e3, close_ms = 1000;
  const double state_bytes = 12.0 * (double)model_parameters(&run->config.model, true);
  const double save_ms = run->save_ms > 0 ? run->save_ms : state_bytes / bytes_per_ms;
  const double saves = run->saves ? 2.5 : 1.5; // one may be under way, and the next one be slower
  return (double)(run->be->steps_ahead + 2) * run->log.ms_mean + saves * save_ms + close_ms;
}

void saves_close(Run *run) {
  if (!run->saves) return;
  Error err;
  if (run_save_end(run, true, &err) != 0) fprintf(stderr, "%s\n", err.text);
  background_close(run->saves);
}
