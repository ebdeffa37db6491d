// A tokenizer.json in parts: its vocabulary and merges, which can be hundreds of thousands of
// values, are read in one pass each; the rest is a small cJSON tree.
#pragma once
#include <cjson/cJSON.h>
#include "data/tokenizer/vocabulary.h"

typedef struct Document {
  const char *name; // for sentences
  const char *text; // [bytes], of the caller
  size_t bytes;
  cJSON *tree;                // owned; null stands in place of model.vocab and model.merges
  size_t vocab_at, merges_at; // where these two begin in the text; 0: not there
} Document;

int document_open(Document *d, const char *name, const char *text, size_t bytes, Error *err);
void document_close(Document *d);

// byte_level: tokens in GPT-2's alphabet are taken as the bytes that they stand for.
int document_read_vocabulary(const Document *d, bool byte_level, Vocabulary *v, Error *err);
int document_read_merges(const Document *d, bool byte_level, const Vocabulary *v, Merges *m,
                         Error *err);
