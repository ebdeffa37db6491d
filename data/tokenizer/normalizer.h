// The normalizer of a tokenizer.json: NFC, NFD, NFKC, NFKD, Prepend, Replace of a string, Strip,
// and Sequences of these.
#pragma once
#include <cjson/cJSON.h>
#include <stdbool.h>
#include "base/error.h"
#include "base/text.h"

typedef struct NormalizerStep {
  enum { NORMALIZE_FORM, NORMALIZE_PREPEND, NORMALIZE_REPLACE, NORMALIZE_STRIP } kind;
  int form;        // utf8proc's options
  char *from, *to; // owned: what is replaced, and by what or what is prepended
  bool left, right;
} NormalizerStep;

typedef struct Normalizer {
  NormalizerStep *steps; // [count]
  int count;
} Normalizer;

// Start from zeros.
int normalizer_read(Normalizer *n, const cJSON *component, Error *err);
void normalizer_close(Normalizer *n);

// Does text keep its newlines, and the spaces at the ends of what is normalized? Does it keep every
// character that is not white space?
bool normalizer_keeps_lines(const Normalizer *n);
bool normalizer_keeps_characters(const Normalizer *n);

typedef struct NormalizerBuffers {
  Text now, next;
  int *characters; // [capacity] for utf8proc
  size_t capacity;
} NormalizerBuffers;
void normalizer_buffers_close(NormalizerBuffers *b);

// A text may become so many times as long, and so many bytes longer. A normal form makes 11 times
// as much of U+FDFA.
enum { NORMALIZER_GROWTH = 16, NORMALIZER_MORE_BYTES = 1 << 20 };

// text[bytes] -> b->now, which is another text. continues: nothing is put in front. What is no
// UTF-8 stays as it is. -1: it would become too long, or utf8proc refuses it.
int normalizer_apply(const Normalizer *n, NormalizerBuffers *b, const char *text, size_t bytes,
                     bool continues, Error *err);

// Bytes of white space (Unicode's White_Space) at the start, and at the end.
size_t white_space_at_start(const char *text, size_t bytes);
size_t white_space_at_end(const char *text, size_t bytes);
