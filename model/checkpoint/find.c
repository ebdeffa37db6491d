// Which checkpoints a run's folder has.
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/checkpoint/files.h"

static char *step_name(int64_t step, const char *suffix) {
  return xasprintf("step-%08" PRId64 "%s", step, suffix);
}

char *step_path(const char *run_dir, int64_t step, const char *suffix) {
  char *name = step_name(step, suffix);
  char *path = xasprintf("%s/%s", run_dir, name);
  free(name);
  return path;
}

static int has_file(const char *path, const char *file) {
  char *name = xasprintf("%s/%s", path, file);
  const int there = path_exists(name) && !path_is_directory(name);
  free(name);
  return there;
}

static int has_weights(const char *path) {
  return has_file(path, WEIGHTS_FILE) || has_file(path, WEIGHTS_INDEX_FILE);
}

int checkpoint_complete(const char *path, Error *err) {
  static const char *const files[] = {WEIGHTS_FILE, MODEL_CONFIG_FILE, OPTIMIZER_FILE,
                                      RUN_CONFIG_FILE};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (!has_file(path, files[i])) return error_set(err, "'%s' has no %s", path, files[i]);
  TrainState state;
  return checkpoint_read_state(path, &state, err);
}

// The step in "step-00000100SUFFIX", or -1 if the name is not exactly one that step_name gives.
static int64_t step_in_name(const char *name, const char *suffix) {
  if (strncmp(name, "step-", 5) != 0) return -1;
  errno = 0;
  const int64_t step = strtoll(name + 5, NULL, 10);
  if (errno != 0 || step < 0) return -1;
  char *expected = step_name(step, suffix);
  const int same = strcmp(name, expected) == 0;
  free(expected);
  return same ? step : -1;
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
  if (why != 0) return error_set(err, "cannot list the folder '%s': %s", run_dir, strerror(why));
  if (*count > 0) qsort(*steps, (size_t)*count, sizeof **steps, descending);
  return 0;
}

// The newest complete step-*SUFFIX, or -1 where there is none.
static int newest_complete(const char *run_dir, const char *suffix, int64_t *newest, Error *err) {
  int64_t *steps;
  int count;
  int status = step_list(run_dir, suffix, &steps, &count, err);
  *newest = -1;
  for (int i = 0; status == 0 && i < count && *newest < 0; i++) {
    char *path = step_path(run_dir, steps[i], suffix);
    Error ignored;
    if (checkpoint_complete(path, &ignored) == 0) *newest = steps[i];
    free(path);
  }
  free(steps);
  return status;
}

// What RUN/latest points at, in fresh memory, or NULL if that is no complete checkpoint.
static char *follow_latest(const char *run_dir) {
  char *link = xasprintf("%s/%s", run_dir, LATEST_LINK);
  char target[PATH_MAX];
  const ssize_t length = readlink(link, target, sizeof target - 1);
  free(link);
  if (length <= 0) return NULL;
  target[length] = '\0';
  char *path = target[0] == '/' ? xstrdup(target) : xasprintf("%s/%s", run_dir, target);
  Error ignored;
  if (checkpoint_complete(path, &ignored) == 0) return path;
  free(path);
  return NULL;
}

static int give_path(char *path, const char *found, Error *err) {
  if (strlen(found) >= PATH_CHARS)
    return error_set(err, "the path '%s' is too long: at most %d bytes are allowed", found,
                     PATH_CHARS - 1);
  strcpy(path, found);
  return 0;
}

static int find_in_run(const char *run_dir, char *path, Error *err) {
  char *found = follow_latest(run_dir);
  if (!found) {
    // An .old folder is newer than all others only after a crash in the middle of replacing it.
    int64_t step, old;
    if (newest_complete(run_dir, "", &step, err) != 0 ||
        newest_complete(run_dir, ".old", &old, err) != 0)
      return -1;
    found = old > step  ? step_path(run_dir, old, ".old")
            : step >= 0 ? step_path(run_dir, step, "")
                        : xstrdup("");
  }
  const int status = give_path(path, found, err);
  free(found);
  return status;
}

int checkpoint_find(const char *resume, const char *run_dir, char *path, Error *err) {
  if (strcmp(resume, "auto") == 0) return find_in_run(run_dir, path, err);
  if (!path_exists(resume)) return error_set(err, "there is no folder '%s'", resume);
  if (!path_is_directory(resume))
    return error_set(err, "'%s' is not a folder; give a checkpoint's folder or a run's", resume);
  if (has_weights(resume)) return give_path(path, resume, err);
  if (find_in_run(resume, path, err) != 0) return -1;
  if (path[0] != '\0') return 0;
  return error_set(err,
                   "'%s' is neither a checkpoint (it has no %s) nor the folder of a run (it "
                   "has no complete step-* folder)",
                   resume, WEIGHTS_FILE);
}
