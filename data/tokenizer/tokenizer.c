#include "data/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"

struct Tokenizer {
  TokenizerFacts facts;
};

struct Encoder {
  const Tokenizer *tokenizer;
};

struct Decoder {
  const Tokenizer *tokenizer;
  char waiting[8];
  size_t count;
  char shown[8];
};

Tokenizer *tokenizer_open(const char *path, Error *err) {
  if (strcmp(path, BYTES_NAME) != 0) {
    error_set(err, "'%s' is not \"bytes\", the only tokenizer so far", path);
    return NULL;
  }
  Tokenizer *t = xcalloc(1, sizeof *t);
  t->facts = (TokenizerFacts){.name = BYTES_NAME,
                              .fingerprint = BYTE_VOCAB,
                              .vocab_size = BYTE_VOCAB,
                              .begin = TOKEN_BEGIN,
                              .end = TOKEN_END};
  return t;
}

Tokenizer *tokenizer_parse(const char *name, const char *json, size_t bytes, Error *err) {
  (void)json, (void)bytes;
  return tokenizer_open(name, err);
}

void tokenizer_close(Tokenizer *tokenizer) {
  free(tokenizer);
}

const TokenizerFacts *tokenizer_facts(const Tokenizer *tokenizer) {
  return &tokenizer->facts;
}

int tokenizer_save(const Tokenizer *tokenizer, const char *folder, Error *err) {
  (void)tokenizer, (void)folder, (void)err;
  return 0;
}

void token_ids_push(TokenIds *list, int32_t id) {
  if (list->count == list->capacity) {
    list->capacity = list->capacity ? 2 * list->capacity : 1024;
    list->ids = xrealloc(list->ids, (size_t)list->capacity * sizeof *list->ids);
  }
  list->ids[list->count++] = id;
}

Encoder *encoder_open(const Tokenizer *tokenizer) {
  Encoder *e = xcalloc(1, sizeof *e);
  e->tokenizer = tokenizer;
  return e;
}

void encoder_close(Encoder *encoder) {
  free(encoder);
}

int encoder_append(Encoder *encoder, const char *text, size_t bytes, bool continues, TokenIds *ids,
                   Error *err) {
  (void)encoder, (void)continues, (void)err;
  for (size_t i = 0; i < bytes; i++) token_ids_push(ids, (unsigned char)text[i]);
  return 0;
}

Decoder *decoder_open(const Tokenizer *tokenizer) {
  Decoder *d = xcalloc(1, sizeof *d);
  d->tokenizer = tokenizer;
  return d;
}

void decoder_close(Decoder *decoder) {
  free(decoder);
}

size_t decoder_next(Decoder *d, int32_t id, const char **text) {
  *text = d->shown;
  if (id < 0 || id >= TOKEN_BEGIN) return 0;
  d->waiting[d->count++] = (char)id;
  const unsigned char first = (unsigned char)d->waiting[0];
  const size_t whole = first < 0xc2   ? 1
                       : first < 0xe0 ? 2
                       : first < 0xf0 ? 3
                       : first < 0xf5 ? 4
                                      : 1;
  if (d->count < whole) return 0;
  return decoder_end(d, text);
}

size_t decoder_end(Decoder *d, const char **text) {
  const size_t count = d->count;
  memcpy(d->shown, d->waiting, count);
  *text = d->shown;
  d->count = 0;
  return count;
}
