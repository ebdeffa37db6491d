// Which checkpoints stay in a run's folder. Only what a save writes is ever removed, and nothing
// behind a link: any other folder stays, and the caller is told why.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "model/checkpoint/files.h"

// ---- What a save wrote

static bool is_ours(const char *name) {
  static const char *const names[] = {WEIGHTS_FILE,    WEIGHTS_INDEX_FILE, OPTIMIZER_FILE,
                                      RUN_CONFIG_FILE, STATE_FILE,         CHECKSUMS_FILE};
  int shard, shards;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(name, names[i]) == 0) return true;
  if (sscanf(name, "model-%5d-of-%5d", &shard, &shards) == 2)
    return strcmp(name, shard_name(shard - 1, shards).text) == 0;
  return export_writes(name);
}

static DIR *open_folder(const char *path) {
  const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
  if (fd >= 0 && !dir) close(fd);
  return dir;
}

// The next entry of the folder besides . and ..; NULL after the last.
static struct dirent *next_entry(DIR *dir) {
  struct dirent *e = readdir(dir);
  while (e && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)) e = readdir(dir);
  return e;
}

bool folder_is_ours(const char *path, Error *left) {
  DIR *dir = open_folder(path);
  const char *separator = left->text[0] ? "; " : "";
  bool ours = dir != NULL;
  if (!dir && (errno == ELOOP || errno == ENOTDIR))
    error_append(left, "%s'%s' is not removed: it is a link or a file", separator, path);
  for (struct dirent *e; ours && (e = next_entry(dir));) {
    struct stat st;
    ours = is_ours(e->d_name) && fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISREG(st.st_mode);
    if (!ours)
      error_append(left, "%s'%s' is not removed: no save wrote its '%.200s'", separator, path,
                   e->d_name);
  }
  if (dir) closedir(dir);
  return ours;
}

// Where a file cannot be removed the folder stays; the next save tries again.
static void remove_ours(const char *path) {
  DIR *dir = open_folder(path);
  for (struct dirent *e; dir && (e = next_entry(dir));)
    if (is_ours(e->d_name) && unlinkat(dirfd(dir), e->d_name, 0) != 0) break;
  if (dir) closedir(dir);
  rmdir(path);
}

// ---- What goes

void remove_leftovers(const char *run_dir, const char *suffix, Error *left) {
  Error ignored;
  int64_t *steps;
  int count;
  step_list(run_dir, suffix, &steps, &count, &ignored);
  for (int i = 0; i < count; i++) {
    const PathText path = step_path(run_dir, steps[i], suffix);
    if (folder_is_ours(path.text, left)) remove_ours(path.text);
  }
  free(steps);
}

void checkpoint_clear(const char *run_dir, Error *left) {
  left->text[0] = '\0';
  remove_leftovers(run_dir, ".tmp", left);
}

int64_t checkpoint_best(const char *run_dir) {
  return link_step(run_dir, BEST_LINK);
}

// As checkpoint.h says, in the order in which a resume tries them. An update that was applied since
// a save had a finite loss, so the weights that it was computed from were good. A folder loses its
// name before its files, so that a crash leaves no half checkpoint behind.
void prune(const char *run_dir, const TrainState *now, const TrainConfig *c, int64_t before,
           Error *left) {
  Error ignored;
  RunCheckpoints run;
  int64_t complete = 0, good = 0;
  const int64_t keep = c->keep_checkpoints, linked = checkpoint_best(run_dir);
  const int64_t best = !c->keep_best ? -1 : linked >= 0 ? linked : now->best_val_step;
  const int status = run_checkpoints(&run, run_dir, &ignored);
  for (int i = 0; i < run.count && status == 0; i++) {
    const RunCheckpoint *at = &run.list[i];
    TrainState state;
    if (at->step > now->step || at->old ||
        checkpoint_complete(at->path.text, &state, &ignored) != 0)
      continue;
    const bool passed = before >= 0 && at->step > before && at->step < now->step;
    const bool newest = !passed && complete++ < keep,
               last_good =
                   !passed && state.updates < now->updates && good++ < (keep > 1 ? keep - 1 : 1);
    if (!newest && !last_good && at->step != best && folder_is_ours(at->path.text, left))
      path_rename(at->path.text, step_path(run_dir, at->step, ".tmp").text, &ignored);
  }
  free(run.list);
}
