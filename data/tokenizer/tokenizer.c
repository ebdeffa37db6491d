#include "data/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/file.h"
#include "base/json.h"
#include "data/model_folder.h"
#include "data/tokenizer/json.h"
#include "data/tokenizer/parts.h"

enum { MAX_FILE_BYTES = 256 << 20, MAX_CONFIG_BYTES = 16 << 20 };

// ---- Reading tokenizer.json

// The id of a token by its text; NO_TOKEN if there is none. After index_added.
static int32_t find_token(const Tokenizer *t, const char *text) {
  for (int32_t id = 0; id < t->facts.vocab_size; id++)
    if (t->added[id] && strcmp(t->added[id]->content, text) == 0) return id;
  return vocabulary_find_named(&t->bpe.vocabulary, span_of(text), t->bpe.byte_level);
}

// The one special token that a template puts in front of the text is BOS.
static void read_template(Tokenizer *t, const cJSON *template, Error *err) {
  const cJSON *single = cJSON_GetObjectItemCaseSensitive(template, "single");
  const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(template, "special_tokens");
  for (const cJSON *p = cJSON_IsArray(single) ? single->child : NULL; p; p = p->next) {
    if (cJSON_HasObjectItem(p, "Sequence")) return;
    const cJSON *special = cJSON_GetObjectItemCaseSensitive(p, "SpecialToken");
    const char *name = component_string(special, "id", err);
    if (err->text[0]) return;
    const cJSON *token = cJSON_GetObjectItemCaseSensitive(tokens, name);
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(token, "ids");
    int64_t id;
    if (json_integer(cJSON_GetArrayItem(ids, 0), &id) != 0 ||
        !vocabulary_has(&t->bpe.vocabulary, id))
      error_set(err, "the special token '%.100s' has no id in the vocabulary", name);
    else if (t->facts.bos != NO_TOKEN || cJSON_GetArraySize(ids) != 1)
      error_set(err, "more than one token in front of a text is not supported");
    if (err->text[0]) return;
    t->facts.bos = (int32_t)id;
  }
  error_set(err, "a TemplateProcessing without a Sequence in 'single'");
}

static void read_post_processor(void *into, const cJSON *component, const char *type, Error *err) {
  if (strcmp(type, "TemplateProcessing") == 0)
    read_template(into, component, err);
  else if (strcmp(type, "ByteLevel") != 0) // about offsets alone
    component_refused(component, err);
}

static const cJSON *member(const Document *d, const char *key) {
  return cJSON_GetObjectItemCaseSensitive(d->tree, key);
}

static void index_added(Tokenizer *t) {
  t->added = xcalloc((size_t)t->facts.vocab_size, sizeof *t->added);
  const AddedTokens *const lists[] = {&t->raw, &t->normalized};
  for (int i = 0; i < 2; i++)
    for (size_t k = 0; k < lists[i]->count; k++)
      t->added[lists[i]->tokens[k].id] = &lists[i]->tokens[k];
}

// Adds the bytes that stand behind a newline.
static void add_behind_newlines(ByteSet *set, const char *text, size_t bytes) {
  for (size_t i = 1; i < bytes; i++)
    if (text[i - 1] == '\n') byte_set_add(set, text[i]);
}

// Where a step of the tokenizer hides the newlines in tokens, all bytes count.
static void find_joined(Tokenizer *t) {
  const Vocabulary *v = &t->bpe.vocabulary;
  ByteSet *joined = &t->facts.joined;
  for (int32_t id = 0; id < v->size; id++) {
    if (vocabulary_has(v, id))
      add_behind_newlines(joined, vocabulary_text(v, id), v->tokens[id].length);
    if (t->added[id])
      add_behind_newlines(joined, t->added[id]->pattern.data, t->added[id]->pattern.bytes);
  }
  bool any = false;
  for (int c = '!'; c < 256; c++) any |= byte_set_has(joined, (char)c);
  if (!normalizer_keeps_lines(&t->normalizer) || bpe_hides_newlines(&t->bpe) ||
      (any && !normalizer_keeps_characters(&t->normalizer)))
    memset(joined, 0xff, sizeof *joined);
}

// ---- The fingerprint: a hash of what decides between text and ids, in this order and form for
// good, since token files carry it. BOS and EOS are not in it: ids mean the same whatever they
// are

static void put_number(XXH3_state_t *hash, int64_t number) {
  XXH3_64bits_update(hash, &number, sizeof number);
}

static void put_text(XXH3_state_t *hash, const char *text, size_t bytes) {
  put_number(hash, (int64_t)bytes);
  XXH3_64bits_update(hash, text, bytes);
}

static void put_string(XXH3_state_t *hash, const char *string) {
  put_text(hash, string ? string : "", string ? strlen(string) : 0);
}

static void put_bpe(XXH3_state_t *hash, const Bpe *bpe) {
  const Vocabulary *v = &bpe->vocabulary;
  put_number(hash, bpe->byte_level);
  put_number(hash, bpe->ignore_merges);
  put_number(hash, bpe->byte_fallback);
  put_number(hash, bpe->unknown == NO_TOKEN ? NO_TOKEN : bpe->unknown * 2 + bpe->fuse_unknown);
  put_number(hash, v->size);
  for (int32_t id = 0; id < v->size; id++) {
    put_number(hash, v->tokens[id].there * 2 + v->tokens[id].raw);
    put_text(hash, vocabulary_text(v, id), v->tokens[id].length);
  }
  put_number(hash, (int64_t)bpe->merges.count);
  for (size_t i = 0; i < bpe->merges.count; i++) {
    put_number(hash, bpe->merges.list[i].left);
    put_number(hash, bpe->merges.list[i].right);
  }
}

static void put_added(XXH3_state_t *hash, const AddedTokens *added) {
  put_number(hash, (int64_t)added->count);
  for (size_t i = 0; i < added->count; i++) {
    const AddedToken *t = &added->tokens[i];
    put_number(hash, t->id);
    put_string(hash, t->content);
    put_number(hash, t->special + 4 * t->left + 8 * t->right);
  }
}

// The numbers of a step that its stage has, and its texts. Where a field is gone, it has the value
// that it had in all the tokenizers that are still read.
static void put_steps(XXH3_state_t *hash, const Steps *steps) {
  put_number(hash, steps->count);
  for (int i = 0; i < steps->count; i++) {
    const Step *s = &steps->list[i];
    put_number(hash, s->kind);
    if (steps->stage == NORMALIZE) {
      put_number(hash, s->form);
      put_number(hash, 0);
    } else if (steps->stage == CUT) {
      put_number(hash, s->scheme);
      put_number(hash, s->behavior * 2 + s->invert);
    } else {
      put_number(hash, s->kind == DECODE_STRIP ? 2 : 0);
      put_number(hash, s->left);
      put_number(hash, 0);
    }
    put_string(hash, steps->stage == CUT ? s->to : s->from);
    put_string(hash, steps->stage == CUT ? s->from : s->to);
  }
}

static uint64_t fingerprint(const Tokenizer *t) {
  XXH3_state_t *hash = XXH3_createState();
  if (!hash || XXH3_64bits_reset(hash) != XXH_OK) return 1;
  put_bpe(hash, &t->bpe);
  put_added(hash, &t->raw);
  put_added(hash, &t->normalized);
  put_steps(hash, &t->normalizer);
  put_steps(hash, &t->pre_tokenizer);
  put_number(hash, t->decoder.missing);
  put_steps(hash, &t->decoder);
  const uint64_t result = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  return result ? result : 1;
}

// ---- The whole document

static int read_document(Tokenizer *t, const Document *d, Error *err) {
  err->text[0] = '\0';
  if (!cJSON_IsObject(d->tree) || !cJSON_IsObject(member(d, "model")))
    return error_set(err, "%s is not a tokenizer.json: it has no object 'model'", d->name);
  if (steps_read(&t->normalizer, NORMALIZE, member(d, "normalizer"), err) != 0 ||
      steps_read(&t->pre_tokenizer, CUT, member(d, "pre_tokenizer"), err) != 0 ||
      steps_read(&t->decoder, DECODE, member(d, "decoder"), err) != 0)
    return error_prefix(err, "%s", d->name);
  const bool byte_level = t->pre_tokenizer.byte_level;
  if (bpe_read(&t->bpe, d, byte_level, err) != 0) return -1;
  if (added_read(&t->raw, &t->normalized, member(d, "added_tokens"), byte_level, &t->normalizer,
                 &t->bpe.vocabulary, err) != 0 ||
      component_read(member(d, "post_processor"), "post_processor", "processors",
                     read_post_processor, t, err) != 0)
    return error_prefix(err, "%s", d->name);
  if (t->bpe.vocabulary.count == 0) return error_set(err, "%s has no tokens", d->name);
  t->facts.vocab_size = t->bpe.vocabulary.size;
  index_added(t);
  find_joined(t);
  t->facts.fingerprint = fingerprint(t);
  return 0;
}

static void find_end(Tokenizer *t) {
  static const char *const names[] = {"<|end_of_text|>", "<|endoftext|>", "</s>"};
  for (int i = 0; i < 3 && t->facts.eos == NO_TOKEN; i++) t->facts.eos = find_token(t, names[i]);
}

// Takes json[bytes], which has a NUL behind it.
static Tokenizer *open_over(const char *name, char *json, size_t bytes, Error *err) {
  Tokenizer *t = xcalloc(1, sizeof *t);
  t->json = json;
  t->json_bytes = bytes;
  t->name = xstrdup(name);
  t->facts =
      (TokenizerFacts){.name = t->name, .bos = NO_TOKEN, .eos = NO_TOKEN, .bos_token = NO_TOKEN};
  Document d;
  const bool read =
      document_open(&d, name, json, bytes, err) == 0 && read_document(t, &d, err) == 0;
  document_close(&d);
  if (read) return t;
  tokenizer_close(t);
  return NULL;
}

Tokenizer *tokenizer_parse(const char *name, const char *json, size_t bytes, Error *err) {
  char *copy = memcpy(xcalloc(bytes + 1, 1), json, bytes);
  Tokenizer *t = open_over(name, copy, bytes, err);
  if (t) find_end(t);
  return t;
}

void tokenizer_close(Tokenizer *t) {
  if (!t) return;
  steps_close(&t->normalizer);
  added_close(&t->raw);
  added_close(&t->normalized);
  steps_close(&t->pre_tokenizer);
  bpe_close(&t->bpe);
  steps_close(&t->decoder);
  free(t->added);
  free(t->name);
  free(t->json);
  free(t->config);
  free(t->chat_template);
  free(t);
}

const TokenizerFacts *tokenizer_facts(const Tokenizer *tokenizer) {
  return &tokenizer->facts;
}

int32_t tokenizer_special(const Tokenizer *t, const char *text) {
  const int32_t id = find_token(t, text);
  return id != NO_TOKEN && tokenizer_special_text(t, id) ? id : NO_TOKEN;
}

const char *tokenizer_special_text(const Tokenizer *t, int32_t id) {
  const AddedToken *added = id >= 0 && id < t->facts.vocab_size ? t->added[id] : NULL;
  return added && added->special ? added->content : NULL;
}

bool tokenizer_always_finds(const Tokenizer *t, int32_t id) {
  const AddedToken *added = t->added[id];
  return added && (!added->normalized || t->normalizer.count == 0);
}

// ---- The byte tokenizer: a byte-level BPE without merges

static Tokenizer *open_bytes(Error *err) {
  static const char *const special[] = {BPE_BEGIN, BPE_END};
  const Merges none = {0};
  Vocabulary bytes = {0};
  for (int i = 0; i < 256; i++) vocabulary_add(&bytes, &(char){(char)i}, 1, true, i, err);
  char *json = export_tokenizer(&bytes, &none, NULL, special, 2);
  vocabulary_close(&bytes);
  Tokenizer *t = open_over(BYTES_NAME, json, strlen(json), err);
  if (t) find_end(t);
  return t;
}

// ---- The files beside tokenizer.json

static PathText beside(const char *path, const char *name) {
  return path_text("%s/%s", path_parent(path).text, name);
}

// Takes the text.
static void set_template(Tokenizer *t, char *text, bool jinja) {
  free(t->chat_template);
  t->facts.chat_template = t->chat_template = text;
  t->jinja = jinja;
}

void tokenizer_set_template(Tokenizer *tokenizer, const char *text) {
  set_template(tokenizer, xstrdup(text), true);
}

// A template, or a list of {"name", "template"}.
static void read_template_of_config(Tokenizer *t, const cJSON *value) {
  const cJSON *list = cJSON_IsArray(value) ? value->child : NULL;
  for (; list; list = list->next) {
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(list, "name");
    if (cJSON_IsString(name) && strcmp(name->valuestring, "default") == 0)
      value = cJSON_GetObjectItemCaseSensitive(list, "template");
  }
  if (cJSON_IsString(value)) set_template(t, xstrdup(value->valuestring), false);
}

static int read_template_file(Tokenizer *t, const char *path, Error *err) {
  const PathText file = beside(path, CHAT_TEMPLATE_FILE);
  char *text;
  size_t bytes;
  if (!path_exists(file.text)) return 0;
  if (file_read(file.text, MAX_CONFIG_BYTES, &text, &bytes, err) != 0) return -1;
  set_template(t, text, true);
  return strlen(text) == bytes ? 0 : error_set(err, "'%s' holds a NUL byte", file.text);
}

// That the key names; `missing` where it names none.
static int32_t token_in_config(const Tokenizer *t, const cJSON *config, const char *key,
                               int32_t missing) {
  const cJSON *token = cJSON_GetObjectItemCaseSensitive(config, key);
  if (cJSON_IsObject(token)) token = cJSON_GetObjectItemCaseSensitive(token, "content");
  return cJSON_IsString(token) ? find_token(t, token->valuestring) : missing;
}

static int read_config(Tokenizer *t, const char *path, Error *err) {
  const PathText file = beside(path, "tokenizer_config.json");
  if (!path_exists(file.text)) return 0;
  if (file_read(file.text, MAX_CONFIG_BYTES, &t->config, &t->config_bytes, err) != 0) return -1;
  cJSON *config = json_parse(file.text, t->config, t->config_bytes, err);
  if (!config) return -1;
  t->facts.eos = token_in_config(t, config, "eos_token", t->facts.eos);
  t->facts.bos_token = token_in_config(t, config, "bos_token", NO_TOKEN);
  read_template_of_config(t, cJSON_GetObjectItemCaseSensitive(config, "chat_template"));
  cJSON_Delete(config);
  return 0;
}

static int find_end_beside(Tokenizer *t, const char *path, Error *err) {
  enum { MOST = 16 };
  int32_t ends[MOST];
  if (t->facts.eos != NO_TOKEN) return 0;
  const int count = folder_ends(path_parent(path).text, ends, MOST, err);
  for (int i = 0; i < count && t->facts.eos == NO_TOKEN; i++)
    if (vocabulary_has(&t->bpe.vocabulary, ends[i])) t->facts.eos = ends[i];
  find_end(t);
  return count < 0 ? -1 : 0;
}

static Tokenizer *open_file(const char *path, Error *err) {
  char *json;
  size_t bytes;
  if (file_read(path, MAX_FILE_BYTES, &json, &bytes, err) != 0) return NULL;
  Tokenizer *t = open_over(path, json, bytes, err);
  if (!t) return NULL;
  if (read_config(t, path, err) == 0 && read_template_file(t, path, err) == 0 &&
      find_end_beside(t, path, err) == 0)
    return t;
  tokenizer_close(t);
  return NULL;
}

int tokenizer_advise(const char *folder, Error *err) {
  enum { MAX_BYTES = 64 << 20 };
  const PathText path = path_text("%s/tokenizer.model", folder);
  Error advice;
  char *data;
  size_t bytes;
  if (!path_exists(path.text) || file_read(path.text, MAX_BYTES, &data, &bytes, &advice) != 0)
    return -1;
  if (sentencepiece_refuse(path.text, data, bytes, &advice) != 0)
    error_append(err, "; %s", advice.text);
  free(data);
  return -1;
}

static int open_in_folder(void *tokenizer, const char *folder, const FileSums *sums, Error *err) {
  const PathText path = path_text("%s/" TOKENIZER_FILE, folder);
  (void)sums;
  if (!path_exists(path.text)) {
    error_set(err, "'%s' has no " TOKENIZER_FILE, folder);
    return tokenizer_advise(folder, err);
  }
  Tokenizer *t = open_file(path.text, err);
  *(Tokenizer **)tokenizer = t;
  return t ? 0 : -1;
}

Tokenizer *tokenizer_open(const char *path, Error *err) {
  Tokenizer *t = NULL;
  if (strcmp(path, BYTES_NAME) == 0) return open_bytes(err);
  if (path_is_directory(path))
    return model_folder_read(path, false, open_in_folder, &t, err) == 0 ? t : NULL;
  return model_folder_check(path, err) == 0 ? open_file(path, err) : NULL;
}

// ---- Saving

static char *copy_text(const Tokenizer *t, int32_t id) {
  if (id == NO_TOKEN) return NULL;
  if (t->added[id]) return xstrdup(t->added[id]->content);
  const Token token = t->bpe.vocabulary.tokens[id];
  return xasprintf("%.*s", (int)token.length, vocabulary_text(&t->bpe.vocabulary, id));
}

int tokenizer_save(const Tokenizer *t, const char *folder, Error *err) {
  const PathText json = path_text("%s/tokenizer.json", folder);
  const PathText config = path_text("%s/tokenizer_config.json", folder);
  const PathText jinja = path_text("%s/" CHAT_TEMPLATE_FILE, folder);
  if (file_write(json.text, t->json, t->json_bytes, err) != 0) return -1;
  if (t->jinja && file_write(jinja.text, t->chat_template, strlen(t->chat_template), err) != 0)
    return -1;
  if (t->config) return file_write(config.text, t->config, t->config_bytes, err);
  char *begin = copy_text(t, t->facts.bos), *end = copy_text(t, t->facts.eos);
  char *text = export_tokenizer_config(begin, end, NULL);
  const int result = file_write(config.text, text, strlen(text), err);
  free(begin);
  free(end);
  free(text);
  return result;
}
