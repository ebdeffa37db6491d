#include "data/tokenizer/json.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"

// Of the text beside vocabulary and merges; real files stay far below 1 MB.
enum { MAX_TREE_BYTES = 4 << 20 };

// The file is a protocol buffer: field 1, a piece of fewer than 128 bytes, whose own field 1 is its
// text, with its score, field 2, behind that.
int sentencepiece_refuse(const char *path, const void *data, size_t bytes, Error *err) {
  enum { MESSAGE = 0x0a, FLOAT = 0x15 };
  const unsigned char *at = data;
  if (bytes < 8 || at[0] != MESSAGE || at[2] != MESSAGE || at[3] > 127 || bytes < 5u + at[3] ||
      at[4 + at[3]] != FLOAT)
    return 0;
  const PathText folder = path_parent(path);
  return error_set(err,
                   "'%s' is a SentencePiece model, which is not read here: make a tokenizer.json "
                   "of it: pip install transformers sentencepiece protobuf; python3 -c \"from "
                   "transformers import LlamaTokenizerFast as T; "
                   "T.from_pretrained('%s').save_pretrained('%s')\"",
                   path, folder.text, folder.text);
}

// ---- Taking a tokenizer.json apart

// Where the vocabulary and the merges are in the copy.
static bool find_parts(Document *d, JsonScan *s) {
  static const char *const of_file[] = {"model"}, *const of_model[] = {"vocab", "merges"};
  JsonMember model, parts[2] = {{.string = {0}}};
  if (!json_members(s, of_file, 1, &model) || !json_take_end(s)) return false;
  if (model.value.at && !json_members(&model.value, of_model, 2, parts)) {
    *s = model.value;
    return false;
  }
  const JsonScan vocab = parts[0].value, merges = parts[1].value;
  if (vocab.at && *vocab.at == '{') d->vocab = vocab;
  if (merges.at && *merges.at == '[') d->merges = merges;
  return true;
}

// Puts 0 and white space in place of a part. Newlines stay, so that sentences name the right line.
static size_t blank(const Document *d, char *tree, const JsonScan *part) {
  if (!part->at) return 0;
  const size_t bytes = (size_t)(part->end - part->at);
  char *const at = tree + (part->at - d->copy);
  for (size_t i = 0; i < bytes; i++)
    if (at[i] != '\n') at[i] = ' ';
  *at = '0';
  return bytes;
}

static int read_tree(Document *d, char *tree, Error *err) {
  JsonScan s = {.at = d->copy, .end = d->copy + d->bytes, .nuls = true};
  if (!find_parts(d, &s))
    return json_syntax_error(d->name, d->text, d->bytes, (size_t)(s.at - d->copy), s.problem, err);
  const size_t rest = d->bytes - blank(d, tree, &d->vocab) - blank(d, tree, &d->merges);
  if (rest > MAX_TREE_BYTES)
    return error_set(err, "%s has %s beside its vocabulary and merges, more than the %s allowed",
                     d->name, size_text(rest).text, size_text(MAX_TREE_BYTES).text);
  d->tree = json_parse(d->name, tree, d->bytes, err);
  return d->tree ? 0 : -1;
}

int document_open(Document *d, const char *name, const char *text, size_t bytes, Error *err) {
  *d = (Document){.name = name, .text = text, .bytes = bytes};
  if (file_refuse_packed(name, text, bytes, err) != 0 ||
      sentencepiece_refuse(name, text, bytes, err) != 0)
    return -1;
  const size_t valid = utf8_valid(text, bytes);
  if (valid < bytes) return json_syntax_error(name, text, bytes, valid, "this is not UTF-8", err);
  d->copy = memcpy(xmalloc(bytes), text, bytes);
  char *tree = memcpy(xcalloc(bytes + 1, 1), text, bytes);
  const int status = read_tree(d, tree, err);
  free(tree);
  return status;
}

void document_close(Document *d) {
  cJSON_Delete(d->tree);
  free(d->copy);
}

// ---- Components and their fields

enum { MAX_SEQUENCES = 16 };

static void read_component(const cJSON *component, const char *list, int depth,
                           ComponentReader *read, void *into, Error *err) {
  if (!component || cJSON_IsNull(component)) return;
  const char *type = component_string(component, "type", err);
  if (strcmp(type, "Sequence") != 0) {
    if (!err->text[0]) read(into, component, type, err);
    return;
  }
  const cJSON *members = cJSON_GetObjectItemCaseSensitive(component, list);
  if (!cJSON_IsArray(members))
    error_set(err, "a Sequence without its list '%s'", list);
  else if (depth == MAX_SEQUENCES)
    error_set(err, "Sequences lie in each other too deep");
  else
    for (const cJSON *m = members->child; m && !err->text[0]; m = m->next)
      read_component(m, list, depth + 1, read, into, err);
}

int component_read(const cJSON *component, const char *what, const char *list,
                   ComponentReader *read, void *into, Error *err) {
  read_component(component, list, 0, read, into, err);
  return err->text[0] ? error_prefix(err, "%s", what) : 0;
}

void component_refused(const cJSON *component, Error *err) {
  if (err->text[0]) return;
  error_set(err, "%s is not supported: data/README.md lists what is", json_shown(component).text);
}

static void wrong_field(const cJSON *component, const char *key, const char *what, Error *err) {
  error_set(err, "'%s' should be %s in %s", key, what, json_shown(component).text);
}

bool component_flag(const cJSON *component, const char *key, bool missing, Error *err) {
  const cJSON *field = cJSON_GetObjectItemCaseSensitive(component, key);
  if (!field || cJSON_IsNull(field)) return missing;
  if (!cJSON_IsBool(field)) wrong_field(component, key, "true or false", err);
  return cJSON_IsTrue(field);
}

int64_t component_count(const cJSON *component, const char *key, int64_t missing, Error *err) {
  const cJSON *field = cJSON_GetObjectItemCaseSensitive(component, key);
  int64_t value = missing;
  if (field && (json_integer(field, &value) != 0 || value < 0 || value > INT32_MAX))
    wrong_field(component, key, "a whole number from 0 on", err);
  return value;
}

const char *component_string(const cJSON *component, const char *key, Error *err) {
  const cJSON *field = cJSON_GetObjectItemCaseSensitive(component, key);
  if (cJSON_IsString(field)) return field->valuestring;
  wrong_field(component, key, "a string", err);
  return "";
}

// ---- Reading the two large parts, which are JSON

// The sentence for a fault, with its place in the file.
static int refuse(const Document *d, const JsonScan *s, Error *err) {
  if (!s->problem) return error_prefix(err, "%s", d->name);
  return json_syntax_error(d->name, d->text, d->bytes, (size_t)(s->at - d->copy), s->problem, err);
}

static bool read_id(JsonScan *s, int64_t *id) {
  const bool negative = json_take(s, '-');
  const char *const start = s->at;
  *id = 0;
  for (; *s->at >= '0' && *s->at <= '9'; s->at++)
    if (*id < INT64_MAX / 16) *id = 10 * *id + (*s->at - '0');
  if (negative) *id = -*id;
  return (s->at > start && !strchr(".eE", *s->at)) ||
         json_wrong(s, "an id should be a whole number");
}

static int read_tokens(JsonScan *s, bool byte_level, Text *raw, Vocabulary *v, Error *err) {
  bool begun = false;
  int64_t id;
  json_take(s, '{');
  for (Span text; json_next(s, '}', &begun, &text);) {
    if (!read_id(s, &id)) return -1;
    raw->bytes = 0;
    const ptrdiff_t n =
        byte_level ? byte_level_decode(text.text, text.bytes, text_room(raw, text.bytes + 1)) : -1;
    if (n >= 0) text = (Span){raw->data, (size_t)n};
    if (vocabulary_add(v, text.text, text.bytes, n >= 0, id, err) != 0) return -1;
  }
  return s->problem ? -1 : 0;
}

int document_read_vocabulary(const Document *d, bool byte_level, Vocabulary *v, Error *err) {
  if (!d->vocab.at) return error_set(err, "%s: model.vocab is missing, or not an object", d->name);
  JsonScan s = d->vocab;
  Text raw = {0};
  const int status = read_tokens(&s, byte_level, &raw, v, err);
  free(raw.data);
  return status == 0 ? 0 : refuse(d, &s, err);
}

// "a b" or ["a", "b"].
static bool read_merge(JsonScan *s, Span sides[2]) {
  if (json_take(s, '[')) {
    bool begun = false;
    int n = 0;
    for (; n < 2 && json_next(s, ']', &begun, NULL); n++)
      if (!json_take_string(s, &sides[n])) return false;
    return (n == 2 && json_take(s, ']')) || json_wrong(s, "a merge should have two tokens");
  }
  Span text;
  if (!json_take_string(s, &text)) return false;
  const char *const space = memchr(text.text, ' ', text.bytes), *const end = text.text + text.bytes;
  if (!space || memchr(space + 1, ' ', (size_t)(end - space) - 1))
    return json_wrong(s, "a merge should be two tokens with a space between");
  sides[0] = (Span){text.text, (size_t)(space - text.text)};
  sides[1] = (Span){space + 1, (size_t)(end - space) - 1};
  return true;
}

typedef struct MergeReader {
  bool byte_level;
  const Vocabulary *vocabulary;
  Merges *merges;
  Text joined;
} MergeReader;

static int32_t find_token(const MergeReader *r, Span token, Error *err) {
  const int32_t id = vocabulary_find_named(r->vocabulary, token, r->byte_level);
  if (id < 0)
    error_set(err, "merge %zu names '%.*s', which the vocabulary does not have",
              r->merges->count + 1, token.bytes < 100 ? (int)token.bytes : 100, token.text);
  return id;
}

static int add_merge(MergeReader *r, const Span sides[2], Error *err) {
  r->joined.bytes = 0;
  for (int i = 0; i < 2; i++) text_append(&r->joined, sides[i].text, sides[i].bytes);
  const Span tokens[3] = {sides[0], sides[1], {r->joined.data, r->joined.bytes}};
  int32_t ids[3];
  for (int i = 0; i < 3; i++)
    if ((ids[i] = find_token(r, tokens[i], err)) < 0) return -1;
  merges_add(r->merges, ids[0], ids[1], ids[2]);
  return 0;
}

static int read_merges(JsonScan *s, MergeReader *r, Error *err) {
  Span sides[2];
  json_take(s, '[');
  for (bool begun = false; json_next(s, ']', &begun, NULL);)
    if (!read_merge(s, sides) || add_merge(r, sides, err) != 0) return -1;
  return s->problem ? -1 : 0;
}

int document_read_merges(const Document *d, bool byte_level, const Vocabulary *v, Merges *m,
                         Error *err) {
  if (!d->merges.at) return error_set(err, "%s: model.merges is missing, or not a list", d->name);
  JsonScan s = d->merges;
  MergeReader r = {.byte_level = byte_level, .vocabulary = v, .merges = m};
  const int status = read_merges(&s, &r, err);
  free(r.joined.data);
  return status == 0 ? 0 : refuse(d, &s, err);
}

// ---- Writing: tokens as text, each byte a character of GPT-2's alphabet

// A token in GPT-2's alphabet. The caller frees it.
static char *spell(const Vocabulary *v, int32_t id) {
  const size_t bytes = v->tokens[id].length;
  char *name = xmalloc(2 * bytes + 1);
  name[byte_level_encode(vocabulary_text(v, id), bytes, name)] = '\0';
  return name;
}

// ---- tokenizer.json, but for the values that a BPE has

// clang-format off
#define JSON(...) #__VA_ARGS__
#define BYTE_LEVEL JSON( \
  {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})

// The pattern.
#define CUT_AND_BYTES JSON( \
  {"type": "Sequence", "pretokenizers": [ \
    {"type": "Split", "pattern": {"Regex": %s}, "behavior": "Isolated", "invert": false},) \
  BYTE_LEVEL "]}"

// An id and a special token.
#define SPECIAL_TOKEN JSON( \
  {"id": %d, "content": "%s", "single_word": false, "lstrip": false, "rstrip": false, \
   "normalized": false, "special": true})

// The special tokens, the pre_tokenizer, the id of BOS.
#define TOKENIZER_JSON JSON( \
  {"version": "1.0", "truncation": null, "padding": null, \
   "added_tokens": [%s], \
   "normalizer": null, \
   "pre_tokenizer": %s, \
   "post_processor": {"type": "Sequence", "processors": [) BYTE_LEVEL "," JSON( \
     {"type": "TemplateProcessing", \
      "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, \
                 {"Sequence": {"id": "A", "type_id": 0}}], \
      "pair": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, \
               {"Sequence": {"id": "A", "type_id": 0}}, \
               {"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 1}}, \
               {"Sequence": {"id": "B", "type_id": 1}}], \
      "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [%d], \
                                               "tokens": ["<|begin_of_text|>"]}}}]}, \
   "decoder": ) BYTE_LEVEL JSON(, \
   "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, \
             "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, \
             "ignore_merges": false, "vocab": null, "merges": null}})
// clang-format on

// A merge is "left right", which every version of the readers takes: no character of the alphabet
// is a space.
static void put_merges(JsonWriter *w, const Vocabulary *v, const Merges *m) {
  json_open(w, "merges", '[');
  for (size_t i = 0; i < m->count; i++) {
    char *left = spell(v, m->list[i].left), *right = spell(v, m->list[i].right);
    char *merge = xasprintf("%s %s", left, right);
    json_string(w, NULL, merge);
    free(left);
    free(right);
    free(merge);
  }
  json_close(w, ']');
}

static void put_vocabulary(JsonWriter *w, const Vocabulary *v) {
  json_open(w, "vocab", '{');
  for (int32_t id = 0; id < v->size; id++) {
    char *name = spell(v, id);
    json_whole(w, name, id);
    free(name);
  }
  json_close(w, '}');
}

static void put_tree(JsonWriter *w, const cJSON *item, const Vocabulary *v, const Merges *m) {
  const char *name = item->string;
  const bool object = cJSON_IsObject(item);
  if (name && strcmp(name, "vocab") == 0) {
    put_vocabulary(w, v);
  } else if (name && strcmp(name, "merges") == 0) {
    put_merges(w, v, m);
  } else if (object || cJSON_IsArray(item)) {
    json_open(w, name, object ? '{' : '[');
    for (const cJSON *member = item->child; member; member = member->next)
      put_tree(w, member, v, m);
    json_close(w, object ? '}' : ']');
  } else if (cJSON_IsString(item)) {
    json_string(w, name, item->valuestring);
  } else {
    json_raw(w, name, json_shown(item).text);
  }
}

// The pre_tokenizer. The caller frees it.
static char *cut_and_bytes(const char *pattern) {
  if (!pattern) return xstrdup(BYTE_LEVEL);
  JsonWriter w = {0};
  json_string(&w, NULL, pattern);
  char *json = xasprintf(CUT_AND_BYTES, w.text);
  free(w.text);
  return json;
}

// The special tokens with commas between them, the first with the id `first`. The caller frees it.
static char *special_tokens(const char *const *special, int count, int32_t first) {
  char *list = xstrdup("");
  for (int i = 0; i < count; i++) {
    char *before = list, *token = xasprintf(SPECIAL_TOKEN, first + i, special[i]);
    list = xasprintf("%s%s%s", before, i > 0 ? "," : "", token);
    free(before);
    free(token);
  }
  return list;
}

char *export_tokenizer(const Vocabulary *v, const Merges *m, const char *pattern,
                       const char *const *special, int special_count) {
  JsonWriter w = {.indent = 2};
  Error err;
  char *cut = cut_and_bytes(pattern), *tokens = special_tokens(special, special_count, v->size);
  char *json = xasprintf(TOKENIZER_JSON, tokens, cut, v->size);
  cJSON *tree = json_parse("tokenizer.json", json, strlen(json), &err);
  put_tree(&w, tree, v, m);
  cJSON_Delete(tree);
  free(json);
  free(tokens);
  free(cut);
  return w.text;
}

char *export_tokenizer_config(const char *begin, const char *end, const char *chat_template) {
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  if (begin) json_string(&w, "bos_token", begin);
  if (chat_template) json_string(&w, "chat_template", chat_template);
  json_bool(&w, "clean_up_tokenization_spaces", false);
  if (end) json_string(&w, "eos_token", end);
  // A LLaMA takes no token_type_ids, which would come without this.
  json_open(&w, "model_input_names", '[');
  json_string(&w, NULL, "input_ids");
  json_string(&w, NULL, "attention_mask");
  json_close(&w, ']');
  // transformers' own word for "not limited by the tokenizer".
  json_raw(&w, "model_max_length", "1000000000000000019884624838656");
  json_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
  json_close(&w, '}');
  return w.text;
}
