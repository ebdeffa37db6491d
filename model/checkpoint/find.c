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

int checkpoint_complete(const char *path, Error *err) {
  static const char *const files[] = {MODEL_CONFIG_FILE, OPTIMIZER_FILE, RUN_CONFIG_FILE};
  if (weights_complete(path, err) != 0) return -1;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (!has_file(path, files[i])) return error_set(err, "'%s' has no %s", path, files[i]);
  TrainState state;
  return checkpoint_read_state(path, &state, err);
}

// The step in "step-00000100SUFFIX", or a negative number if the name is not exactly one that
// step_path gives.
static int64_t step_in_name(const char *name, const char *suffix) {
  if (strncmp(name, "step-", 5) != 0) return -1;
  const int64_t step = strtoll(name + 5, NULL, 10);
  return strcmp(name, step_path(".", step, suffix).text + 2) == 0 ? step : -1;
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
    const int64_t step = step_in_name(entry->d_name, suffix);
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

// The newest complete step-*SUFFIX; *newest = -1 where there is none.
static int newest_complete(const char *run_dir, const char *suffix, int64_t *newest, Error *err) {
  int64_t *steps;
  int count, i = 0;
  Error ignored;
  const int status = step_list(run_dir, suffix, &steps, &count, err);
  while (i < count && checkpoint_complete(step_path(run_dir, steps[i], suffix).text, &ignored) != 0)
    i++;
  *newest = i < count ? steps[i] : -1;
  free(steps);
  return status;
}

static int give_path(char *path, const char *found, Error *err) {
  if (strlen(found) >= PATH_CHARS)
    return error_set(err, "the path '%s' is too long: at most %d bytes are allowed", found,
                     PATH_CHARS - 1);
  strcpy(path, found);
  return 0;
}

static int find_in_run(const char *run_dir, char *path, Error *err) {
  char target[PATH_MAX];
  const ssize_t length =
      readlink(path_text("%s/%s", run_dir, LATEST_LINK).text, target, sizeof target - 1);
  target[length > 0 ? length : 0] = '\0';
  const PathText latest =
      target[0] == '/' ? path_text("%s", target) : path_text("%s/%s", run_dir, target);
  Error ignored;
  if (length > 0 && checkpoint_complete(latest.text, &ignored) == 0)
    return give_path(path, latest.text, err);
  // An .old folder is newer than all others only after a crash in the middle of replacing it.
  int64_t step, old;
  if (newest_complete(run_dir, "", &step, err) != 0 ||
      newest_complete(run_dir, ".old", &old, err) != 0)
    return -1;
  path[0] = '\0';
  if (old > step) return give_path(path, step_path(run_dir, old, ".old").text, err);
  return step >= 0 ? give_path(path, step_path(run_dir, step, "").text, err) : 0;
}

int checkpoint_find(const char *resume, const char *run_dir, char *path, Error *err) {
  if (strcmp(resume, "auto") == 0) return find_in_run(run_dir, path, err);
  if (!path_exists(resume)) return error_set(err, "there is no folder '%s'", resume);
  if (!path_is_directory(resume))
    return error_set(err, "'%s' is not a folder; give a checkpoint's folder or a run's", resume);
  if (has_file(resume, WEIGHTS_FILE) || has_file(resume, WEIGHTS_INDEX_FILE))
    return give_path(path, resume, err);
  if (find_in_run(resume, path, err) != 0) return -1;
  if (path[0] != '\0') return 0;
  if (has_file(resume, MODEL_CONFIG_FILE)) return no_weights(resume, err);
  return error_set(err,
                   "'%s' is neither a checkpoint (it has no %s) nor the folder of a run (it "
                   "has no complete step-* folder)",
                   resume, WEIGHTS_FILE);
}
