// Which checkpoints a run's folder has.
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/checkpoint/files.h"

PathText step_path(const char *run_dir, int64_t step, const char *suffix) {
  return path_text("%s/step-%08" PRId64 "%s", run_dir, step, suffix);
}

static bool has_file(const char *path, const char *file) {
  const PathText name = path_text("%s/%s", path, file);
  return path_exists(name.text) && !path_is_directory(name.text);
}

int no_weights(const char *folder, Error *err) {
  if (!has_file(folder, "pytorch_model.bin") && !has_file(folder, "pytorch_model.bin.index.json"))
    return error_set(err, "'%s' has no weights: neither %s nor %s is there", folder, WEIGHTS_FILE,
                     WEIGHTS_INDEX_FILE);
  return error_set(
      err,
      "'%s' has its weights in pytorch_model.bin only, a Python pickle, which can run code; "
      "make safetensors of it: python3 -c \"from transformers import "
      "AutoModelForCausalLM as A; A.from_pretrained('%s', dtype='auto')"
      ".save_pretrained('%s')\"",
      folder, folder, folder);
}

static int weights_complete(const char *path, Error *err) {
  ShardNames shards;
  if (has_file(path, WEIGHTS_FILE)) return 0;
  if (!has_file(path, WEIGHTS_INDEX_FILE)) return no_weights(path, err);
  int status = shard_names_read(&shards, path, err);
  for (int i = 0; i < shards.count && status == 0; i++)
    if (!has_file(path, shards.names[i]))
      status = error_set(err, "'%s' has no %s", path, shards.names[i]);
  shard_names_free(&shards);
  return status;
}

int checkpoint_complete(const char *path, TrainState *state, Error *err) {
  static const char *const files[] = {MODEL_CONFIG_FILE, OPTIMIZER_FILE, RUN_CONFIG_FILE};
  if (weights_complete(path, err) != 0) return -1;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (!has_file(path, files[i])) return error_set(err, "'%s' has no %s", path, files[i]);
  return checkpoint_read_state(path, state, err);
}

// The step in "step-00000100SUFFIX", or a negative number if the name is not exactly one that
// step_path gives.
static int64_t step_with_suffix(const char *name, const char *suffix) {
  if (strncmp(name, "step-", 5) != 0) return -1;
  const int64_t step = strtoll(name + 5, NULL, 10);
  return strcmp(name, step_path(".", step, suffix).text + 2) == 0 ? step : -1;
}

int64_t step_in_name(const char *name) {
  return step_with_suffix(name, name_ends_with(name, ".old") ? ".old" : "");
}

static int descending(const void *a, const void *b) {
  const int64_t s = *(const int64_t *)a, t = *(const int64_t *)b;
  return s < t ? 1 : s > t ? -1 : 0;
}

int step_list(const char *run_dir, const char *suffix, int64_t **steps, int *count, Error *err) {
  *steps = NULL;
  *count = 0;
  DIR *dir = opendir(run_dir);
  if (!dir) {
    if (errno == ENOENT) return 0;
    return error_set(err, "cannot open the folder '%s': %s", run_dir, strerror(errno));
  }
  struct dirent *entry;
  while (errno = 0, (entry = readdir(dir))) {
    const int64_t step = step_with_suffix(entry->d_name, suffix);
    if (step < 0) continue;
    *steps = xrealloc(*steps, (size_t)(*count + 1) * sizeof **steps);
    (*steps)[(*count)++] = step;
  }
  const int why = errno;
  closedir(dir);
  if (*count > 0) qsort(*steps, (size_t)*count, sizeof **steps, descending);
  if (why == 0) return 0;
  *count = 0; // a part of the list would mislead
  return error_set(err, "cannot list the folder '%s': %s", run_dir, strerror(why));
}

// ---- Which of them

// A run's checkpoints in the order in which they are tried: what `latest` names and those before it
// come first, then what the run left when it was taken back; each from the newest on. An .old
// folder counts after one of its name: only a crash in the middle of replacing it leaves it alone.
typedef struct Candidates {
  int64_t latest; // the step that the link names; -1: none
  int count;
  PathText *paths;
} Candidates;

int64_t link_step(const char *run_dir, const char *link) {
  char target[PATH_MAX];
  const ssize_t length =
      readlink(path_text("%s/%s", run_dir, link).text, target, sizeof target - 1);
  target[length > 0 ? length : 0] = '\0';
  const char *slash = strrchr(target, '/');
  return step_in_name(slash ? slash + 1 : target);
}

// Of one suffix after the other, so that a merge by step is what is left.
static void add_candidates(Candidates *c, const char *run_dir, int64_t *const steps[2],
                           const int counts[2], bool later) {
  int at[2] = {0};
  while (at[0] < counts[0] || at[1] < counts[1]) {
    const int old = at[0] == counts[0] || (at[1] < counts[1] && steps[1][at[1]] > steps[0][at[0]]);
    const int64_t step = steps[old][at[old]++];
    if (later == (c->latest >= 0 && step > c->latest))
      c->paths[c->count++] = step_path(run_dir, step, old ? ".old" : "");
  }
}

static int candidates_list(Candidates *c, const char *run_dir, Error *err) {
  int64_t *steps[2] = {NULL};
  int counts[2] = {0};
  *c = (Candidates){.latest = link_step(run_dir, LATEST_LINK)};
  const int failed = step_list(run_dir, "", &steps[0], &counts[0], err) ||
                     step_list(run_dir, ".old", &steps[1], &counts[1], err);
  c->paths = xcalloc((size_t)(counts[0] + counts[1]), sizeof *c->paths);
  for (int later = 0; later < 2 && !failed; later++)
    add_candidates(c, run_dir, steps, counts, later);
  free(steps[0]);
  free(steps[1]);
  return failed ? -1 : 0;
}

int give_path(char *path, const char *found, Error *err) {
  if (strlen(found) >= PATH_CHARS)
    return error_set(err, "the path '%s' is too long: at most %d bytes are allowed", found,
                     PATH_CHARS - 1);
  strcpy(path, found);
  return 0;
}

static int find_in_run(const char *run_dir, char *path, Error *err) {
  Candidates list;
  TrainState state;
  Error ignored;
  int status = candidates_list(&list, run_dir, err), i = 0;
  path[0] = '\0';
  while (i < list.count && checkpoint_complete(list.paths[i].text, &state, &ignored) != 0) i++;
  if (status == 0 && i < list.count) status = give_path(path, list.paths[i].text, err);
  free(list.paths);
  return status;
}

// 1 if the run has saved since the list was made: it is made anew then.
static int open_one_of(Checkpoint *c, const Candidates *list, const char *run_dir,
                       bool with_optimizer, Error *err) {
  Error why;
  for (int i = 0; i < list->count; i++) {
    const char *path = list->paths[i].text;
    if (checkpoint_open_folder(c, path, with_optimizer, &why) == 0) return 0;
    if (!path_exists(path) || link_step(run_dir, LATEST_LINK) != list->latest) return 1;
    fprintf(stderr, "checkpoint '%s' is passed over: %s\n", path, why.text);
  }
  if (list->count == 0) return 0;
  return error_set(err, "'%s' has no checkpoint left to go on from", run_dir);
}

static int open_in_run(Checkpoint *c, const char *run_dir, bool with_optimizer, Error *err) {
  enum { MOST_TRIES = 1000 }; // of a run that saves without a pause
  int status = 1;
  *c = (Checkpoint){0};
  for (int i = 0; i < MOST_TRIES && status == 1; i++) {
    Candidates list;
    status = candidates_list(&list, run_dir, err);
    if (status == 0) status = open_one_of(c, &list, run_dir, with_optimizer, err);
    free(list.paths);
  }
  if (status == 1) return error_set(err, "'%s' changes too fast to be read", run_dir);
  return status;
}

// Is `named` a folder of weights, or else (1) a run's?
static int folder_kind(const char *named, Error *err) {
  if (!path_exists(named)) return error_set(err, "there is no folder '%s'", named);
  if (!path_is_directory(named))
    return error_set(err, "'%s' is not a folder; give a checkpoint's folder or a run's", named);
  return !has_file(named, WEIGHTS_FILE) && !has_file(named, WEIGHTS_INDEX_FILE);
}

static int no_checkpoint(const char *folder, Error *err) {
  if (has_file(folder, MODEL_CONFIG_FILE)) return no_weights(folder, err);
  return error_set(err,
                   "'%s' is neither a checkpoint (it has no %s) nor the folder of a run (it "
                   "has no complete step-* folder)",
                   folder, WEIGHTS_FILE);
}

int checkpoint_find(const char *resume, const char *run_dir, char *path, Error *err) {
  if (strcmp(resume, "auto") == 0) return find_in_run(run_dir, path, err);
  const int kind = folder_kind(resume, err);
  if (kind <= 0) return kind == 0 ? give_path(path, resume, err) : -1;
  if (find_in_run(resume, path, err) != 0) return -1;
  return path[0] != '\0' ? 0 : no_checkpoint(resume, err);
}

int checkpoint_open(Checkpoint *c, const char *resume, const char *run_dir, bool with_optimizer,
                    Error *err) {
  *c = (Checkpoint){0};
  if (strcmp(resume, "auto") == 0) return open_in_run(c, run_dir, with_optimizer, err);
  const int kind = folder_kind(resume, err);
  if (kind < 0) return -1;
  if (kind == 0) return checkpoint_open_folder(c, resume, with_optimizer, err);
  if (open_in_run(c, resume, with_optimizer, err) != 0) return -1;
  return c->path[0] != '\0' ? 0 : no_checkpoint(resume, err);
}
