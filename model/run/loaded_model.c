#include "model/run/commands.h"

#include <stdlib.h>

#include "base/file.h"
#include "model/run/backend.h"

// ---- Its files besides the weights

static int read_tokenizer(LoadedModel *t, Error *err) {
  tokenizer_close(t->tokenizer);
  t->tokenizer = NULL;
  const bool there = has_file(t->start.path, TOKENIZER_FILE);
  if (!there && t->model.vocab_size != BYTE_VOCAB) return 0;
  t->tokenizer = tokenizer_open(there ? t->start.path : BYTES_NAME, err);
  return t->tokenizer ? 0 : -1;
}

static int read_ends(LoadedModel *t, Error *err) {
  t->end_count = folder_ends(t->start.path, t->ends, MAX_ENDS, err);
  const int32_t end = t->tokenizer ? tokenizer_facts(t->tokenizer)->eos : NO_TOKEN;
  if (t->end_count == 0 && end != NO_TOKEN) t->ends[t->end_count++] = end;
  return t->end_count < 0 ? -1 : 0;
}

static int read_folder(void *trained, const char *folder, const FileSums *sums, Error *err) {
  LoadedModel *t = trained;
  const PathText config = path_text("%s/" MODEL_CONFIG_FILE, folder);
  return checkpoint_open_folder(&t->start, folder, sums, err) ||
                 model_config_read(&t->model, config.text, err) || read_tokenizer(t, err) ||
                 read_ends(t, err)
             ? -1
             : 0;
}

int loaded_open(LoadedModel *t, const char *dir, Error *err) {
  const Config any = {.backend = {.device = DEVICE_AUTO}};
  *t = (LoadedModel){0};
  return model_folder_read(dir, false, read_folder, t, err) ||
                 hardware_find(&t->hardware, &any, err)
             ? -1
             : 0;
}

// ---- The weights

int loaded_weights(const LoadedModel *t, const char *weights, Spec *asked, Error *err) {
  const ModelConfig *m = &t->model;
  const int64_t D = m->hidden_size, F = m->intermediate_size,
                Hd = m->num_attention_heads * m->head_dim;
  asked->fp8_weights = weights && strcmp(weights, "fp8") == 0;
  if (weights && !asked->fp8_weights && strcmp(weights, "bf16") != 0)
    return error_set(err, "--weights needs " WEIGHTS ", not '%s'", weights);
  if (!asked->fp8_weights || (D % FP8_GROUP == 0 && F % FP8_GROUP == 0 && Hd % FP8_GROUP == 0))
    return 0;
  return error_set(err,
                   "--weights fp8 needs multiples of %d as hidden_size, intermediate_size and "
                   "num_attention_heads x head_dim, and this model has %lld, %lld and %lld; take "
                   "bf16",
                   FP8_GROUP, (long long)D, (long long)F, (long long)Hd);
}

int loaded_load(LoadedModel *t, Spec asked, const char *advice, Error *err) {
  const Config config = {
      .model = t->model,
      .backend = {.graphs = asked.context > 0, .document_attention = t->document_attention}};
  const Spec spec = spec_resolve(&config, asked, &t->hardware);
  if (!(t->be = backend_open(&config, &spec, &t->hardware, err))) return -1;
  if (llama_create(&t->llama, &t->model, t->be, err) != 0) return error_append(err, "; %s", advice);
  return checkpoint_load(&t->start, &t->llama, err);
}

void loaded_close(LoadedModel *t) {
  llama_destroy(&t->llama);
  if (t->be) t->be->services.destroy(t->be);
  tokenizer_close(t->tokenizer);
  checkpoint_close(&t->start);
  *t = (LoadedModel){0};
}
