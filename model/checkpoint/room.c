// Is there room for what is to be saved?
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/checkpoint/files.h"

static uint64_t list_bytes(const ModelConfig *model, TensorSet set, SafeDtype dtype) {
  TensorList list;
  tensor_list_make(&list, model, set, dtype);
  uint64_t bytes = 0;
  for (int i = 0; i < list.count; i++) bytes += tensor_bytes(&list.tensors[i]);
  tensor_list_free(&list);
  return bytes;
}

// Of the tensors, beside which the other files are small.
static uint64_t checkpoint_bytes(const Config *c) {
  const bool rounded = c->output.save_dtype == SAVE_BF16;
  return list_bytes(&c->model, WEIGHTS, rounded ? SAFE_BF16 : SAFE_F32) +
         list_bytes(&c->model, rounded ? MOMENTS_AND_MASTERS : MOMENTS, SAFE_F32);
}

int room_check(const char *run_dir, const Config *config, Error *err) {
  const uint64_t free_bytes = disk_free(run_dir), needed = checkpoint_bytes(config);
  if (free_bytes >= needed) return 0;
  return error_set(err,
                   "'%s' has %s of free space, but a checkpoint needs %s: make room, or choose "
                   "another output.dir",
                   run_dir, size_text(free_bytes).text, size_text(needed).text);
}

// The newest are there beside the one that is written.
int checkpoint_room(const char *run_dir, const Config *config, int64_t steps, Error *err) {
  const TrainConfig *t = &config->train;
  const int64_t saves = t->save_interval > 0 ? 1 + steps / t->save_interval : 1;
  int64_t *found;
  int count;
  if (t->save_interval < 0) return 0;
  if (room_check(run_dir, config, err) != 0)
    return error_append(err, "; train.save_interval=-1 trains without saving anything");
  if (step_list(run_dir, "", &found, &count, err) != 0) return -1;
  free(found);
  const int64_t all = count + saves, most = t->keep_checkpoints + 1,
                more = (all < most ? all : most) - count;
  const uint64_t bytes = checkpoint_bytes(config), free_bytes = disk_free(run_dir);
  if (more > 1 && free_bytes / bytes < (uint64_t)more)
    fprintf(stderr,
            "'%s' has %s of free space: not enough for the %lld checkpoints of %s more that "
            "train.keep_checkpoints=%lld asks for\n",
            run_dir, size_text(free_bytes).text, (long long)more, size_text(bytes).text,
            (long long)t->keep_checkpoints);
  return 0;
}
