// The tokens of a tokenizer by id and by text, and its merges by pair.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "base/text.h"

// ---- GPT-2's alphabet: every byte as one printable character, so that a vocabulary of bytes can
// be written as text. A byte that is a printable character of Latin-1 stands for itself; the others
// become U+0100, U+0101 and so on, in order

// The character of a byte.
uint32_t byte_level_character(unsigned char byte);
// text[bytes] in UTF-8 -> out[at most bytes], not NUL-terminated. Returns how many bytes, or -1 if
// a character does not belong to the alphabet.
ptrdiff_t byte_level_decode(const char *text, size_t bytes, char *out);
// text[bytes] -> out[2 * bytes] at most, UTF-8, not NUL-terminated. Returns how many bytes.
size_t byte_level_encode(const char *text, size_t bytes, char *out);

// ---- The tokens by id and by text, the merges by pair

enum { MAX_TOKEN_ID = (1 << 24) - 1 };

// A token's text is as the file has it, or, where `raw` says so, the bytes that it stands for in
// GPT-2's alphabet.
typedef struct Token {
  uint32_t offset; // into Vocabulary.text
  uint32_t length : 30;
  uint32_t raw : 1;
  uint32_t there : 1; // ids may have holes
} Token;

typedef struct Vocabulary {
  Text text;
  Token *tokens;  // [size], by id
  int32_t size;   // the largest id + 1
  int32_t count;  // tokens that are there
  int32_t *slots; // [mask + 1] open addressing by text: ids, or -1
  size_t mask;
  int32_t capacity; // of tokens
} Vocabulary;

// Start from zeros. The sentence says which id is too large or there twice, or which text.
int vocabulary_add(Vocabulary *v, const char *text, size_t bytes, bool raw, int64_t id, Error *err);
// An id whose text is an added token's: it cannot be found by text.
int vocabulary_add_id(Vocabulary *v, int64_t id, Error *err);
int32_t vocabulary_find(const Vocabulary *v, const char *text, size_t bytes, bool raw); // or -1
// Finds a token as a file spells it; byte_level: perhaps in GPT-2's alphabet.
int32_t vocabulary_find_named(const Vocabulary *v, Span name, bool byte_level);
static inline const char *vocabulary_text(const Vocabulary *v, int32_t id) {
  return v->text.data + v->tokens[id].offset;
}
static inline bool vocabulary_has(const Vocabulary *v, int64_t id) {
  return id >= 0 && id < v->size && v->tokens[id].there;
}
void vocabulary_close(Vocabulary *v);

typedef struct Merge {
  int32_t left, right, merged; // ids
  int32_t rank;                // the lowest is merged first
} Merge;

typedef struct Merges {
  Merge *list; // [count], by rank
  size_t count, capacity;
  Merge *slots; // [1 << (64 - shift)] open addressing by pair; left is -1 where a slot is free
  size_t mask;
  int shift;
} Merges;

// Start from zeros: add all, then index them. Of a pair that comes twice the later one counts.
void merges_add(Merges *m, int32_t left, int32_t right, int32_t merged);
void merges_index(Merges *m);
void merges_close(Merges *m);

static inline size_t merges_slot(const Merges *m, int32_t left, int32_t right) {
  const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
  return (size_t)(pair * 0x9e3779b97f4a7c15 >> m->shift);
}

// The merge of two neighbours, or NULL.
static inline const Merge *merges_find(const Merges *m, int32_t left, int32_t right) {
  for (size_t at = merges_slot(m, left, right);; at = (at + 1) & m->mask) {
    const Merge *merge = &m->slots[at];
    if (merge->left == left && merge->right == right) return merge;
    if (merge->left < 0) return NULL;
  }
}
