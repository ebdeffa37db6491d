#include "data/tokenizer/vocabulary.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/memory.h"

// ---- GPT-2's alphabet

// The printable characters of Latin-1: without controls, the two spaces and the soft hyphen.
static bool stands_for_itself(uint32_t c) {
  return (c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xff && c != 0xad);
}

// The others, in order: 0 to 0x20 take U+0100 to U+0120, 0x7f to 0xa0 the next 34, 0xad the last.
uint32_t byte_level_character(unsigned char byte) {
  if (stands_for_itself(byte)) return byte;
  return 0x100 + (byte <= ' ' ? byte : byte == 0xad ? 67 : byte - 0x7fu + 33);
}

static int byte_of(uint32_t c) {
  if (stands_for_itself(c)) return (int)c;
  if (c < 0x100 || c > 0x100 + 67) return -1;
  const int k = (int)c - 0x100;
  return k <= ' ' ? k : k == 67 ? 0xad : k - 33 + 0x7f;
}

ptrdiff_t byte_level_decode(const char *text, size_t bytes, char *out) {
  ptrdiff_t count = 0;
  for (size_t i = 0; i < bytes; i++) {
    uint32_t c = (unsigned char)text[i];
    if (c >= 0x80) { // the alphabet's characters take two bytes at most
      if (c < 0xc2 || c >= 0xe0 || ++i == bytes) return -1;
      c = (c & 0x1f) << 6 | ((unsigned char)text[i] & 0x3f);
    }
    const int byte = byte_of(c);
    if (byte < 0) return -1;
    out[count++] = (char)byte;
  }
  return count;
}

size_t byte_level_encode(const char *text, size_t bytes, char *out) {
  size_t count = 0;
  for (size_t i = 0; i < bytes; i++) {
    const uint32_t c = byte_level_character((unsigned char)text[i]);
    if (c >= 0x80) out[count++] = (char)(0xc0 | c >> 6);
    out[count++] = (char)(c < 0x80 ? c : 0x80 | (c & 0x3f));
  }
  return count;
}

// ---- Vocabulary and merges

static bool same(const Vocabulary *v, int32_t id, const char *text, size_t bytes, bool raw) {
  const Token t = v->tokens[id];
  return t.length == bytes && t.raw == raw && memcmp(v->text.data + t.offset, text, bytes) == 0;
}

// Where the text is, or the free slot where it would be.
static size_t find_slot(const Vocabulary *v, const char *text, size_t bytes, bool raw) {
  size_t at = XXH3_64bits(text, bytes) & v->mask;
  while (v->slots[at] >= 0 && !same(v, v->slots[at], text, bytes, raw)) at = (at + 1) & v->mask;
  return at;
}

int32_t vocabulary_find(const Vocabulary *v, const char *text, size_t bytes, bool raw) {
  return v->slots ? v->slots[find_slot(v, text, bytes, raw)] : -1;
}

int32_t vocabulary_find_named(const Vocabulary *v, Span name, bool byte_level) {
  char few[64], *raw = name.bytes <= sizeof few ? few : xmalloc(name.bytes);
  const ptrdiff_t n = byte_level ? byte_level_decode(name.text, name.bytes, raw) : -1;
  const int32_t id = n < 0 ? vocabulary_find(v, name.text, name.bytes, false)
                           : vocabulary_find(v, raw, (size_t)n, true);
  if (raw != few) free(raw);
  return id;
}

static void grow_slots(Vocabulary *v) {
  v->mask = v->slots ? 2 * v->mask + 1 : 1023;
  free(v->slots);
  v->slots = xmalloc((v->mask + 1) * sizeof *v->slots);
  for (size_t i = 0; i <= v->mask; i++) v->slots[i] = -1;
  for (int32_t id = 0; id < v->size; id++) {
    const Token t = v->tokens[id];
    if (t.there) v->slots[find_slot(v, v->text.data + t.offset, t.length, t.raw)] = id;
  }
}

static void grow_tokens(Vocabulary *v, int32_t id) {
  if (id < v->size) return;
  if (id >= v->capacity) {
    v->capacity = 2 * (id + 1);
    v->tokens = xrealloc(v->tokens, (size_t)v->capacity * sizeof *v->tokens);
  }
  memset(v->tokens + v->size, 0, (size_t)(id + 1 - v->size) * sizeof *v->tokens);
  v->size = id + 1;
}

int vocabulary_add_id(Vocabulary *v, int64_t id, Error *err) {
  if (id < 0 || id > MAX_TOKEN_ID)
    return error_set(err, "a token has the id %" PRId64 ", but ids lie in [0, %d]", id,
                     MAX_TOKEN_ID);
  if (vocabulary_has(v, id)) return error_set(err, "two tokens have the id %" PRId64, id);
  grow_tokens(v, (int32_t)id);
  v->tokens[id].there = true;
  v->count++;
  return 0;
}

int vocabulary_add(Vocabulary *v, const char *text, size_t bytes, bool raw, int64_t id,
                   Error *err) {
  if (2 * ((size_t)v->count + 1) > v->mask) grow_slots(v);
  const size_t slot = find_slot(v, text, bytes, raw);
  if (v->slots[slot] >= 0)
    return error_set(err, "the token '%.*s' appears twice, with the ids %d and %" PRId64,
                     bytes < 100 ? (int)bytes : 100, text, v->slots[slot], id);
  if (vocabulary_add_id(v, id, err) != 0) return -1;
  v->tokens[id] = (Token){.offset = (uint32_t)v->text.bytes,
                          .length = (uint32_t)bytes & 0x3fffffff,
                          .raw = raw,
                          .there = true};
  memcpy(text_room(&v->text, bytes + 1), text, bytes);
  v->text.bytes += bytes;
  v->slots[slot] = (int32_t)id;
  return 0;
}

void vocabulary_close(Vocabulary *v) {
  free(v->text.data);
  free(v->tokens);
  free(v->slots);
}

void merges_add(Merges *m, int32_t left, int32_t right, int32_t merged) {
  LIST_ROOM(m->list, m->count, m->capacity);
  m->list[m->count] = (Merge){left, right, merged, (int32_t)m->count};
  m->count++;
}

void merges_index(Merges *m) {
  int bits = 4;
  while ((size_t)1 << bits < 2 * m->count) bits++;
  m->mask = ((size_t)1 << bits) - 1;
  m->shift = 64 - bits;
  m->slots = xmalloc((m->mask + 1) * sizeof *m->slots);
  memset(m->slots, 0xff, (m->mask + 1) * sizeof *m->slots);
  for (size_t i = 0; i < m->count; i++) {
    const Merge *merge = &m->list[i];
    size_t at = merges_slot(m, merge->left, merge->right);
    while (m->slots[at].left >= 0 &&
           (m->slots[at].left != merge->left || m->slots[at].right != merge->right))
      at = (at + 1) & m->mask;
    m->slots[at] = *merge;
  }
}

void merges_close(Merges *m) {
  free(m->list);
  free(m->slots);
}
