// A run's saves: beside training where the host has the memory, else while training waits; and the
// last one, which finds another place where the run's folder is gone or takes nothing.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/range.h"
#include "base/command.h"
#include "model/run/run.h"

SavesPlan saves_plan(const Config *config, const Backend *be, size_t planned_bytes) {
  if (!config->output.background_save || config->train.save_interval < 0) return (SavesPlan){0};
  // What an open GPU's run has of the host's memory is taken already.
  const size_t run_bytes = be->services.memory_taken ? 0 : planned_bytes;
  SavesPlan plan = {.bytes = background_bytes(config, be), .left = memory_available()};
  const size_t needed = plan.bytes + params_largest_bytes(&config->model); // which is written
  plan.background = run_bytes <= plan.left && needed <= plan.left - run_bytes;
  return plan;
}

void saves_open(Run *run) {
  Error err;
  run->saves = background_open(&run->llama, run->config.output.save_optimizer, &err);
  if (!run->saves) printf("saves      while training waits: %s\n", err.text);
}

static BestLoss best_of(const TrainState *s) {
  return (BestLoss){s->best_val_loss, s->best_val_step};
}

// A best validation that was not saved is forgotten: the next one is compared with the saved one.
static void book_failure(Run *run, const RunLock *folder, int64_t step) {
  TrainState *s = &run->state;
  run->best_is_new = true;
  if (!run->config.train.keep_best || run->best_saving.step != step) return;
  if (checkpoint_best(folder->path.text) == step) { // the failure came after it
    run->best_saved = run->best_saving;
  } else if (s->best_val_step == step) {
    s->best_val_loss = run->best_saved.loss;
    s->best_val_step = run->best_saved.step;
  }
}

// Takes a save that has ended into the run.
static int book(Run *run, const RunLock *folder, const SaveResult *r, Error *err) {
  *err = r->error;
  run_lock_name(folder, err);
  if (r->status != 0) {
    book_failure(run, folder, r->step);
    return -1;
  }
  run->saved_step = r->step;
  run->best_saved = run->best_saving;
  run->save_ms = fmax(run->save_ms, r->ms);
  const PathText path = path_text("%s/step-%08lld", folder->name.text, (long long)r->step);
  run->saved = path;
  log_save(&run->log, r->step, path.text, r->ms, r->waited_ms);
  return 0;
}

static SaveResult save_at_once(Run *run, const RunLock *folder) {
  const StateSource source = state_source(&run->llama);
  const double from_ms = now_ms();
  SaveResult r = {.step = run->state.step};
  run->best_saving = best_of(&run->state);
  r.status = checkpoint_save(folder->path.text, &source, &run->config, &run->export, &run->state,
                             &r.error);
  r.ms = r.waited_ms = now_ms() - from_ms;
  return r;
}

static void note_sources(Run *run) {
  const TrainState *s = &run->state;
  double shares[MOST_SOURCES];
  for (int64_t i = 0; i < s->source_count; i++)
    shares[i] = (double)s->sources[i].drawn / (double)s->sequences;
  if (s->source_count > 0) log_sources(&run->log, s->step, s->source_count, shares);
}

int run_save(Run *run, Error *err) {
  const Config *c = &run->config;
  int status = 0;
  const bool saved = run->saved_step == run->state.step && !run->best_is_new;
  if (saved || c->train.save_interval < 0) return 0;
  run->best_is_new = false;
  note_sources(run);
  log_sync(&run->log); // so that it has all lines up to this step before the checkpoint is there
  range_push("save");
  if (run->saves) {
    run->best_saving = best_of(&run->state);
    background_begin(run->saves, run->lock.path.text, c, &run->export, &run->state);
  } else {
    const SaveResult r = save_at_once(run, &run->lock);
    status = book(run, &run->lock, &r, err);
  }
  range_pop();
  return status;
}

void run_save_copied(Run *run) {
  if (run->saves) background_copied(run->saves);
}

int run_save_end(Run *run, bool wait, Error *err) {
  SaveResult result;
  if (!run->saves || !background_end(run->saves, wait, &result)) return 0;
  return book(run, &run->lock, &result, err);
}

// ---- The last one

// Saves into a folder that did not exist: BASE.rescued-STEP, or BASE.rescued-STEP-2 and so on.
static int save_into_fresh(Run *run, const char *base, PathText *folder, Error *err) {
  enum { MOST_NAMES = 100 };
  const long long step = (long long)run->state.step;
  RunLock lock;
  *folder = path_text("%s.rescued-%08lld", base, step);
  for (int i = 2; mkdir(folder->text, 0755) != 0; i++) {
    if (errno != EEXIST || i > MOST_NAMES)
      return error_set(err, "cannot create the folder '%s': %s", folder->text, strerror(errno));
    *folder = path_text("%s.rescued-%08lld-%d", base, step, i);
  }
  int status = run_lock(&lock, folder->text, err);
  if (status == 0) {
    const SaveResult r = save_at_once(run, &lock);
    status = r.status;
    if (status == 0) log_move(&run->log, folder->text);
    if (status == 0) book(run, &lock, &r, err);
    run_unlock(&lock);
  }
  if (status != 0) rmdir(folder->text); // a failed save writes nothing into it
  return status;
}

static int say_where(const Run *run, const char *folder, Error *err) {
  char *word = shell_word(folder);
  const char *how = run->config.output.save_optimizer ? ": resume it with train.resume=auto "
                                                        "output.dir="
                                                      : ", the model alone, in ";
  error_append(err, "; step %lld is saved%s%s", (long long)run->state.step, how, word);
  free(word);
  return -1;
}

// Beside the run's folder, else among temporary files. *err says why; where it is saved is added.
static int save_elsewhere(Run *run, Error *err) {
  Error ignored;
  PathText folder;
  const char *home = run->lock.home.text, *slash = strrchr(home, '/'), *tmp = getenv("TMPDIR");
  const PathText other =
      path_text("%s/%s", tmp && tmp[0] != '\0' ? tmp : "/tmp", slash ? slash + 1 : home);
  const char *const bases[] = {home, other.text};
  for (int i = 0; i < 2; i++)
    if (save_into_fresh(run, bases[i], &folder, &ignored) == 0)
      return say_where(run, folder.text, err);
  log_move(&run->log, NULL);
  return error_append(err, "; neither '%s.rescued-*' nor '%s.rescued-*' takes it", home,
                      other.text);
}

// As run_save_last, but for the log's record of the end.
static int save_last(Run *run, Error *err) {
  Error lost = {""};
  run_save_end(run, true, err); // whether the one before succeeded
  const BestLoss best = best_of(&run->state);
  FolderState folder = run_lock_look(&run->lock, &lost);
  int status = folder == FOLDER_LOST ? -1 : run_save(run, err);
  if (status == 0) status = run_save_end(run, true, err);
  if (folder == FOLDER_KEPT) folder = run_lock_look(&run->lock, &lost); // it may be gone by now
  if (status == 0 && folder == FOLDER_KEPT) return 0;
  if (folder != FOLDER_KEPT) *err = lost;
  if (run->config.train.save_interval < 0)
    return error_append(err, "; nothing was saved, as train.save_interval=-1 asks");
  if (status == 0 && folder == FOLDER_MOVED) return say_where(run, run->lock.name.text, err);
  run->state.best_val_loss = best.loss;
  run->state.best_val_step = best.step;
  return save_elsewhere(run, err);
}

int run_save_last(Run *run, Error *err) {
  if (run_settle(run, err) != 0) return -1;
  if (save_last(run, err) == 0) return 0;
  log_stop(&run->log, run->state.step, err->text);
  return -1;
}

bool run_folder_due(const Run *run) {
  enum { EVERY_MS = 1000 };
  return now_ms() - run->looked_ms >= EVERY_MS;
}

int run_check_folder(Run *run, bool now, Error *err) {
  if (!now && !run_folder_due(run)) return 0;
  run->looked_ms = now_ms();
  return run_lock_look(&run->lock, err) == FOLDER_KEPT ? 0 : run_save_last(run, err);
}

int run_bad_data(Run *run, Error *err) {
  Error why;
  if (run->data_error.text[0] == '\0') return -1;
  *err = run->data_error;
  if (run_settle(run, &why) != 0 || (run->state.step > 0 && save_last(run, &why) != 0))
    error_append(err, "; %s", why.text);
  else if (run->saved_step == run->state.step)
    error_append(err, "; step %lld is saved", (long long)run->state.step);
  log_stop(&run->log, run->state.step, err->text);
  return -1;
}

double run_end_ms(const Run *run) {
  // Of a disk without a measured save, and of closing the open files.
  const double bytes_per_ms = 200e3, close_ms = 1000;
  const double state_bytes = 12.0 * (double)model_parameters(&run->config.model, true);
  const double save_ms = run->save_ms > 0 ? run->save_ms : state_bytes / bytes_per_ms;
  const double saves = run->saves ? 2.5 : 1.5; // one may be under way, and the next one be slower
  return (double)(run->be->steps_ahead + 2) * run->log.ms_mean + saves * save_ms + close_ms;
}

void saves_close(Run *run) {
  if (!run->saves) return;
  Error err;
  if (run_save_end(run, true, &err) != 0) fprintf(stderr, "train: %s\n", err.text);
  background_close(run->saves);
}
