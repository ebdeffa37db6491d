// Weights and moments from files of safetensors into the packed tensors.
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/run/checkpoint/files.h"
#include "model/tensors.h"

// ---- The tensors of our files

static bool in_set(TensorSet set, ParamState state, const HfTensor *t) {
  if (state != STATE_master) return set != WEIGHTS;
  return set == WEIGHTS || set == MOMENTS_AND_MASTERS || (set == MOMENTS_AND_NORMS && t->rank == 1);
}

static void list_add(TensorList *list, const HfTensor *t, ParamState state, const char *prefix,
                     SafeDtype dtype) {
  SafeTensor *tensor = &list->tensors[list->count];
  *tensor = (SafeTensor){.name = list->set == WEIGHTS ? xstrdup(t->name)
                                                      : xasprintf("%s.%s", prefix, t->name),
                         .dtype = dtype,
                         .rank = t->rank,
                         .shape = {t->rank == 1 ? t->cols : t->rows}};
  if (t->rank == 2) tensor->shape[1] = t->cols;
  list->hf[list->count] = *t;
  list->states[list->count++] = state;
}

void tensor_list_make(TensorList *list, const ModelConfig *model, bool muon, TensorSet set,
                      SafeDtype dtype) {
  int each;
  HfTensor *weights = hf_tensor_list(model, &each);
  const size_t most = (size_t)(PARAM_STATES * each);
  ParamTensor *table = xcalloc((size_t)params_count(model), sizeof *table);
  *list = (TensorList){.set = set,
                       .tensors = xcalloc(most + 1, sizeof *list->tensors),
                       .hf = xcalloc(most, sizeof *list->hf),
                       .states = xcalloc(most, sizeof *list->states)};
  params_table(model, muon, table);
  for (int i = 1; i <= PARAM_STATES; i++) { // the masters last
    const ParamState state = (ParamState)(i % PARAM_STATES);
    for (const HfTensor *t = weights; t < weights + each; t++) {
      const char *prefix = state_saved_as(&table[t->param], state);
      if (prefix && in_set(set, state, t)) list_add(list, t, state, prefix, dtype);
    }
  }
  free(weights);
  free(table);
}

void tensor_list_add_scalings(TensorList *list, const ModelConfig *model) {
  list->scalings = scaling_count(model);
  const size_t all = (size_t)(list->count + list->scalings);
  list->tensors = xrealloc(list->tensors, all * sizeof *list->tensors);
  for (int i = 0; i < list->scalings; i++)
    list->tensors[list->count + i] =
        (SafeTensor){.name = xasprintf(SCALINGS ".%s", scaling_name(model, i).text),
                     .dtype = SAFE_F32,
                     .rank = 1,
                     .shape = {SCALING_FLOATS}};
}

void tensor_list_free(TensorList *list) {
  const int count = list->count + list->scalings;
  for (int i = 0; i < count; i++) free(list->tensors[i].name);
  free(list->tensors);
  free(list->hf);
  free(list->states);
}

// ---- One file, or the shards of one

// The tensors of a list, and where each of them was found.
typedef struct Wanted {
  const ModelConfig *model;
  TensorList list;
  const SafeTensor **sources; // [list.count]
  PathText name;              // of the file, or of the folder of shards
  const SafeFile *files;      // [count]
  int count;
} Wanted;

// NULL if no file has it.
static const SafeTensor *find_tensor(const Wanted *w, const char *name) {
  const SafeTensor *found = NULL;
  for (int i = 0; i < w->count && !found; i++) found = safetensors_find(&w->files[i], name);
  return found;
}

// ---- Exactly these tensors must be there

static int check_shape(const Wanted *w, const SafeTensor *wanted, const SafeTensor *found,
                       Error *err) {
  const ShortText shape = safetensors_shape_text(wanted), theirs = safetensors_shape_text(found);
  const bool half = found->dtype == SAFE_BF16 || found->dtype == SAFE_F16,
             weights = w->list.set == WEIGHTS;
  if (strcmp(theirs.text, shape.text) != 0)
    return error_set(err, "'%s': the tensor '%s' has the shape %s, but this model's has %s",
                     w->name.text, found->name, theirs.text, shape.text);
  if (found->dtype == SAFE_F32 || (half && weights)) return 0;
  return error_set(err, "'%s': the dtype of the tensor '%s' is not %s", w->name.text, found->name,
                   weights ? "F32, BF16 or F16" : "F32");
}

static int refuse_missing(const Wanted *w, const SafeTensor *wanted, Error *err) {
  error_set(err, "'%s' lacks the tensor '%s' of shape %s", w->name.text, wanted->name,
            safetensors_shape_text(wanted).text);
  if (strcmp(wanted->name, "lm_head.weight") != 0) return -1;
  return error_append(err, "; if the model shares it with its embedding, tie_word_embeddings must "
                           "be true");
}

// It must be a scaling of this model, or all in one.
static int check_scaling(const Wanted *w, const SafeTensor *t, Error *err) {
  const int count = w->list.scalings;
  const SafeTensor *names = w->list.tensors + w->list.count,
                   all = {.rank = 2, .shape = {count, SCALING_FLOATS}};
  if (strcmp(t->name, SCALINGS) == 0) return check_shape(w, &all, t, err);
  for (int i = 0; i < count; i++)
    if (strcmp(t->name, names[i].name) == 0) return check_shape(w, &names[i], t, err);
  return error_set(err, "'%s' has the FP8 scaling '%.200s', for which this model has no place",
                   w->name.text, t->name);
}

static const SafeFile *file_of(const Wanted *w, const SafeTensor *t) {
  const SafeFile *file = w->files;
  while (t < file->tensors || t >= file->tensors + file->count) file++;
  return file;
}

// A tensor of a file that is not the source of a wanted one: -1 unless it says nothing new.
static int check_extra(const Wanted *w, const SafeTensor *t, Error *err) {
  // Buffers that older versions of transformers saved; they follow from rope_theta.
  if (name_ends_with(t->name, ".rotary_emb.inv_freq")) return 0;
  if (w->list.set != WEIGHTS && is_scaling(t))
    return strncmp(t->name, SCALINGS, strlen(SCALINGS)) == 0 ? check_scaling(w, t, err) : 0;
  if (find_tensor(w, t->name) != t)
    return error_set(err, "'%s': two shards have the tensor '%.200s'", w->name.text, t->name);
  if (w->list.set != WEIGHTS || !w->model->tie_word_embeddings ||
      strcmp(t->name, "lm_head.weight") != 0)
    return error_set(err,
                     "'%s' has the tensor '%.200s', for which this model of %lld layers has no "
                     "place",
                     w->name.text, t->name, (long long)w->model->num_hidden_layers);
  const SafeTensor *e = find_tensor(w, "model.embed_tokens.weight");
  bool equal;
  if (content_equal(file_of(w, t), t, file_of(w, e), e, &equal, err) != 0) return -1;
  return equal ? 0
               : error_set(err,
                           "'%s': lm_head.weight differs from model.embed_tokens.weight, but "
                           "tie_word_embeddings is true",
                           w->name.text);
}

static int check_files(const Wanted *w, Error *err) {
  for (int i = 0; i < w->list.count; i++) {
    const SafeTensor *wanted = &w->list.tensors[i];
    w->sources[i] = find_tensor(w, wanted->name);
    if (!w->sources[i]) return refuse_missing(w, wanted, err);
    if (check_shape(w, wanted, w->sources[i], err) != 0) return -1;
  }
  for (const SafeFile *file = w->files; file < w->files + w->count; file++)
    for (const SafeTensor *t = file->tensors; t < file->tensors + file->count; t++) {
      int k = 0;
      while (k < w->list.count && w->sources[k] != t) k++;
      if (k == w->list.count && check_extra(w, t, err) != 0) return -1;
    }
  return 0;
}

// Which masters stand beside the moments.
static TensorSet set_of(const SafeFile *file) {
  TensorSet set = MOMENTS;
  for (const SafeTensor *t = file->tensors; t < file->tensors + file->count; t++) {
    if (!is_state(t, STATE_master)) continue;
    if (t->rank != 1) return MOMENTS_AND_MASTERS;
    set = MOMENTS_AND_NORMS;
  }
  return set;
}

// Finds and checks the wanted tensors; wanted_close afterwards, also after an error.
static int wanted_open(Wanted *w, const SafeFile *files, int count, const ModelConfig *model,
                       bool muon, TensorSet set, Error *err) {
  *w = (Wanted){.model = model, .files = files, .count = count};
  w->name = count == 1 ? path_text("%s", files->path) : path_parent(files->path);
  tensor_list_make(&w->list, model, muon, set == MOMENTS ? set_of(files) : set, SAFE_F32);
  if (set != WEIGHTS) tensor_list_add_scalings(&w->list, model);
  w->sources = xcalloc((size_t)w->list.count, sizeof *w->sources);
  return check_files(w, err);
}

static void wanted_close(Wanted *w) {
  free(w->sources);
  tensor_list_free(&w->list);
}

// The same for the files of weights, and for the moments where the checkpoint was opened with them.
static int open_both(const Checkpoint *c, const ModelConfig *model, bool muon, Wanted *weights,
                     Wanted *moments, Error *err) {
  *moments = (Wanted){0};
  if (wanted_open(weights, c->files, c->weight_files, model, muon, WEIGHTS, err) != 0) return -1;
  if (!c->with_optimizer) return 0;
  return wanted_open(moments, c->files + c->weight_files, 1, model, muon, MOMENTS, err);
}

int checkpoint_check(const Checkpoint *c, const ModelConfig *model, bool muon, Error *err) {
  Wanted weights, moments;
  const int status = open_both(c, model, muon, &weights, &moments, err);
  wanted_close(&weights);
  wanted_close(&moments);
  return status;
}

// ---- Into the model

typedef struct Packing {
  const Wanted *w;
  int i;         // tensor of the list
  float *packed; // as large as the largest parameter
} Packing;

// Rows in our order. A part may begin and end inside of rows.
static void pack_part(void *packing, const unsigned char *from, int64_t first, int64_t count) {
  const Packing *p = packing;
  const HfTensor *t = &p->w->list.hf[p->i];
  const SafeDtype dtype = p->w->sources[p->i]->dtype;
  const uint64_t size = safetensors_element(dtype);
  for (int64_t done = 0, n; done < count; done += n) {
    const int64_t row = (first + done) / t->cols, col = (first + done) % t->cols;
    n = t->cols - col < count - done ? t->cols - col : count - done;
    safetensors_floats(dtype, from + (uint64_t)done * size, n,
                       p->packed + packed_row(p->w->model, t, row) * t->cols + col);
  }
}

// A state of a parameter from all of its parts, if the list has it.
static int load_state(const Wanted *w, const Llama *llama, int param, ParamState state,
                      Packing *packing, Error *err) {
  bool there = false;
  for (int i = 0; i < w->list.count; i++) {
    const SafeTensor *from = w->sources[i];
    if (w->list.hf[i].param != param || w->list.states[i] != state) continue;
    there = true;
    packing->i = i;
    if (content_visit(file_of(w, from), from, pack_part, packing, err) != 0) return -1;
  }
  if (there) state_write(llama->be, &llama->tensors[param], state, packing->packed);
  return 0;
}

static int load_values(const Wanted *w, const Llama *llama, Error *err) {
  // One for all: memory that the system hands out for the first time costs more than the reading.
  Packing packing = {.w = w, .packed = xmalloc(params_largest_bytes(&llama->config))};
  int status = 0;
  for (int i = 0; i < PARAM_STATES * llama->param_count && status == 0; i++)
    status = load_state(w, llama, i / PARAM_STATES, (ParamState)(i % PARAM_STATES), &packing, err);
  free(packing.packed);
  return status;
}

// In fresh memory; NULL where there are none. The older form is one tensor, by position.
static int read_scalings(const Wanted *w, const ModelConfig *model, ScalingState **states,
                         Error *err) {
  const int count = w->list.scalings;
  const SafeTensor *all = find_tensor(w, SCALINGS);
  int status = 0, found = 0, missing = -1;
  *states = xcalloc((size_t)count, sizeof **states);
  for (int i = 0; i < count && status == 0; i++) {
    const SafeTensor *one = find_tensor(w, w->list.tensors[w->list.count + i].name),
                     *from = one ? one : all;
    ScalingState *state = &(*states)[i];
    const uint64_t at = one ? 0 : (uint64_t)i * sizeof *state;
    found += from != NULL;
    if (from) status = content_read(file_of(w, from), from, at, sizeof *state, state, err);
    if (missing < 0 && state->scale == 0 && scaling_used(model, i)) missing = i;
  }
  if (status == 0 && found > 0 && missing >= 0)
    status = error_set(err, "'%s': '" SCALINGS "' has a scale of 0 for the %s, or none",
                       w->name.text, scaling_name(model, missing).text);
  if (found > 0) return status;
  free(*states);
  *states = NULL;
  return 0;
}

int checkpoint_load(const Checkpoint *c, Llama *llama, Error *err) {
  const bool with_optimizer = c->with_optimizer;
  Wanted weights, moments;
  ScalingState *scalings = NULL;
  int status = open_both(c, &llama->config, llama->spec.muon, &weights, &moments, err);
  if (status == 0 && with_optimizer && llama->spec.fp8)
    status = read_scalings(&moments, &llama->config, &scalings, err);
  if (status == 0 && moments.list.set != MOMENTS_AND_MASTERS)
    status = load_values(&weights, llama, err);
  if (status == 0 && with_optimizer) status = load_values(&moments, llama, err);
  if (status == 0) {
    if (scalings) llama->be->services.scalings_write(llama->be, scalings);
    if (!with_optimizer) llama_zero_moments(llama);
    llama->be->services.refresh(llama->be, llama->tensors, llama->param_count);
  }
  free(scalings);
  wanted_close(&moments);
  wanted_close(&weights);
  return status;
}
