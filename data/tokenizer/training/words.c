#include "data/tokenizer/training/words.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"

enum { FIRST_SLOTS = 1 << 12 };

void words_free(WordTable *t) {
  free(t->words);
  free(t->bytes);
  free(t->slots);
  *t = (WordTable){0};
}

// A slot is the upper half of the hash above the number + 1; 0 is a free one.
static uint64_t make_slot(uint64_t hash, size_t number) {
  return (hash >> 32 << 32) | (uint64_t)(number + 1);
}

static void put_slot(WordTable *t, uint64_t hash, size_t number) {
  size_t at = hash & (t->slot_count - 1);
  while (t->slots[at]) at = (at + 1) & (t->slot_count - 1);
  t->slots[at] = make_slot(hash, number);
}

// Makes the hash table anew, at most half full when all words are in.
static void fill_slots(WordTable *t, size_t slots) {
  free(t->slots);
  t->slot_count = slots;
  t->slots = xcalloc(slots, sizeof *t->slots);
  for (size_t i = 0; i < t->count; i++)
    put_slot(t, XXH3_64bits(t->bytes + t->words[i].start, t->words[i].length), i);
}

static size_t append(WordTable *t, const char *word, size_t length, int64_t times) {
  if (t->count == t->capacity) {
    t->capacity = t->capacity ? t->capacity + t->capacity / 2 : FIRST_SLOTS;
    t->words = xrealloc(t->words, t->capacity * sizeof *t->words);
  }
  if (t->bytes_used + length > t->bytes_capacity) {
    t->bytes_capacity += t->bytes_capacity / 2 + length + FIRST_SLOTS;
    t->bytes = xrealloc(t->bytes, t->bytes_capacity);
  }
  memcpy(t->bytes + t->bytes_used, word, length);
  t->words[t->count] = (Word){times, (uint32_t)t->bytes_used, (uint32_t)length};
  t->bytes_used += length;
  return t->count++;
}

size_t words_add(WordTable *t, const char *word, size_t length, int64_t times) {
  if (2 * (t->count + 1) > t->slot_count)
    fill_slots(t, t->slot_count ? 2 * t->slot_count : FIRST_SLOTS);
  const uint64_t hash = XXH3_64bits(word, length);
  size_t at = hash & (t->slot_count - 1);
  for (; t->slots[at]; at = (at + 1) & (t->slot_count - 1)) {
    if (t->slots[at] >> 32 != hash >> 32) continue;
    const size_t number = (uint32_t)t->slots[at] - 1;
    Word *w = &t->words[number];
    if (w->length != length || memcmp(t->bytes + w->start, word, length) != 0) continue;
    w->count += times;
    return number;
  }
  const size_t number = append(t, word, length, times);
  t->slots[at] = make_slot(hash, number);
  return number;
}

void words_absorb(WordTable *t, WordTable *from) {
  if (t->count == 0) {
    words_free(t);
    *t = *from;
    *from = (WordTable){0};
  }
  for (size_t i = 0; i < from->count; i++) {
    const Word *w = &from->words[i];
    words_add(t, from->bytes + w->start, w->length, w->count);
  }
  words_free(from);
}

void words_drop_rare(WordTable *t, int64_t least) {
  size_t kept = 0, used = 0;
  for (size_t i = 0; i < t->count; i++) {
    Word w = t->words[i];
    if (w.count < least) continue;
    memmove(t->bytes + used, t->bytes + w.start, w.length);
    w.start = (uint32_t)used;
    used += w.length;
    t->words[kept++] = w;
  }
  t->count = kept;
  t->bytes_used = used;
  fill_slots(t, t->slot_count);
}
