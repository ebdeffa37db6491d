// Opening and checking the folder of a checkpoint, or any folder of weights.
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/checkpoint/files.h"

static int open_file(Checkpoint *c, const char *path, Error *err) {
  c->files = xrealloc(c->files, (size_t)(c->file_count + 1) * sizeof *c->files);
  if (safetensors_open(&c->files[c->file_count], path, err) != 0) return -1;
  c->file_count++;
  return 0;
}

// Opens every file of an index. Its map is not needed: the names in the files are.
static int open_shards(Checkpoint *c, const char *folder, Error *err) {
  ShardNames shards;
  int status = shard_names_read(&shards, folder, err);
  for (int i = 0; i < shards.count && status == 0; i++)
    status = open_file(c, path_text("%s/%s", folder, shards.names[i]).text, err);
  shard_names_free(&shards);
  return status;
}

static int open_weights(Checkpoint *c, const char *folder, Error *err) {
  const PathText whole = path_text("%s/%s", folder, WEIGHTS_FILE);
  if (path_exists(whole.text)) return open_file(c, whole.text, err);
  if (!path_exists(path_text("%s/%s", folder, WEIGHTS_INDEX_FILE).text))
    return no_weights(folder, err);
  return open_shards(c, folder, err);
}

// What a run needs besides tensors, and does all of it speak of the same step?
static int check_state(const char *folder, const FileSums *sums, Error *err) {
  TrainState state;
  if (checkpoint_complete(folder, &state, err) != 0) return -1;
  const char *slash = strrchr(folder, '/');
  const int64_t named = step_in_name(slash ? slash + 1 : folder);
  if (named >= 0 && named != state.step)
    return error_set(err, "'%s' has the state of step %lld", folder, (long long)state.step);
  if (sums->count == 0) return 0; // of an older version
  if (sums->step != state.step)
    return error_set(err,
                     "'%s': " STATE_FILE " is of step %lld, but " CHECKSUMS_FILE " of step %lld",
                     folder, (long long)state.step, (long long)sums->step);
  return sums_check_small(sums, folder, err);
}

static int open_and_check(Checkpoint *c, FileSums *sums, Error *err) {
  const char *folder = c->path;
  if (sums_read(sums, folder, err) != 0 ||
      (c->with_optimizer && check_state(folder, sums, err) != 0) ||
      open_weights(c, folder, err) != 0)
    return -1;
  c->weight_files = c->file_count;
  c->has_checksums = sums->count > 0;
  if (c->with_optimizer && open_file(c, path_text("%s/%s", folder, OPTIMIZER_FILE).text, err) != 0)
    return -1;
  return content_check(c->files, c->file_count, sums, err);
}

int checkpoint_open_folder(Checkpoint *c, const char *folder, bool with_optimizer, Error *err) {
  *c = (Checkpoint){.with_optimizer = with_optimizer};
  if (give_path(c->path, folder, err) != 0) return -1;
  FileSums sums;
  const int status = open_and_check(c, &sums, err);
  sums_free(&sums);
  if (status != 0) checkpoint_close(c);
  return status;
}

void checkpoint_close(Checkpoint *c) {
  for (int i = 0; i < c->file_count; i++) safetensors_close(&c->files[i]);
  free(c->files);
  *c = (Checkpoint){0};
}
