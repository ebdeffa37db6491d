// Weights and moments from files of safetensors into the packed tensors.
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "model/checkpoint/files.h"
#include "base/json.h"
#include "data/safetensors.h"

enum { INDEX_MAX_BYTES = 100 * 1000 * 1000 };

master_t *value_of(const ParamTensor *p, ValueKind kind) {
  return kind == VALUE_WEIGHT ? p->master : kind == VALUE_EXP_AVG ? p->m : p->v;
}

char *value_name(const HfTensor *t, ValueKind kind) {
  static const char *const prefix[VALUE_KINDS] = {"", "exp_avg.", "exp_avg_sq."};
  return xasprintf("%s%s", prefix[kind], t->name);
}

// ---- One file, or the shards of one

typedef struct TensorFiles {
  char *name; // of the file, or of the index of the shards
  int count;
  SafeFile *files;
} TensorFiles;

static void close_files(TensorFiles *f) {
  for (int i = 0; i < f->count; i++) safetensors_close(&f->files[i]);
  free(f->files);
  free(f->name);
  *f = (TensorFiles){0};
}

// The tensor, with the file that has it in *file; NULL if none has.
static const SafeTensor *find_tensor(const TensorFiles *f, const char *name,
                                     const SafeFile **file) {
  for (int i = 0; i < f->count; i++) {
    const SafeTensor *t = safetensors_find(&f->files[i], name);
    if (t) {
      *file = &f->files[i];
      return t;
    }
  }
  return NULL;
}

static int compare_strings(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// Opens every file that weight_map names. The map itself is not needed: the names in the files are.
static int open_shards(TensorFiles *f, const char *folder, const cJSON *weight_map, Error *err) {
  const int entries = cJSON_GetArraySize(weight_map);
  const char **names = xcalloc((size_t)entries + 1, sizeof *names);
  int count = 0, status = 0;
  const cJSON *item;
  cJSON_ArrayForEach(item, weight_map) {
    if (!cJSON_IsString(item) || strchr(item->valuestring, '/') || item->valuestring[0] == '\0')
      status = error_set(err, "'%s': weight_map gives '%.200s' something that is not a file's name",
                         f->name, item->string);
    else
      names[count++] = item->valuestring;
  }
  qsort(names, (size_t)count, sizeof *names, compare_strings);
  f->files = xcalloc((size_t)count + 1, sizeof *f->files);
  for (int i = 0; i < count && status == 0; i++) {
    if (i > 0 && strcmp(names[i - 1], names[i]) == 0) continue;
    char *path = xasprintf("%s/%s", folder, names[i]);
    status = safetensors_open(&f->files[f->count], path, err);
    if (status == 0) f->count++;
    free(path);
  }
  free(names);
  return status;
}

static int open_index(TensorFiles *f, const char *folder, Error *err) {
  char *text;
  size_t bytes;
  if (file_read(f->name, INDEX_MAX_BYTES, &text, &bytes, err) != 0) return -1;
  cJSON *root = json_parse(f->name, text, bytes, err);
  int status = root ? 0 : -1;
  if (root) {
    const cJSON *weight_map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    status = cJSON_IsObject(weight_map)
                 ? open_shards(f, folder, weight_map, err)
                 : error_set(err, "'%s' has no object 'weight_map'", f->name);
  }
  cJSON_Delete(root);
  free(text);
  return status;
}

static int open_single(TensorFiles *f, Error *err) {
  f->files = xcalloc(1, sizeof *f->files);
  if (safetensors_open(&f->files[0], f->name, err) != 0) return -1;
  f->count = 1;
  return 0;
}

static int open_weights(TensorFiles *f, const char *folder, Error *err) {
  *f = (TensorFiles){.name = xasprintf("%s/%s", folder, WEIGHTS_FILE)};
  if (path_exists(f->name)) return open_single(f, err);
  char *index = xasprintf("%s/%s", folder, WEIGHTS_INDEX_FILE);
  if (!path_exists(index)) {
    free(index);
    return error_set(err, "'%s' has no weights: neither %s nor %s is there", folder, WEIGHTS_FILE,
                     WEIGHTS_INDEX_FILE);
  }
  free(f->name);
  f->name = index;
  return open_index(f, folder, err);
}

static int open_optimizer(TensorFiles *f, const char *folder, Error *err) {
  *f = (TensorFiles){.name = xasprintf("%s/%s", folder, OPTIMIZER_FILE)};
  return open_single(f, err);
}

// ---- What must be there, and nothing else

// What the files are read into: kinds [first, last] of every tensor of the list.
typedef struct Wanted {
  const ModelConfig *model;
  const HfTensor *list;
  int count;
  ValueKind first, last;
} Wanted;

static int check_tensor(const TensorFiles *f, const Wanted *w, const HfTensor *t, ValueKind kind,
                        Error *err) {
  SafeTensor expected = {.rank = t->rank, .shape = {t->rows, t->cols}};
  if (t->rank == 1) expected.shape[0] = t->cols;
  const ShapeText shape = safetensors_shape_text(&expected);
  char *name = value_name(t, kind);
  const SafeFile *file = NULL;
  const SafeTensor *found = find_tensor(f, name, &file);
  int status = 0;
  if (!found)
    status = error_set(err, "'%s' lacks the tensor '%s' of shape %s%s", f->name, name, shape.text,
                       strcmp(name, "lm_head.weight") == 0 && !w->model->tie_word_embeddings
                           ? "; if the model shares it with its embedding, tie_word_embeddings "
                             "must be true"
                           : "");
  else if (strcmp(safetensors_shape_text(found).text, shape.text) != 0)
    status = error_set(err, "'%s': the tensor '%s' has the shape %s, but this model's has %s",
                       f->name, name, safetensors_shape_text(found).text, shape.text);
  else if (kind == VALUE_WEIGHT
               ? found->dtype != SAFE_F32 && found->dtype != SAFE_BF16 && found->dtype != SAFE_F16
               : found->dtype != SAFE_F32)
    status = error_set(err, "'%s': the dtype of the tensor '%s' is not %s", f->name, name,
                       kind == VALUE_WEIGHT ? "F32, BF16 or F16" : "F32");
  free(name);
  return status;
}

static int ends_with(const char *name, const char *end) {
  const size_t n = strlen(name), m = strlen(end);
  return n >= m && strcmp(name + n - m, end) == 0;
}

// A tensor that the model has no parameter for: -1 unless it says nothing new.
static int check_extra(const TensorFiles *f, const Wanted *w, const SafeFile *file,
                       const SafeTensor *t, Error *err) {
  // Buffers that older versions of transformers saved; they follow from rope_theta.
  if (ends_with(t->name, ".rotary_emb.inv_freq")) return 0;
  if (w->first != VALUE_WEIGHT || !w->model->tie_word_embeddings ||
      strcmp(t->name, "lm_head.weight") != 0)
    return error_set(err,
                     "'%s' has the tensor '%.200s', for which this model of %lld layers has no "
                     "place",
                     f->name, t->name, (long long)w->model->num_hidden_layers);
  const SafeFile *embedding_file = NULL;
  const SafeTensor *embedding = find_tensor(f, "model.embed_tokens.weight", &embedding_file);
  const uint64_t bytes = t->end - t->begin;
  if (embedding && t->dtype == embedding->dtype && bytes == embedding->end - embedding->begin &&
      memcmp(file->data + t->begin, embedding_file->data + embedding->begin, bytes) == 0)
    return 0;
  return error_set(err,
                   "'%s': lm_head.weight differs from model.embed_tokens.weight, but "
                   "tie_word_embeddings is true",
                   f->name);
}

static int check_files(const TensorFiles *f, const Wanted *w, Error *err) {
  const int total = (int)(w->last - w->first + 1) * w->count;
  char **names = xcalloc((size_t)total, sizeof *names);
  int n = 0, status = 0;
  for (ValueKind kind = w->first; kind <= w->last; kind++)
    for (int i = 0; i < w->count; i++) {
      names[n++] = value_name(&w->list[i], kind);
      if (status == 0) status = check_tensor(f, w, &w->list[i], kind, err);
    }
  qsort(names, (size_t)total, sizeof *names, compare_strings);
  for (int i = 0; i < f->count; i++)
    for (int j = 0; j < f->files[i].count && status == 0; j++) {
      const SafeTensor *t = &f->files[i].tensors[j];
      const SafeFile *file = NULL;
      if (find_tensor(f, t->name, &file) != t)
        status = error_set(err, "'%s': two shards have the tensor '%.200s'", f->name, t->name);
      else if (!bsearch(&t->name, names, (size_t)total, sizeof *names, compare_strings))
        status = check_extra(f, w, &f->files[i], t, err);
    }
  for (int i = 0; i < total; i++) free(names[i]);
  free(names);
  return status;
}

// ---- Into the model

// Rows of one packed tensor from the HF tensors that it is made of.
static int gather(const TensorFiles *f, const Wanted *w, int param, ValueKind kind, float *packed,
                  Error *err) {
  int status = 0;
  for (int i = 0; i < w->count && status == 0; i++) {
    const HfTensor *t = &w->list[i];
    if (t->param != param) continue;
    char *name = value_name(t, kind);
    const SafeFile *file = NULL;
    const SafeTensor *from = find_tensor(f, name, &file);
    for (int64_t row = 0; row < t->rows && status == 0; row++)
      status = safetensors_read_f32(file, from, row * t->cols, t->cols,
                                    packed + layout_packed_row(w->model, t, row) * t->cols, err);
    free(name);
  }
  return status;
}

static int load_values(const TensorFiles *f, const Wanted *w, Llama *llama, Error *err) {
  Backend *be = llama->be;
  int status = 0;
  for (ValueKind kind = w->first; kind <= w->last; kind++)
    for (int i = 0; i < llama->param_count && status == 0; i++) {
      const ParamTensor *p = &llama->tensors[i];
      const int64_t elements = p->rows * p->cols;
      float *packed = xmalloc((size_t)elements * sizeof *packed);
      status = gather(f, w, i, kind, packed, err);
      if (status == 0) be->write_master(be, value_of(p, kind), packed, elements);
      free(packed);
    }
  return status;
}

static void zero_moments(Llama *llama) {
  for (int i = 0; i < llama->param_count; i++) {
    const ParamTensor *p = &llama->tensors[i];
    const size_t bytes = (size_t)(p->rows * p->cols) * llama->be->master_bytes;
    llama->be->zero(llama->be, p->m, bytes);
    llama->be->zero(llama->be, p->v, bytes);
  }
}

int checkpoint_load(const char *path, Llama *llama, bool with_optimizer, Error *err) {
  const int count = hf_tensor_count(&llama->config);
  HfTensor *list = xcalloc((size_t)count, sizeof *list);
  hf_tensor_list(&llama->config, list);
  const Wanted weights = {&llama->config, list, count, VALUE_WEIGHT, VALUE_WEIGHT};
  const Wanted moments = {&llama->config, list, count, VALUE_EXP_AVG, VALUE_EXP_AVG_SQ};
  TensorFiles weight_files = {0}, moment_files = {0};
  int status = open_weights(&weight_files, path, err);
  if (status == 0) status = check_files(&weight_files, &weights, err);
  if (status == 0 && with_optimizer) {
    status = open_optimizer(&moment_files, path, err);
    if (status == 0) status = check_files(&moment_files, &moments, err);
  }
  if (status == 0) status = load_values(&weight_files, &weights, llama, err);
  if (status == 0 && with_optimizer) status = load_values(&moment_files, &moments, llama, err);
  if (status == 0) {
    if (!with_optimizer && llama->shape.train) zero_moments(llama);
    llama->be->refresh(llama->be, llama->tensors, llama->param_count);
  }
  close_files(&moment_files);
  close_files(&weight_files);
  free(list);
  return status;
}
