// Whole safetensors files whose tensors have any names, shapes and dtypes, in one file or in two
// shards of an index, loaded as the weights of a tiny LLaMA: they load if each of its tensors is
// there once, and nothing else but what the loader says may be; else there is a sentence.
// Input: a byte of flags (1: two shards, 2: a tied model), then three bytes a tensor: which name,
// what is odd about it, and with what.
#undef NDEBUG
#include <assert.h>

#include "base/memory.h"
#include "model/run/checkpoint/files.h"
#include "tests/fuzz/folder.h"
#include "tests/support/shapes.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { MOST = 16, HF = 12 }; // tensors of a file, and of the model: one layer, tied or not
enum { NOTHING, NAME, SHAPE, DTYPE, BUFFER, HEAD, ODDITIES };

typedef struct Model {
  ModelConfig config;
  Backend *be;
  Llama llama;
  HfTensor *list; // [count]
  int count;
} Model;

static Model *model_of(bool tied) {
  static Model models[2];
  Model *m = &models[tied];
  if (m->be) return m;
  m->config = (ModelConfig){MODEL_SHAPE(8, 8, 1, 2, 1, 4, 6, 8), .tie_word_embeddings = tied};
  const Spec spec =
      model_spec(&m->config, (Spec){.batch = 1, .seq = 8, .loss_chunks = 1, .threads = 1});
  Error err;
  m->be = backend_cpu_create(&spec);
  assert(llama_create(&m->llama, &m->config, m->be, &err) == 0);
  m->list = hf_tensor_list(&m->config, &m->count);
  assert(m->count <= HF);
  return m;
}

// One tensor of the file. Returns whether it is, as it is, the model's tensor `which`.
static bool make_tensor(const Model *m, const uint8_t *record, SafeTensor *t, int *which) {
  static const SafeDtype dtypes[] = {SAFE_BF16, SAFE_F16, SAFE_F32, SAFE_I32, SAFE_F8_E4M3};
  const HfTensor *hf = &m->list[ *which = record[0] % m->count];
  const int odd = record[1] % ODDITIES, with = record[2];
  bool good = true;
  *t = (SafeTensor){.dtype = SAFE_F32,
                    .rank = hf->rank,
                    .shape = {hf->rank == 1 ? hf->cols : hf->rows, hf->rank == 1 ? 0 : hf->cols}};
  char name[256];
  snprintf(name, sizeof name, "%s", hf->name);
  if (odd == NAME) {
    char *at = &name[(size_t)with % strlen(name)];
    good = *at == (char)('a' + with % 26);
    *at = (char)('a' + with % 26);
  }
  if (odd == SHAPE) {
    const int64_t was = t->shape[with % t->rank];
    t->shape[with % t->rank] = with % 11;
    good = was == with % 11;
  }
  if (odd == DTYPE) {
    t->dtype = dtypes[with % 5];
    good = with % 5 < 3;
  }
  if (odd == BUFFER) snprintf(name, sizeof name, "a%d.rotary_emb.inv_freq", with);
  if (odd == HEAD) snprintf(name, sizeof name, "lm_head.weight");
  t->name = xstrdup(name);
  return good && odd < BUFFER;
}

// Zeros are what all tensors hold. Not by our writer, whose buffers are large.
static void write_file(const char *name, const SafeTensor *tensors, int count) {
  static const char *const dtypes[] = {[SAFE_F32] = "F32",
                                       [SAFE_BF16] = "BF16",
                                       [SAFE_F16] = "F16",
                                       [SAFE_I32] = "I32",
                                       [SAFE_F8_E4M3] = "F8_E4M3"};
  static char file[MOST * (256 + 4 * 11 * 11)];
  char *const json = file + sizeof(uint64_t);
  uint64_t at = (uint64_t)sprintf(json, "{"), data = 0;
  for (int i = 0; i < count; i++) {
    const SafeTensor *t = &tensors[i];
    const uint64_t bytes = safetensors_bytes(t);
    at += (uint64_t)sprintf(json + at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d", i ? "," : "",
                            t->name, dtypes[t->dtype], (int)t->shape[0]);
    if (t->rank == 2) at += (uint64_t)sprintf(json + at, ",%d", (int)t->shape[1]);
    at +=
        (uint64_t)sprintf(json + at, "],\"data_offsets\":[%d,%d]}", (int)data, (int)(data + bytes));
    data += bytes;
  }
  at += (uint64_t)sprintf(json + at, "}");
  memcpy(file, &at, sizeof at); // little-endian
  assert(sizeof at + at + data <= sizeof file);
  memset(json + at, 0, data);
  fuzz_write(name, file, sizeof at + at + data);
}

static void write_weights(SafeTensor *tensors, int count, bool shards) {
  static const char index[] = "{\"weight_map\": {\"x\": \"a.safetensors\", \"y\": "
                              "\"b.safetensors\"}}";
  (void)remove(path_text("%s/model.safetensors", fuzz_folder()).text);
  if (!shards) {
    write_file("model.safetensors", tensors, count);
    return;
  }
  fuzz_write("model.safetensors.index.json", index, sizeof index - 1);
  write_file("a.safetensors", tensors, count / 2);
  write_file("b.safetensors", tensors + count / 2, count - count / 2);
}

// What the loader promises, worked out from the list alone.
static bool should_load(const Model *m, const SafeTensor *tensors, const bool *good,
                        const int *which, int count) {
  bool there[HF] = {false};
  for (int i = 0; i < count; i++) {
    const char *name = tensors[i].name;
    for (int j = 0; j < i; j++) // in two shards; inside a file the writer's caller left them out
      if (strcmp(tensors[j].name, name) == 0 && !strstr(name, ".rotary_emb.inv_freq")) return false;
    if (good[i]) {
      there[which[i]] = true;
      continue;
    }
    if (strstr(name, ".rotary_emb.inv_freq")) continue;
    int own = 0;
    while (own < m->count && strcmp(m->list[own].name, name) != 0) own++;
    const bool as_head =
                   strcmp(name, "lm_head.weight") == 0, // of the embedding's bytes, or its own
        same = tensors[i].dtype == SAFE_F32 && tensors[i].rank == 2 && tensors[i].shape[0] == 6 &&
               tensors[i].shape[1] == 8;
    if (own < m->count && as_head && same) {
      there[own] = true;
      continue;
    }
    return false; // odd cases of a tied head: see the caller
  }
  for (int k = 0; k < m->count; k++)
    if (!there[k]) return false;
  return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (size == 0) return 0;
  const bool shards = bytes[0] & 1, tied = bytes[0] & 2;
  Model *m = model_of(tied);
  SafeTensor tensors[MOST];
  bool good[MOST], has_head = false;
  int which[MOST], count = 0;
  for (size_t at = 1; at + 3 <= size && count < MOST; at += 3) {
    good[count] = make_tensor(m, bytes + at, &tensors[count], &which[count]);
    bool twice = false; // no file of ours has a name twice: fuzz_safetensors tries that
    for (int j = 0; j < count; j++)
      twice |= !shards && strcmp(tensors[j].name, tensors[count].name) == 0;
    if (twice) {
      free(tensors[count].name);
      continue;
    }
    has_head |= tied && strcmp(tensors[count].name, "lm_head.weight") == 0;
    count++;
  }
  if (shards) // nor has half of them
    for (int i = 0; i < count; i++)
      for (int j = i + 1; j < count; j++)
        if ((i < count / 2) == (j < count / 2) && strcmp(tensors[i].name, tensors[j].name) == 0)
          snprintf(tensors[j].name, strlen(tensors[j].name) + 1, "%d", j);
  write_weights(tensors, count, shards);
  Error err = {""};
  Checkpoint c = {0};
  bool loaded = model_folder_read(fuzz_folder(), false, checkpoint_open_folder, &c, &err) == 0;
  if (loaded) {
    const bool fits = checkpoint_check(&c, &m->config, false, &err) == 0;
    loaded = checkpoint_load(&c, &m->llama, &err) == 0;
    assert(fits == loaded);
    checkpoint_close(&c);
  }
  assert(loaded || err.text[0] != '\0');
  for (int i = 0; i < count; i++) // a renamed one is no tensor of the model
    good[i] = good[i] && strcmp(tensors[i].name, m->list[which[i]].name) == 0;
  if (!has_head) assert(loaded == should_load(m, tensors, good, which, count));
  for (int i = 0; i < count; i++) free(tensors[i].name);
  return 0;
}
