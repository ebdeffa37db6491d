// A tokenizer's normalizer: it changes a text before the text is cut into words.
#pragma once
#include "data/tokenizer/steps.h"

// True if it keeps newlines, and the spaces at the ends of a text; if it keeps every character that
// is not white space.
bool normalizer_keeps_lines(const Steps *normalizer);
bool normalizer_keeps_characters(const Steps *normalizer);

typedef struct NormalizerBuffers {
  Text now, next;
  int *characters; // [capacity] for utf8proc
  size_t capacity;
} NormalizerBuffers;
void normalizer_buffers_close(NormalizerBuffers *b);

// A text may become this many times as long, and this many bytes longer. A normal form makes 11
// times as much of U+FDFA.
enum { NORMALIZER_GROWTH = 16, NORMALIZER_MORE_BYTES = 1 << 20 };

// text[bytes] -> b->now, which is another text. continues: nothing is put in front. Bytes that are
// not UTF-8 stay. -1: the text would become too long, or utf8proc refuses it.
int normalizer_apply(const Steps *normalizer, NormalizerBuffers *b, const char *text, size_t bytes,
                     bool continues, Error *err);

// in, with every `from` replaced by `to`, behind `out`. Stops where out has more than `most` bytes.
void text_replace(const Text *in, Text *out, const char *from, const char *to, size_t most);

// Bytes of white space (Unicode's White_Space) at the start, and at the end.
size_t white_space_at_start(const char *text, size_t bytes);
size_t white_space_at_end(const char *text, size_t bytes);
