// The model of a tokenizer.json: a BPE over bytes, or over characters with byte_fallback.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "base/text.h"
#include "data/tokenizer/heap.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/vocabulary.h"

typedef struct Document Document; // json.h

typedef struct Bpe {
  Vocabulary vocabulary;
  Merges merges;
  bool byte_level;    // symbols are bytes, else characters
  bool ignore_merges; // a word that is a token is taken whole
  bool fuse_unknown;
  int32_t unknown;    // the token for characters without one; NO_TOKEN: they are dropped
  int32_t byte[256];  // byte_level: the byte's token, else the ASCII character's; or NO_TOKEN
  bool byte_fallback; // characters without a token become <0x00> to <0xFF>
  int32_t fallback[256];
  // Without a pre-tokenizer a text is split between characters that are never adjacent inside a
  // token. Two characters are known by the last byte of the first and the first byte of the second;
  // U+2581, which stands for a space, counts as the byte 0xff.
  bool breaks;
  ByteSet joined[256]; // by the first of two bytes: the bytes that follow it in some token
} Bpe;

// Start from zeros.
int bpe_read(Bpe *bpe, const Document *document, bool byte_level, Error *err);
void bpe_close(Bpe *bpe);

// True if a newline can become one token with the text after it, though no token's text has both.
bool bpe_hides_newlines(const Bpe *bpe);

// The buffers of merging, one for each thread. Start from zeros.
typedef struct Link {
  int32_t previous, next;
} Link;
typedef struct BpeScratch {
  Link *links; // [capacity] between the symbols that are left
  size_t capacity;
  Heap heap; // merges that may come: the rank, the place of the left symbol
} BpeScratch;
void bpe_scratch_close(BpeScratch *s);

// Bytes of the first word of text[bytes], whose tokens do not depend on the text after it.
size_t bpe_word_length(const Bpe *bpe, const char *text, size_t bytes);

enum { BPE_MAX_BYTES = 1 << 30 }; // of a word
// Appends the tokens of a word.
void bpe_encode(const Bpe *bpe, BpeScratch *s, const char *word, size_t bytes, TokenIds *ids);
