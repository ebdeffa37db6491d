#include "data/tokenizer/words.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"
#include "base/os.h"
#include "base/text.h"
#include "data/tokenizer/regex.h"

// ---- The table

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

// Builds the hash table again, at most half full with all words.
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

// ---- Counting

// A thread matches so many bytes at once. A pattern may walk over a run of spaces and back, so one
// without an end would come to PCRE2's limits.
enum { PIECE_BYTES = 1 << 20 };

typedef struct Piece {
  size_t begin, end;
} Piece;

struct WordCounter {
  Regex *regex;
  CountLimits limits;
  int threads;
  RegexScan **scans; // [threads]
  WordTable *tables; // [threads]

  char *batch; // [limits.batch_bytes]
  size_t used;
  Piece *pieces; // [piece_count] of the batch
  size_t piece_count, piece_capacity;
  int64_t bytes; // that were added
};

WordCounter *counter_open(const char *pattern, const CountLimits *limits, int threads, Error *err) {
  Regex *regex = regex_open(pattern, err);
  if (!regex) return NULL;
  WordCounter *c = xcalloc(1, sizeof *c);
  c->regex = regex;
  c->limits = *limits;
  c->threads = threads > 0 ? threads : omp_get_max_threads();
  thread_team(c->threads);
  c->scans = xcalloc((size_t)c->threads, sizeof(RegexScan *));
  c->tables = xcalloc((size_t)c->threads, sizeof *c->tables);
  for (int i = 0; i < c->threads; i++) c->scans[i] = regex_scan_open(regex);
  c->batch = xmalloc(limits->batch_bytes);
  return c;
}

void counter_close(WordCounter *c) {
  if (!c) return;
  for (int i = 0; i < c->threads; i++) {
    regex_scan_close(c->scans[i]);
    words_free(&c->tables[i]);
  }
  regex_close(c->regex);
  free(c->scans);
  free(c->tables);
  free(c->batch);
  free(c->pieces);
  free(c);
}

int64_t counter_bytes(const WordCounter *c) {
  return c->bytes;
}

// ---- One piece

// The last place in text[bytes], at or before `at`, where a character begins. Bytes that are not
// UTF-8 begin one, too.
static size_t character_start(const char *text, size_t at) {
  for (size_t back = 0; back < 4 && back < at; back++)
    if (((unsigned char)text[at - back] & 0xc0) != 0x80) return at - back;
  return at;
}

static void add_word(const WordCounter *c, WordTable *table, const char *word, size_t length) {
  while (length > c->limits.longest_word) {
    const size_t cut = character_start(word, c->limits.longest_word);
    words_add(table, word, cut, 1);
    word += cut;
    length -= cut;
  }
  if (length > 0) words_add(table, word, length, 1);
}

// UTF-8: the matches are words, and so is the text between them.
static int count_valid(const WordCounter *c, int thread, const char *text, size_t bytes,
                       Error *err) {
  WordTable *table = &c->tables[thread];
  size_t start = 0, from = 0, begin, end;
  while (from < bytes) {
    const int found = regex_next(c->scans[thread], text, bytes, from, &begin, &end, err);
    if (found < 0) return -1;
    if (found == 0) break;
    add_word(c, table, text + start, begin - start);
    add_word(c, table, text + begin, end - begin);
    start = from = end;
    if (begin == end && end < bytes) from += utf8_length(text + end, bytes - end);
  }
  add_word(c, table, text + start, bytes - start);
  return 0;
}

static int count_piece(const WordCounter *c, int thread, const char *text, size_t bytes,
                       Error *err) {
  while (bytes > 0) {
    const size_t valid = utf8_valid(text, bytes);
    if (valid > 0 && count_valid(c, thread, text, valid, err) != 0) return -1;
    size_t broken = valid;
    while (broken < bytes && utf8_length(text + broken, bytes - broken) == 0) broken++;
    add_word(c, &c->tables[thread], text + valid, broken - valid);
    text += broken;
    bytes -= broken;
  }
  return 0;
}

// ---- A batch

// The sentence is that of the first piece that fails, whatever the threads do.
static int count_pieces(WordCounter *c, Error *err) {
  size_t failed = SIZE_MAX;
#pragma omp parallel for num_threads(c->threads) schedule(dynamic)
  for (size_t i = 0; i < c->piece_count; i++) {
    const Piece p = c->pieces[i];
    Error why;
    if (count_piece(c, omp_get_thread_num(), c->batch + p.begin, p.end - p.begin, &why) == 0)
      continue;
#pragma omp critical
    if (i < failed) {
      failed = i;
      *err = why;
    }
  }
  return failed == SIZE_MAX ? 0 : -1;
}

// ---- All of it

static void gather(WordCounter *c) {
  for (int i = 1; i < c->threads; i++) words_absorb(&c->tables[0], &c->tables[i]);
}

// Depends on the text alone: the threads' words are gathered if they could be too many, and then
// they are counted.
static void bound_words(WordCounter *c) {
  const size_t max_words = c->limits.max_words, max_bytes = c->limits.max_words_bytes;
  size_t words = 0, bytes = 0;
  for (int i = 0; i < c->threads; i++) {
    words += c->tables[i].count;
    bytes += c->tables[i].bytes_used;
  }
  if (words <= max_words && bytes <= max_bytes) return;
  gather(c);
  WordTable *all = &c->tables[0];
  if (all->count <= max_words && all->bytes_used <= max_bytes) return;
  for (int64_t least = 2; all->count > max_words / 2 || all->bytes_used > max_bytes / 2; least *= 2)
    words_drop_rare(all, least);
}

// Counts the batch. The words are bounded before, so that those of the last batch all stay.
static int count_batch(WordCounter *c, Error *err) {
  bound_words(c);
  if (count_pieces(c, err) != 0) return -1;
  c->used = c->piece_count = 0;
  return 0;
}

// Takes text that can be matched at once.
static int add_piece(WordCounter *c, const char *text, size_t bytes, Error *err) {
  if (bytes > c->limits.batch_bytes - c->used && count_batch(c, err) != 0) return -1;
  if (c->piece_count == c->piece_capacity) {
    c->piece_capacity = 2 * c->piece_capacity + 1024;
    c->pieces = xrealloc(c->pieces, c->piece_capacity * sizeof *c->pieces);
  }
  memcpy(c->batch + c->used, text, bytes);
  c->pieces[c->piece_count++] = (Piece){c->used, c->used + bytes};
  c->used += bytes;
  c->bytes += (int64_t)bytes;
  return 0;
}

int counter_add(WordCounter *c, const char *text, size_t bytes, Error *err) {
  while (bytes > PIECE_BYTES) {
    const size_t cut = character_start(text, PIECE_BYTES);
    if (add_piece(c, text, cut, err) != 0) return -1;
    text += cut;
    bytes -= cut;
  }
  return bytes > 0 ? add_piece(c, text, bytes, err) : 0;
}

int counter_finish(WordCounter *c, WordTable *words, Error *err) {
  if (count_batch(c, err) != 0) return -1;
  gather(c);
  *words = c->tables[0];
  c->tables[0] = (WordTable){0};
  return 0;
}
