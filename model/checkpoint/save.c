#define _GNU_SOURCE // renameat2
#include "model/checkpoint/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/checkpoint/files.h"
#include "data/safetensors.h"

// ---- The files of one checkpoint

// Fills tensors[count] with name, shape and dtype of `kind` of every HF tensor.
static void announce(const HfTensor *list, int count, ValueKind kind, SafeTensor *tensors) {
  for (int i = 0; i < count; i++) {
    const HfTensor *t = &list[i];
    tensors[i] = (SafeTensor){.name = value_name(t, kind), .dtype = SAFE_F32, .rank = t->rank};
    if (t->rank == 2) tensors[i].shape[0] = t->rows;
    tensors[i].shape[t->rank - 1] = t->cols;
  }
}

// Appends `kind` of every HF tensor, rows in Hugging Face's order.
static int append_values(SafeWriter *w, const Llama *llama, const HfTensor *list, int count,
                         ValueKind kind, Error *err) {
  Backend *be = llama->be;
  float *packed = NULL;
  int in_packed = -1, status = 0; // q, k and v share a packed tensor: read it once where they stand
                                  // in a row
  for (int i = 0; i < count && status == 0; i++) {
    const HfTensor *t = &list[i];
    const ParamTensor *p = &llama->tensors[t->param];
    if (t->param != in_packed) {
      free(packed);
      packed = xmalloc((size_t)(p->rows * p->cols) * sizeof *packed);
      be->read_master(be, packed, value_of(p, kind), p->rows * p->cols);
      in_packed = t->param;
    }
    for (int64_t row = 0; row < t->rows && status == 0; row++)
      status = safetensors_append(w, packed + layout_packed_row(&llama->config, t, row) * p->cols,
                                  (size_t)p->cols * sizeof *packed, err);
  }
  free(packed);
  return status;
}

// A safetensors file of the kinds [first, last].
static int write_values(const char *folder, const char *file, const Llama *llama, ValueKind first,
                        ValueKind last, Error *err) {
  const int count = hf_tensor_count(&llama->config), total = (int)(last - first + 1) * count;
  HfTensor *list = xcalloc((size_t)count, sizeof *list);
  hf_tensor_list(&llama->config, list);
  SafeTensor *tensors = xcalloc((size_t)total, sizeof *tensors);
  for (ValueKind kind = first; kind <= last; kind++)
    announce(list, count, kind, tensors + (int)(kind - first) * count);

  char *path = xasprintf("%s/%s", folder, file);
  SafeWriter w;
  int status = safetensors_create(&w, path, total, tensors, err);
  if (status == 0) {
    for (ValueKind kind = first; kind <= last && status == 0; kind++)
      status = append_values(&w, llama, list, count, kind, err);
    if (status == 0)
      status = safetensors_finish(&w, err);
    else
      safetensors_abandon(&w);
  }
  free(path);
  for (int i = 0; i < total; i++) free(tensors[i].name);
  free(tensors);
  free(list);
  return status;
}

// Takes the text over.
static int write_text(const char *folder, const char *file, char *text, Error *err) {
  char *path = xasprintf("%s/%s", folder, file);
  FileWriter w;
  int status = writer_open(&w, path, err);
  if (status == 0 && (status = writer_append(&w, text, strlen(text), err)) != 0) writer_abandon(&w);
  if (status == 0) status = writer_finish(&w, err);
  free(path);
  free(text);
  return status;
}

static int write_folder(const char *folder, const Llama *llama, const Config *config,
                        const TrainState *state, Error *err) {
  Config *stored = xmalloc(sizeof *stored);
  *stored = *config;
  stored->train.resume[0] = '\0';
  int status = directory_create(folder, err);
  if (status == 0)
    status = write_values(folder, WEIGHTS_FILE, llama, VALUE_WEIGHT, VALUE_WEIGHT, err);
  if (status == 0)
    status = write_values(folder, OPTIMIZER_FILE, llama, VALUE_EXP_AVG, VALUE_EXP_AVG_SQ, err);
  if (status == 0)
    status =
        write_text(folder, MODEL_CONFIG_FILE, model_config_json(&llama->config, "float32"), err);
  if (status == 0) status = write_text(folder, RUN_CONFIG_FILE, config_json(stored), err);
  if (status == 0) status = write_text(folder, STATE_FILE, state_json(state), err);
  if (status == 0) status = directory_sync(folder, err);
  free(stored);
  return status;
}

// ---- Its place in the run's folder

// Gives the finished folder its name. A folder that has the name already changes places with it.
static int put_in_place(const char *run_dir, int64_t step, Error *err) {
  char *temporary = step_path(run_dir, step, ".tmp"), *folder = step_path(run_dir, step, "");
  char *old = step_path(run_dir, step, ".old");
  int status = 0;
  if (!path_exists(folder)) {
    status = path_rename(temporary, folder, err);
  } else if (renameat2(AT_FDCWD, temporary, AT_FDCWD, folder, RENAME_EXCHANGE) != 0) {
    Error ignored;
    if (errno != EINVAL && errno != ENOSYS)
      status =
          error_set(err, "cannot exchange '%s' and '%s': %s", temporary, folder, strerror(errno));
    else if ((status = directory_remove(old, err)) == 0 &&
             (status = path_rename(folder, old, err)) == 0 &&
             (status = path_rename(temporary, folder, err)) != 0)
      path_rename(old, folder, &ignored);
  }
  free(old);
  free(folder);
  free(temporary);
  return status;
}

// Swings RUN/latest to the step's folder.
static int point_latest(const char *run_dir, int64_t step, Error *err) {
  char *link = xasprintf("%s/%s", run_dir, LATEST_LINK);
  char *temporary = xasprintf("%s/%s.tmp", run_dir, LATEST_LINK);
  char *folder = step_path(run_dir, step, "");
  int status = 0;
  if (unlink(temporary) != 0 && errno != ENOENT)
    status = error_set(err, "cannot remove '%s': %s", temporary, strerror(errno));
  else if (symlink(strrchr(folder, '/') + 1, temporary) != 0)
    status = error_set(err, "cannot create the link '%s': %s", temporary, strerror(errno));
  else if ((status = path_rename(temporary, link, err)) != 0)
    unlink(temporary);
  if (status == 0) status = directory_sync(run_dir, err);
  free(folder);
  free(temporary);
  free(link);
  return status;
}

// Removes all RUN/step-*SUFFIX; what cannot be removed stays for the next time.
static void remove_leftovers(const char *run_dir, const char *suffix) {
  Error ignored;
  int64_t *steps;
  int count;
  if (step_list(run_dir, suffix, &steps, &count, &ignored) == 0)
    for (int i = 0; i < count; i++) {
      char *path = step_path(run_dir, steps[i], suffix);
      directory_remove(path, &ignored);
      free(path);
    }
  free(steps);
}

// Of the complete checkpoints up to `step` keeps the newest `keep`. A folder loses its name before
// its files, so that a crash leaves no half checkpoint behind.
static void prune(const char *run_dir, int64_t step, int64_t keep) {
  Error ignored;
  int64_t *steps, complete = 0;
  int count;
  if (step_list(run_dir, "", &steps, &count, &ignored) == 0)
    for (int i = 0; i < count; i++) {
      char *path = step_path(run_dir, steps[i], ""), *doomed = step_path(run_dir, steps[i], ".tmp");
      if (steps[i] <= step && checkpoint_complete(path, &ignored) == 0 && ++complete > keep)
        path_rename(path, doomed, &ignored);
      free(doomed);
      free(path);
    }
  free(steps);
  remove_leftovers(run_dir, ".old");
  remove_leftovers(run_dir, ".tmp");
}

int checkpoint_save(const char *run_dir, const Llama *llama, const Config *config,
                    const TrainState *state, int64_t keep, Error *err) {
  assert(llama->shape.train && keep >= 1 && state->step >= 0);
  Error ignored;
  char previous[PATH_CHARS];
  if (checkpoint_find("auto", run_dir, previous, &ignored) != 0) previous[0] = '\0';
  char *temporary = step_path(run_dir, state->step, ".tmp");
  int status = directory_create(run_dir, err);
  if (status == 0) {
    remove_leftovers(run_dir, ".tmp"); // before writing: they may be what fills the disk
    status = write_folder(temporary, llama, config, state, err);
    if (status == 0) status = put_in_place(run_dir, state->step, err);
    if (status != 0) directory_remove(temporary, &ignored);
  }
  if (status == 0) status = directory_sync(run_dir, err);
  if (status == 0) status = point_latest(run_dir, state->step, err);
  if (status == 0) {
    prune(run_dir, state->step, keep);
  } else {
    const Error why = *err;
    error_set(err, "the checkpoint of step %lld could not be saved: %.1500s; %s%s%s",
              (long long)state->step, why.text,
              previous[0] ? "the checkpoint '" : "the run has no earlier checkpoint", previous,
              previous[0] ? "' is intact" : "");
  }
  free(temporary);
  return status;
}
