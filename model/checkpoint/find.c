// Which checkpoints a run's folder has, by the names of files alone.
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/checkpoint/files.h"

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

int give_path(char *path, const char *found, Error *err) {
  if (strlen(found) >= PATH_CHARS)
    return error_set(err, "the path '%s' is too long: at most %d bytes are allowed", found,
                     PATH_CHARS - 1);
  strcpy(path, found);
  return 0;
}

int checkpoint_find(const char *run_dir, char *path, Error *err) {
  RunCheckpoints c;
  TrainState state;
  Error ignored;
  int status = run_checkpoints(&c, run_dir, err), i = 0;
  path[0] = '\0';
  while (i < c.count && checkpoint_complete(c.list[i].path.text, &state, &ignored) != 0) i++;
  if (status == 0 && i < c.count) status = give_path(path, c.list[i].path.text, err);
  free(c.list);
  return status;
}
