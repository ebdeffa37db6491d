#include "data/tokenizer/export.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "data/tokenizer/byte_level.h"

// ---- Tokens as text: each byte is a character of GPT-2's alphabet

// Every token's characters, each token with a NUL behind it.
typedef struct Names {
  char *text;
  size_t *starts; // [count] into text
} Names;

static Names spell_tokens(const BpeExport *bpe) {
  const size_t count = (size_t)bpe->count, bytes = bpe->offsets[count];
  Names names = {.text = xmalloc(2 * bytes + count + 1),
                 .starts = xmalloc(count * sizeof *names.starts)};
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    names.starts[i] = used;
    const size_t start = bpe->offsets[i], length = bpe->offsets[i + 1] - start;
    used += byte_level_encode(bpe->bytes + start, length, names.text + used);
    names.text[used++] = '\0';
  }
  return names;
}

static void free_names(Names *names) {
  free(names->text);
  free(names->starts);
}

// ---- The parts of tokenizer.json

static void put_special_token(JsonWriter *w, int64_t id, const char *text) {
  json_open(w, NULL, '{');
  json_whole(w, "id", id);
  json_string(w, "content", text);
  json_bool(w, "single_word", false);
  json_bool(w, "lstrip", false);
  json_bool(w, "rstrip", false);
  json_bool(w, "normalized", false);
  json_bool(w, "special", true);
  json_close(w, '}');
}

static void put_byte_level(JsonWriter *w, const char *name) {
  json_open(w, name, '{');
  json_string(w, "type", "ByteLevel");
  json_bool(w, "add_prefix_space", false);
  json_bool(w, "trim_offsets", true);
  json_bool(w, "use_regex", false);
  json_close(w, '}');
}

static void put_pre_tokenizer(JsonWriter *w, const char *pattern) {
  if (!pattern) {
    put_byte_level(w, "pre_tokenizer");
    return;
  }
  json_open(w, "pre_tokenizer", '{');
  json_string(w, "type", "Sequence");
  json_open(w, "pretokenizers", '[');
  json_open(w, NULL, '{');
  json_string(w, "type", "Split");
  json_open(w, "pattern", '{');
  json_string(w, "Regex", pattern);
  json_close(w, '}');
  json_string(w, "behavior", "Isolated");
  json_bool(w, "invert", false);
  json_close(w, '}');
  put_byte_level(w, NULL);
  json_close(w, ']');
  json_close(w, '}');
}

// One piece of a template: the begin token, or a text ("A", "B"). type_id: of the text it is in.
static void put_piece(JsonWriter *w, const char *kind, const char *id, int type_id) {
  json_open(w, NULL, '{');
  json_open(w, kind, '{');
  json_string(w, "id", id);
  json_whole(w, "type_id", type_id);
  json_close(w, '}');
  json_close(w, '}');
}

static void put_template(JsonWriter *w, const BpeExport *bpe) {
  json_open(w, NULL, '{');
  json_string(w, "type", "TemplateProcessing");
  json_open(w, "single", '[');
  put_piece(w, "SpecialToken", bpe->begin, 0);
  put_piece(w, "Sequence", "A", 0);
  json_close(w, ']');
  json_open(w, "pair", '[');
  put_piece(w, "SpecialToken", bpe->begin, 0);
  put_piece(w, "Sequence", "A", 0);
  put_piece(w, "SpecialToken", bpe->begin, 1);
  put_piece(w, "Sequence", "B", 1);
  json_close(w, ']');
  json_open(w, "special_tokens", '{');
  json_open(w, bpe->begin, '{');
  json_string(w, "id", bpe->begin);
  json_open(w, "ids", '[');
  json_whole(w, NULL, bpe->count);
  json_close(w, ']');
  json_open(w, "tokens", '[');
  json_string(w, NULL, bpe->begin);
  json_close(w, ']');
  json_close(w, '}');
  json_close(w, '}');
  json_close(w, '}');
}

static void put_post_processor(JsonWriter *w, const BpeExport *bpe) {
  json_open(w, "post_processor", '{');
  json_string(w, "type", "Sequence");
  json_open(w, "processors", '[');
  put_byte_level(w, NULL);
  put_template(w, bpe);
  json_close(w, ']');
  json_close(w, '}');
}

// A merge is "left right", which every version of the readers takes: no character of the alphabet
// is a space.
static void put_merges(JsonWriter *w, const BpeExport *bpe, const Names *names) {
  json_open(w, "merges", '[');
  for (int64_t i = 0; i < bpe->merge_count; i++) {
    const char *left = names->text + names->starts[bpe->merges[i][0]];
    const char *right = names->text + names->starts[bpe->merges[i][1]];
    char *merge = xasprintf("%s %s", left, right);
    json_string(w, NULL, merge);
    free(merge);
  }
  json_close(w, ']');
}

static void put_vocabulary(JsonWriter *w, const BpeExport *bpe, const Names *names) {
  json_open(w, "vocab", '{');
  for (int32_t i = 0; i < bpe->count; i++) json_whole(w, names->text + names->starts[i], i);
  json_close(w, '}');
}

static void put_model(JsonWriter *w, const BpeExport *bpe) {
  Names names = spell_tokens(bpe);
  json_open(w, "model", '{');
  json_string(w, "type", "BPE");
  json_raw(w, "dropout", "null");
  json_raw(w, "unk_token", "null");
  json_raw(w, "continuing_subword_prefix", "null");
  json_raw(w, "end_of_word_suffix", "null");
  json_bool(w, "fuse_unk", false);
  json_bool(w, "byte_fallback", false);
  json_bool(w, "ignore_merges", false);
  put_vocabulary(w, bpe, &names);
  put_merges(w, bpe, &names);
  json_close(w, '}');
  free_names(&names);
}

char *export_tokenizer(const BpeExport *bpe) {
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  json_string(&w, "version", "1.0");
  json_raw(&w, "truncation", "null");
  json_raw(&w, "padding", "null");
  json_open(&w, "added_tokens", '[');
  put_special_token(&w, bpe->count, bpe->begin);
  put_special_token(&w, bpe->count + 1, bpe->end);
  json_close(&w, ']');
  json_raw(&w, "normalizer", "null");
  put_pre_tokenizer(&w, bpe->pattern);
  put_post_processor(&w, bpe);
  put_byte_level(&w, "decoder");
  put_model(&w, bpe);
  json_close(&w, '}');
  return w.text;
}

char *export_tokenizer_config(const char *begin, const char *end) {
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  if (begin) json_string(&w, "bos_token", begin);
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
