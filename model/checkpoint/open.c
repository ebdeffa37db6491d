// Opening and checking the folder of a checkpoint, or any folder of weights.
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/checkpoint/files.h"

// ---- Of one step

// The step that something named, -1 while nothing has, and what it was.
typedef struct StepNamed {
  int64_t step;
  PathText by;
} StepNamed;

// A step below 0 is none: other programs name none.
static int name_step(StepNamed *named, int64_t step, const char *path, Error *err) {
  if (step < 0 || step == named->step) return 0;
  if (named->step >= 0)
    return error_set(err, "'%s' is of step %lld, but '%s' of step %lld", path, (long long)step,
                     named->by.text, (long long)named->step);
  *named = (StepNamed){step, path_text("%s", path)};
  return 0;
}

// ---- Files of tensors

static int open_file(Checkpoint *c, const char *path, StepNamed *named, Error *err) {
  c->files = xrealloc(c->files, (size_t)(c->file_count + 1) * sizeof *c->files);
  if (safetensors_open(&c->files[c->file_count], path, err) != 0) return -1;
  return name_step(named, c->files[c->file_count++].step, path, err);
}

// Opens every file of an index. Its map is not needed: the names in the files are.
static int open_shards(Checkpoint *c, StepNamed *named, Error *err) {
  ShardNames shards;
  const char *folder = c->path;
  int status = shard_names_read(&shards, folder, err);
  if (status == 0)
    status = name_step(named, shards.step, path_text("%s/" WEIGHTS_INDEX_FILE, folder).text, err);
  for (int i = 0; i < shards.count && status == 0; i++)
    status = open_file(c, path_text("%s/%s", folder, shards.names[i]).text, named, err);
  shard_names_free(&shards);
  return status;
}

static int open_weights(Checkpoint *c, StepNamed *named, Error *err) {
  const char *folder = c->path;
  if (has_file(folder, WEIGHTS_FILE))
    return open_file(c, path_text("%s/" WEIGHTS_FILE, folder).text, named, err);
  if (has_file(folder, WEIGHTS_INDEX_FILE)) return open_shards(c, named, err);
  if (has_file(folder, MODEL_CONFIG_FILE)) return no_weights(folder, err);
  return error_set(err,
                   "'%s' is neither a checkpoint (it has no %s) nor the folder of a run (it "
                   "has no complete step-* folder)",
                   folder, WEIGHTS_FILE);
}

// ---- All of it

static int open_and_check(Checkpoint *c, const FileSums *sums, Error *err) {
  const char *folder = c->path;
  TrainState state;
  StepNamed named = {.step = -1};
  name_step(&named, step_in_name(folder), folder, err);
  if (sums->count > 0 &&
      name_step(&named, sums->step, path_text("%s/" CHECKSUMS_FILE, folder).text, err) != 0)
    return -1;
  if (c->with_optimizer &&
      (checkpoint_complete(folder, &state, err) != 0 ||
       name_step(&named, state.step, path_text("%s/" STATE_FILE, folder).text, err) != 0))
    return -1;
  if (open_weights(c, &named, err) != 0) return -1;
  c->weight_files = c->file_count;
  if (c->with_optimizer &&
      open_file(c, path_text("%s/" OPTIMIZER_FILE, folder).text, &named, err) != 0)
    return -1;
  return content_check(c->files, c->file_count, sums, err);
}

int checkpoint_open_folder(void *checkpoint, const char *folder, const FileSums *sums, Error *err) {
  Checkpoint *c = checkpoint;
  const bool with_optimizer = c->with_optimizer;
  checkpoint_close(c);
  *c = (Checkpoint){.with_optimizer = with_optimizer, .has_checksums = sums->count > 0};
  if (give_path(c->path, folder, err) == 0 && open_and_check(c, sums, err) == 0) return 0;
  checkpoint_close(c);
  c->with_optimizer = with_optimizer;
  return -1;
}

void checkpoint_close(Checkpoint *c) {
  for (int i = 0; i < c->file_count; i++) safetensors_close(&c->files[i]);
  free(c->files);
  *c = (Checkpoint){0};
}
