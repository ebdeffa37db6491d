// tokenizer.json as a text: its parts, and a byte-level BPE written as one.
#pragma once
#include <cjson/cJSON.h>
#include "base/json.h"
#include "data/tokenizer/vocabulary.h"

// ---- Reading. The vocabulary and the merges, which can be hundreds of thousands of values, are
// read in one pass each; the rest is a small cJSON tree

typedef struct Document {
  const char *name; // for sentences
  const char *text; // [bytes], the caller's
  size_t bytes;
  char *copy;             // owned, of the text; its strings are unescaped in place
  JsonScan vocab, merges; // model.vocab and model.merges in it; `at` is NULL where one is missing
  cJSON *tree;            // owned; 0 stands in place of these two
} Document;

int document_open(Document *d, const char *name, const char *text, size_t bytes, Error *err);
void document_close(Document *d);

// byte_level: tokens in GPT-2's alphabet are taken as the bytes that they stand for. Once each: the
// copy is spoilt.
int document_read_vocabulary(const Document *d, bool byte_level, Vocabulary *v, Error *err);
int document_read_merges(const Document *d, bool byte_level, const Vocabulary *v, Merges *m,
                         Error *err);

// A component is an object with a "type" and fields, or a Sequence of such. Where one is wrong
// there is a sentence in err, which is empty before.
// Reads one component that is no Sequence. `into` is the caller's.
typedef void ComponentReader(void *into, const cJSON *component, const char *type, Error *err);

// Calls `read` for the component, or for each component of a Sequence, in order, up to the first
// that is wrong; for null and NULL not at all. -1: one is.
// `what`: the first word of a sentence, such as "normalizer"; `list`: the key of a Sequence's
// members.
int component_read(const cJSON *component, const char *what, const char *list,
                   ComponentReader *read, void *into, Error *err);

// The sentence for one that is not known, or known and not supported as it is. An earlier one
// stays.
void component_refused(const cJSON *component, Error *err);

// Fields, or `missing`. The string, which must be there, belongs to the component; "" where it is
// wrong.
bool component_flag(const cJSON *component, const char *key, bool missing, Error *err);
int64_t component_count(const cJSON *component, const char *key, int64_t missing, Error *err);
const char *component_string(const cJSON *component, const char *key, Error *err);

// -1 where these bytes of the file `path` are SentencePiece's tokenizer.model, which is not read
// here; the sentence says how to make a tokenizer.json of it.
int sentencepiece_refuse(const char *path, const void *data, size_t bytes, Error *err);

#define BPE_BEGIN "<|begin_of_text|>"
#define BPE_END "<|end_of_text|>"

// ---- Writing, as the Python packages tokenizers and transformers load it. The same input gives
// the same bytes

// tokenizer.json. Every byte is one of the tokens, which are all raw. pattern: text is cut by this
// regular expression first; NULL: it is not cut. The ids of special[special_count] follow those of
// the tokens; the first is <|begin_of_text|>. NUL-terminated; the caller frees it.
char *export_tokenizer(const Vocabulary *vocabulary, const Merges *merges, const char *pattern,
                       const char *const *special, int special_count);
// tokenizer_config.json, of any tokenizer. begin, end and chat_template may be NULL. The caller
// frees it.
char *export_tokenizer_config(const char *begin, const char *end, const char *chat_template);
