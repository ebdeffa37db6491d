#include "model/run/checkpoint/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/folder.h"
#include "base/memory.h"
#include "model/run/checkpoint/files.h"
#include "model/tensors.h"

#define SHARD_BYTES UINT64_C(5000000000) // as transformers does

// ---- Where the values come from

static void read_backend(const StateSource *source, float *packed, int param, ParamState state) {
  state_read(source->llama->be, packed, &source->llama->tensors[param], state);
}

static void read_backend_scalings(const StateSource *source, ScalingState *states) {
  source->llama->be->services.scalings_read(source->llama->be, states);
}

StateSource state_source(const Llama *llama) {
  const bool scaled = llama->spec.fp8 && !llama->be->calibrating;
  return (StateSource){
      .llama = llama, .read = read_backend, .scalings = scaled ? read_backend_scalings : NULL};
}

// ---- The files of one checkpoint

// Writes the tensors [first, last) of the list, rows in Hugging Face's order.
static int append_values(SafeWriter *w, const StateSource *source, const TensorList *list,
                         int first, int last, Error *err) {
  const Llama *llama = source->llama;
  float *packed = NULL;
  int status = 0;
  for (int i = first; i < last && status == 0; i++) {
    const HfTensor *t = &list->hf[i];
    const ParamTensor *p = &llama->tensors[t->param];
    // gate and up, that stand side by side, are read once
    if (i == first || list->hf[i - 1].param != t->param || list->states[i - 1] != list->states[i]) {
      free(packed);
      packed = xmalloc((size_t)(p->rows * p->cols) * sizeof *packed);
      source->read(source, packed, t->param, list->states[i]);
    }
    for (int64_t row = 0; row < t->rows && status == 0; row++)
      status = safetensors_append_f32(w, list->tensors[i].dtype,
                                      packed + packed_row(&llama->config, t, row) * p->cols,
                                      p->cols, err);
  }
  free(packed);
  return status;
}

static int append_scalings(SafeWriter *w, const StateSource *source, Error *err) {
  const int count = scaling_count(&source->llama->config);
  ScalingState *states = xcalloc((size_t)count, sizeof *states);
  source->scalings(source, states);
  const int status =
      safetensors_append_f32(w, SAFE_F32, &states->scale, (int64_t)count * SCALING_FLOATS, err);
  free(states);
  return status;
}

static int write_tensors(const char *folder, const char *name, const StateSource *source,
                         const TensorList *list, int first, int last, FileSums *sums, Error *err) {
  SafeWriter w;
  const PathText path = path_text("%s/%s", folder, name);
  int status = safetensors_create(&w, path.text, sums->step, last - first + list->scalings,
                                  list->tensors + first, err);
  if (status == 0) status = append_values(&w, source, list, first, last, err);
  if (status == 0 && list->scalings) status = append_scalings(&w, source, err);
  if (status == 0) status = safetensors_finish(&w, err);
  if (status == 0) sums_add(sums, name, w.header + w.expected, w.checksum);
  return status;
}

// The tensors of the weights, or of optimizer.safetensors, which also has the weights that
// model.safetensors has rounded.
static void list_saved(TensorList *list, const Config *c, bool optimizer) {
  const bool rounded = c->output.save_dtype == SAVE_BF16;
  const TensorSet set = !optimizer                           ? WEIGHTS
                        : !rounded                           ? MOMENTS
                        : c->backend.masters == MASTERS_BF16 ? MOMENTS_AND_NORMS
                                                             : MOMENTS_AND_MASTERS;
  tensor_list_make(list, &c->model, c->optimizer.kind == OPTIMIZER_MUON, set,
                   rounded && !optimizer ? SAFE_BF16 : SAFE_F32);
}

// model.safetensors, or its shards and their index.
static int write_weights(const char *folder, const StateSource *source, const Config *config,
                         uint64_t most_bytes, FileSums *sums, Error *err) {
  TensorList list;
  list_saved(&list, config, false);
  int *first = xcalloc((size_t)list.count + 1, sizeof *first);
  const int shards = shards_plan(&list, most_bytes, first);
  int status = 0;
  for (int i = 0; i < shards && status == 0; i++) {
    const PathText name = shard_name(i, shards);
    status = write_tensors(folder, name.text, source, &list, first[i], first[i + 1], sums, err);
  }
  if (status == 0 && shards > 1)
    status =
        write_text(folder, WEIGHTS_INDEX_FILE, shards_json(&list, first, shards, sums->step), err);
  free(first);
  tensor_list_free(&list);
  return status;
}

static int write_optimizer(const char *folder, const StateSource *source, const Config *config,
                           FileSums *sums, Error *err) {
  TensorList list;
  list_saved(&list, config, true);
  if (source->scalings) tensor_list_add_scalings(&list, &config->model);
  const int status = write_tensors(folder, OPTIMIZER_FILE, source, &list, 0, list.count, sums, err);
  tensor_list_free(&list);
  return status;
}

static int write_folder(const char *folder, const StateSource *source, const Config *config,
                        const Export *export, const TrainState *state, Error *err) {
  const bool model_alone = !config->output.save_optimizer;
  const uint64_t most_bytes = export && export->shard_bytes ? export->shard_bytes : SHARD_BYTES;
  FileSums sums = {.step = state->step};
  TrainState stored_state = *state;
  stored_state.model_alone = model_alone;
  Config *stored = xmalloc(sizeof *stored);
  *stored = *config;
  stored->train.resume[0] = '\0';
  const bool failed =
      write_weights(folder, source, config, most_bytes, &sums, err) ||
      (!model_alone && write_optimizer(folder, source, config, &sums, err)) ||
      export_write(export, folder, &config->model, config->output.save_dtype, err) ||
      write_text(folder, RUN_CONFIG_FILE, config_json(stored), err) ||
      write_text(folder, STATE_FILE, state_json(&stored_state), err) ||
      sums_write(&sums, folder, err);
  sums_free(&sums);
  free(stored);
  return failed ? -1 : 0;
}

// ---- Free space

// Bytes of the tensor files; the others are negligible.
static uint64_t checkpoint_bytes(const Config *c) {
  uint64_t bytes = 0;
  for (int optimizer = 0; optimizer <= c->output.save_optimizer; optimizer++) {
    TensorList list;
    list_saved(&list, c, optimizer);
    for (int i = 0; i < list.count; i++) bytes += safetensors_bytes(&list.tensors[i]);
    tensor_list_free(&list);
  }
  return bytes;
}

static int check_room(const char *run_dir, const Config *config, Error *err) {
  const uint64_t free_bytes = disk_free(run_dir), needed = checkpoint_bytes(config);
  if (free_bytes >= needed) return 0;
  return error_set(err,
                   "'%s' has %s of free space, but a checkpoint needs %s: make room, or set "
                   "output.dir, output.save_dtype, output.save_optimizer=false or "
                   "train.save_interval=-1",
                   run_dir, size_text(free_bytes).text, size_text(needed).text);
}

// The newest are there beside the one that is written.
int checkpoint_room(const char *run_dir, const Config *config, int64_t steps, Error *err) {
  const TrainConfig *t = &config->train;
  const int64_t saves = t->save_interval > 0 ? 1 + steps / t->save_interval : 1;
  int64_t *found;
  int count;
  if (t->save_interval < 0) return 0;
  if (check_room(run_dir, config, err) != 0) return -1;
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

// ---- Its place in the run's folder

// Only files of these names are ever removed.
static bool save_writes(const char *name) {
  static const char *const names[] = {WEIGHTS_FILE,    WEIGHTS_INDEX_FILE, OPTIMIZER_FILE,
                                      RUN_CONFIG_FILE, STATE_FILE,         CHECKSUMS_FILE};
  int shard, shards;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(name, names[i]) == 0) return true;
  if (sscanf(name, "model-%5d-of-%5d", &shard, &shards) == 2)
    return strcmp(name, shard_name(shard - 1, shards).text) == 0;
  return export_writes(name);
}

// Swings RUN/NAME to the step's folder. Readers find the newest checkpoint without it, so a file
// system without symbolic links is no failure, but nothing may name an older one there.
static int point_link(const char *run_dir, const char *name, int64_t step, bool *no_links,
                      Error *err) {
  const PathText link = path_text("%s/%s", run_dir, name);
  const PathText temporary = path_text("%s.tmp", link.text), folder = step_path(".", step, "");
  if (unlink(temporary.text) != 0 && errno != ENOENT)
    return error_set(err, "cannot remove '%s': %s", temporary.text, strerror(errno));
  if (symlink(folder.text + 2, temporary.text) != 0) {
    *no_links = errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS;
    if (*no_links && (unlink(link.text) == 0 || errno == ENOENT)) return 0;
    return error_set(err, "cannot create the link '%s': %s", temporary.text, strerror(errno));
  }
  if (path_rename(temporary.text, link.text, err) == 0) return directory_sync(run_dir, err);
  unlink(temporary.text);
  return -1;
}

int checkpoint_take_back(const char *run_dir, int64_t step, Error *err) {
  bool no_links;
  return point_link(run_dir, LATEST_LINK, step, &no_links, err);
}

// ---- What goes. A link, and a folder that holds more than saves write, stay, and the caller is
// told

static void remark(Error *left, const Error *why) {
  error_append(left, "%s%s", left->text[0] ? "; " : "", why->text);
}

// Removes all RUN/step-*SUFFIX. Where the system refuses, the next save tries again.
static void remove_leftovers(const char *run_dir, const char *suffix, Error *left) {
  Error why;
  int64_t *steps;
  int count;
  step_list(run_dir, suffix, &steps, &count, &why);
  for (int i = 0; i < count; i++)
    if (folder_remove(step_path(run_dir, steps[i], suffix).text, NULL, save_writes, &why) > 0)
      remark(left, &why);
  free(steps);
}

void checkpoint_clear(const char *run_dir, Error *left) {
  left->text[0] = '\0';
  remove_leftovers(run_dir, ".tmp", left);
}

int64_t checkpoint_best(const char *run_dir) {
  return link_step(run_dir, BEST_LINK);
}

// Of the complete checkpoints up to this step these stay, in the order in which a resume tries
// them:
//   the newest keep_checkpoints;
//   the one that RUN/best names, or without a link the state's best;
//   the newest keep_checkpoints - 1, at least one, after which an update was applied. Its loss was
//     finite, so their weights are good, while the last save's may have diverged already.
// Checkpoints of later steps (from before a rollback) stay until the run passes them: until a save
// after which they lie between the step that `latest` named before (-1: not known) and this one.
static void prune(const char *run_dir, const TrainState *now, const TrainConfig *c, int64_t before,
                  Error *left) {
  Error why;
  RunCheckpoints run;
  int64_t complete = 0, good = 0;
  const int64_t keep = c->keep_checkpoints, linked = checkpoint_best(run_dir);
  const int64_t best = !c->keep_best ? -1 : linked >= 0 ? linked : now->best_val_step;
  const int status = run_checkpoints(&run, run_dir, &why);
  for (int i = 0; i < run.count && status == 0; i++) {
    const RunCheckpoint *at = &run.list[i];
    TrainState state;
    if (at->step > now->step || at->old || checkpoint_complete(at->path.text, &state, &why) != 0)
      continue;
    const bool passed = before >= 0 && at->step > before && at->step < now->step;
    const bool newest = !passed && complete++ < keep,
               last_good =
                   !passed && state.updates < now->updates && good++ < (keep > 1 ? keep - 1 : 1);
    if (!newest && !last_good && at->step != best &&
        folder_remove(at->path.text, step_path(run_dir, at->step, ".tmp").text, save_writes, &why) >
            0)
      remark(left, &why);
  }
  free(run.list);
}

// ---- A save

typedef struct Save {
  const char *run_dir;
  const StateSource *source;
  const Config *config;
  const Export *export;
  const TrainState *state;
  Error *err;
  int64_t latest; // that the link named before; -1: none
  Error remarks;  // about a save that succeeded
  bool saved;     // the checkpoint is in place
  int status;
} Save;

// A link that named the folder which this save replaced names another checkpoint now.
static int point_best(const Save *s, bool *no_links) {
  const TrainState *state = s->state;
  const bool best = s->config->train.keep_best && state->best_val_step == state->step &&
                    isfinite(state->best_val_loss);
  const PathText link = path_text("%s/" BEST_LINK, s->run_dir);
  if (best) return point_link(s->run_dir, BEST_LINK, state->step, no_links, s->err);
  if (checkpoint_best(s->run_dir) != state->step || unlink(link.text) == 0) return 0;
  return error_set(s->err, "cannot remove '%s': %s", link.text, strerror(errno));
}

static int save_checkpoint(Save *s) {
  const int64_t step = s->state->step;
  bool no_links = false;
  Folder folder;
  folder_alone(&folder, step_path(s->run_dir, step, "").text, save_writes);
  const bool failed =
      folder_begin(&folder, s->err) ||
      write_folder(folder.temporary.text, s->source, s->config, s->export, s->state, s->err) ||
      folder_commit(&folder, s->err) || point_best(s, &no_links) ||
      point_link(s->run_dir, LATEST_LINK, step, &no_links, s->err);
  folder_close(&folder);
  if (!failed && no_links)
    error_set(&s->remarks,
              "the links 'latest' and 'best' cannot be made in '%s', as its file system takes no "
              "symbolic links; the newest checkpoint is the step-* of the largest number",
              s->run_dir);
  return failed ? -1 : 0;
}

static int make_save(Save *s) {
  const char *run_dir = s->run_dir;
  const TrainConfig *train = &s->config->train;
  Error ignored = {""};
  prune(run_dir, s->state, train, -1, &ignored); // since the last save one may have become good
  remove_leftovers(run_dir, ".tmp", &ignored);   // before writing: they may fill the disk
  if (check_room(run_dir, s->config, s->err) != 0 || save_checkpoint(s) != 0) return -1;
  s->saved = true;
  prune(run_dir, s->state, train, s->latest, &s->remarks);
  remove_leftovers(run_dir, ".tmp", &s->remarks);
  remove_leftovers(run_dir, ".old", &s->remarks);
  return 0;
}

static void try_save(void *save) {
  Save *s = save;
  s->status = make_save(s);
}

int checkpoint_save(const char *run_dir, const StateSource *source, const Config *config,
                    const Export *export, const TrainState *state, Error *err) {
  assert(source->llama->spec.train && state->step >= 0);
  Save s = {.run_dir = run_dir,
            .source = source,
            .config = config,
            .export = export,
            .state = state,
            .err = err,
            .latest = link_step(run_dir, LATEST_LINK)}; // needs no memory
  // Memory that is refused after all is in place is no failure: pruning is tried again.
  if (memory_try(try_save, &s, err) ? s.status == 0 : s.saved) {
    *err = s.remarks;
    return 0;
  }
  const PathText latest = step_path(run_dir, s.latest, "");
  const Error why = *err;
  error_set(err, "the checkpoint of step %lld could not be saved: %.1000s; ",
            (long long)state->step, why.text);
  if (s.latest >= 0 && path_exists(latest.text))
    return error_append(err, "the checkpoint '%s' is intact", latest.text);
  return error_append(err, "earlier checkpoints, if there are any, are intact");
}
