#include "model/run/checkpoint/checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "data/chat/render.h"
#include "model/run/checkpoint/files.h"

#define GENERATION_FILE "generation_config.json"

enum { CONFIG_BYTES = 1 << 20, CARRIED_BYTES = 64 << 20 };

// Where there is a tokenizer, the first two come from tokenizer_save.
static const char *const carried_names[] = {
    "tokenizer.json",    "tokenizer_config.json", GENERATION_FILE, "special_tokens_map.json",
    "added_tokens.json", "tokenizer.model",       "vocab.json",    "merges.txt",
    CHAT_TEMPLATE_FILE,  "chat_template.json",
};
enum { SAVED = 2, CARRIED = sizeof carried_names / sizeof *carried_names };

// Whether the folder's tokenizer is this one; true where no tokenizer is known.
static bool has_tokenizer(const char *folder, const Tokenizer *tokenizer) {
  if (!tokenizer) return true;
  const PathText path = path_text("%s/tokenizer.json", folder);
  if (!path_exists(path.text)) return false;
  const TokenizerFacts *facts = tokenizer_facts(tokenizer);
  if (strcmp(facts->name, folder) == 0 || strcmp(facts->name, path.text) == 0) return true;
  Error ignored; // a tokenizer that cannot be read is another one
  Tokenizer *theirs = tokenizer_open(folder, &ignored);
  const bool same = theirs && tokenizer_facts(theirs)->fingerprint == facts->fingerprint;
  tokenizer_close(theirs);
  return same;
}

// The tokenizer's own template comes from tokenizer_save.
static bool writes_template(const Export *x, const char *name) {
  return x->tokenizer && tokenizer_facts(x->tokenizer)->chat_template &&
         strcmp(name, CHAT_TEMPLATE_FILE) == 0;
}

static int read_files(Export *x, const char *from, Error *err) {
  x->files = xcalloc(CARRIED, sizeof *x->files);
  for (int i = x->tokenizer ? SAVED : 0; i < CARRIED; i++) {
    const PathText path = path_text("%s/%s", from, carried_names[i]);
    CarriedFile *file = &x->files[x->count];
    if (!path_exists(path.text) || writes_template(x, carried_names[i])) continue;
    if (file_read(path.text, CARRIED_BYTES, &file->data, &file->bytes, err) != 0) return -1;
    file->name = carried_names[i];
    x->count++;
    if (file_refuse_packed(path.text, file->data, file->bytes, err) != 0) return -1;
  }
  return 0;
}

static int read_config(Export *x, const char *from, Error *err) {
  const PathText path = path_text("%s/" MODEL_CONFIG_FILE, from);
  size_t bytes;
  if (file_read(path.text, CONFIG_BYTES, &x->config, &bytes, err) != 0) {
    x->config = NULL;
    return -1;
  }
  cJSON *tree = json_parse(path.text, x->config, bytes, err);
  const bool object = cJSON_IsObject(tree);
  if (tree && !object) error_set(err, "'%s' is not a JSON object", path.text);
  cJSON_Delete(tree);
  return object ? 0 : -1;
}

int export_open(Export *x, const Tokenizer *tokenizer, const char *from, Error *err) {
  *x = (Export){.tokenizer = tokenizer};
  if (from[0] == '\0') return 0;
  x->same_tokenizer = has_tokenizer(from, tokenizer);
  if (read_config(x, from, err) == 0 && (!x->same_tokenizer || read_files(x, from, err) == 0))
    return 0;
  export_close(x);
  return -1;
}

bool export_writes(const char *name) {
  for (int i = 0; i < CARRIED; i++)
    if (strcmp(name, carried_names[i]) == 0) return true;
  return strcmp(name, MODEL_CONFIG_FILE) == 0;
}

void export_close(Export *x) {
  for (int i = 0; i < x->count; i++) free(x->files[i].data);
  free(x->files);
  free(x->config);
  *x = (Export){0};
}

// ---- Writing

int write_text(const char *folder, const char *name, char *text, Error *err) {
  const int status = file_write(path_text("%s/%s", folder, name).text, text, strlen(text), err);
  free(text);
  return status;
}

// The token that ends a turn is one more eos_token_id.
static int write_generation_config(const char *folder, int bos, int eos, int turn, Error *err) {
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  json_number(&w, "bos_token_id", bos < 0 ? NAN : bos, JSON_EXACT);
  if (turn < 0 || turn == eos) {
    json_number(&w, "eos_token_id", eos < 0 ? NAN : eos, JSON_EXACT);
  } else {
    json_open(&w, "eos_token_id", '[');
    if (eos >= 0) json_whole(&w, NULL, eos);
    json_whole(&w, NULL, turn);
    json_close(&w, ']');
  }
  json_close(&w, '}');
  return write_text(folder, GENERATION_FILE, w.text, err);
}

// The carried file with `turn` among its eos_token_id, in fresh memory; NULL: it has that, or is
// no JSON that we could change.
static char *with_turn(const CarriedFile *file, int turn) {
  Error ignored;
  cJSON *tree = json_parse(GENERATION_FILE, file->data, file->bytes, &ignored);
  const cJSON *eos = cJSON_GetObjectItemCaseSensitive(tree, "eos_token_id");
  const cJSON *first = cJSON_IsArray(eos) ? eos->child : eos;
  bool there = !cJSON_IsObject(tree);
  cJSON *list = cJSON_CreateArray();
  for (const cJSON *id = first; id; id = cJSON_IsArray(eos) ? id->next : NULL) {
    there |= id->valuedouble == turn;
    if (cJSON_IsNumber(id)) cJSON_AddItemToArray(list, cJSON_CreateNumber(id->valuedouble));
  }
  char *text = NULL;
  if (!there) {
    cJSON_AddItemToArray(list, cJSON_CreateNumber(turn));
    cJSON_DeleteItemFromObjectCaseSensitive(tree, "eos_token_id");
    cJSON_AddItemToObject(tree, "eos_token_id", list);
    text = cJSON_Print(tree);
    list = NULL;
  }
  cJSON_Delete(list);
  cJSON_Delete(tree);
  return text;
}

static int write_files(const Export *x, const char *folder, int bos, int eos, Error *err) {
  const int turn = x->tokenizer ? template_end(x->tokenizer) : NO_TOKEN;
  bool generation = !x->tokenizer;
  for (int i = 0; i < x->count; i++) {
    const CarriedFile *file = &x->files[i];
    const PathText path = path_text("%s/%s", folder, file->name);
    const bool is_generation = strcmp(file->name, GENERATION_FILE) == 0;
    generation |= is_generation;
    char *changed = is_generation && turn != NO_TOKEN ? with_turn(file, turn) : NULL;
    const int status = changed ? file_write(path.text, changed, strlen(changed), err)
                               : file_write(path.text, file->data, file->bytes, err);
    cJSON_free(changed);
    if (status != 0) return -1;
  }
  if (!generation && write_generation_config(folder, bos, eos, turn, err) != 0) return -1;
  return x->tokenizer ? tokenizer_save(x->tokenizer, folder, err) : 0;
}

int export_write(const Export *x, const char *folder, const ModelConfig *model, SaveDtype dtype,
                 Error *err) {
  const TokenizerFacts *facts = x && x->tokenizer ? tokenizer_facts(x->tokenizer) : NULL;
  const ConfigExtras extras = {.bos = facts ? facts->bos : NO_TOKEN,
                               .eos = facts ? facts->eos : NO_TOKEN,
                               .dtype = dtype,
                               .carried = x ? x->config : NULL,
                               .carry_ids = x && x->same_tokenizer};
  if (write_text(folder, MODEL_CONFIG_FILE, model_config_json(model, &extras), err) != 0) return -1;
  return x ? write_files(x, folder, extras.bos, extras.eos, err) : 0;
}
