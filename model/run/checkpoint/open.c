// Whether a checkpoint is complete, by the names of files alone; and opening and checking one, or
// any folder of weights.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/run/checkpoint/files.h"

// It has none in safetensors: names the weights that are there.
static int no_weights(const char *folder, Error *err) {
  if (!has_file(folder, "pytorch_model.bin") && !has_file(folder, "pytorch_model.bin.index.json"))
    return error_set(err, "'%s' has no weights: neither %s nor %s is there", folder, WEIGHTS_FILE,
                     WEIGHTS_INDEX_FILE);
  return error_set(err,
                   "'%s' has its weights in pytorch_model.bin only, a Python pickle, which can run "
                   "code: make safetensors of it, by transformers' from_pretrained and "
                   "save_pretrained",
                   folder);
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
  static const char *const files[] = {MODEL_CONFIG_FILE, RUN_CONFIG_FILE};
  if (weights_complete(path, err) != 0) return -1;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++)
    if (!has_file(path, files[i])) return error_set(err, "'%s' has no %s", path, files[i]);
  if (checkpoint_read_state(path, state, err) != 0) return -1;
  if (state->model_alone || has_file(path, OPTIMIZER_FILE)) return 0;
  return error_set(err, "'%s' has no %s", path, OPTIMIZER_FILE);
}

int checkpoint_exists(const char *run_dir, Error *err) {
  RunCheckpoints c;
  const int status = run_checkpoints(&c, run_dir, err);
  free(c.list);
  return status == 0 ? c.count > 0 : -1;
}

// ---- Opening: files of one step

// *named: the step that the files before it name; -1: none does. Other programs name none.
static int name_step(int64_t *named, int64_t step, const char *path, Error *err) {
  if (step < 0 || step == *named) return 0;
  if (*named >= 0)
    return error_set(err, "'%s' is of step %lld, but the files before it are of step %lld", path,
                     (long long)step, (long long)*named);
  *named = step;
  return 0;
}

// ---- Files of tensors

static int open_file(Checkpoint *c, const char *path, int64_t *named, Error *err) {
  c->files = xrealloc(c->files, (size_t)(c->file_count + 1) * sizeof *c->files);
  if (safetensors_open(&c->files[c->file_count], path, err) != 0) return -1;
  return name_step(named, c->files[c->file_count++].step, path, err);
}

// Opens every file of an index. Its map is not needed: the names in the files are.
static int open_shards(Checkpoint *c, int64_t *named, Error *err) {
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

static int open_weights(Checkpoint *c, int64_t *named, Error *err) {
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

// What a resumed run alone reads, but for the moments.
static int check_run_files(const char *folder, int64_t *named, Error *err) {
  TrainState state;
  if (checkpoint_complete(folder, &state, err) != 0) return -1;
  if (!state.model_alone)
    return name_step(named, state.step, path_text("%s/" STATE_FILE, folder).text, err);
  return error_set(err,
                   "no run resumes from '%s': it is the model alone, without the optimizer's "
                   "moments, as output.save_optimizer=false asked; train.init_from starts a run "
                   "from it",
                   folder);
}

static int open_and_check(Checkpoint *c, const FileSums *sums, Error *err) {
  const char *folder = c->path;
  int64_t named = step_in_name(folder); // -1: it names none
  if (sums->count > 0 &&
      name_step(&named, sums->step, path_text("%s/" CHECKSUMS_FILE, folder).text, err) != 0)
    return -1;
  if ((c->with_optimizer && check_run_files(folder, &named, err) != 0) ||
      open_weights(c, &named, err) != 0)
    return -1;
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
  snprintf(c->path, sizeof c->path, "%s", folder);
  const int status = strlen(folder) < sizeof c->path
                         ? open_and_check(c, sums, err)
                         : error_set(err, "the path '%s' is too long: at most %d bytes are allowed",
                                     folder, PATH_CHARS - 1);
  if (status == 0) return 0;
  checkpoint_close(c);
  c->with_optimizer = with_optimizer;
  return -1;
}

void checkpoint_close(Checkpoint *c) {
  for (int i = 0; i < c->file_count; i++) safetensors_close(&c->files[i]);
  free(c->files);
  *c = (Checkpoint){0};
}
