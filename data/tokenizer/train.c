#include "data/tokenizer/train.h"

#include <inttypes.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/os.h"
#include "base/text.h"
#include "data/tokenizer/json.h"
#include "data/tokenizer/regex.h"

// ---- The table of words

enum { FIRST_WORD_SLOTS = 1 << 12 };

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

static void words_put_slot(WordTable *t, uint64_t hash, size_t number) {
  size_t at = hash & (t->slot_count - 1);
  while (t->slots[at]) at = (at + 1) & (t->slot_count - 1);
  t->slots[at] = make_slot(hash, number);
}

// Builds the hash table again, at most half full with all words.
static void words_fill_slots(WordTable *t, size_t slots) {
  free(t->slots);
  t->slot_count = slots;
  t->slots = xcalloc(slots, sizeof *t->slots);
  for (size_t i = 0; i < t->count; i++)
    words_put_slot(t, XXH3_64bits(t->bytes + t->words[i].start, t->words[i].length), i);
}

static size_t append(WordTable *t, const char *word, size_t length, int64_t times) {
  if (t->count == t->capacity) {
    t->capacity = t->capacity ? t->capacity + t->capacity / 2 : FIRST_WORD_SLOTS;
    t->words = xrealloc(t->words, t->capacity * sizeof *t->words);
  }
  if (t->bytes_used + length > t->bytes_capacity) {
    t->bytes_capacity += t->bytes_capacity / 2 + length + FIRST_WORD_SLOTS;
    t->bytes = xrealloc(t->bytes, t->bytes_capacity);
  }
  memcpy(t->bytes + t->bytes_used, word, length);
  t->words[t->count] = (Word){times, (uint32_t)t->bytes_used, (uint32_t)length};
  t->bytes_used += length;
  return t->count++;
}

size_t words_add(WordTable *t, const char *word, size_t length, int64_t times) {
  if (2 * (t->count + 1) > t->slot_count)
    words_fill_slots(t, t->slot_count ? 2 * t->slot_count : FIRST_WORD_SLOTS);
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

// Adds all of another table, which is left empty.
static void words_absorb(WordTable *t, WordTable *from) {
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

// Forgets the words that came fewer than `least` times. The others keep their order.
static void words_drop_rare(WordTable *t, int64_t least) {
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
  words_fill_slots(t, t->slot_count);
}

// ---- Counting

// Bytes that a thread matches at once. A pattern may walk over a run of spaces and back, so one
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
  LIST_ROOM(c->pieces, c->piece_count, c->piece_capacity);
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

// ---- The merges of byte-pair encoding: the pair of neighbouring tokens that is the most frequent
// in all words becomes a token, and so on

enum { FIRST_SLOTS = 1 << 16 }; // of the pairs' hash table

// Two neighbouring tokens: the left one's id above the right one's, so that a number orders them.
typedef uint64_t PairKey;

typedef struct Pair {
  PairKey key;
  int64_t count;    // how often the pair comes in the text
  uint32_t *places; // [place_count] numbers of words that have or had it, some of them twice
  uint32_t place_count, place_capacity;
} Pair;

// How often a pair came when it was put there; it may have become less since.
typedef struct Candidate {
  int64_t count;
  PairKey key;
} Candidate;

typedef struct Merger {
  Word *words; // [word_count] start and length in symbols
  size_t word_count;
  int32_t *symbols; // token ids
  WordTable tokens;
  const char *const *reserved; // [reserved_count]
  int reserved_count;

  Pair *pairs; // [pair_count]
  size_t pair_count, pair_capacity;
  size_t kept_pairs; // when those were dropped that had become too rare
  uint32_t *slots;   // [slot_count] a hash table: the pair's number + 1
  size_t slot_count;

  Candidate *heap; // [heap_count] the best one first
  size_t heap_count, heap_capacity;
  int32_t (*merges)[2]; // [merge_count]
  size_t merge_count, merge_capacity;
} Merger;

// Room for one more in a list of any kind.
static void *more_room(void *list, size_t count, size_t *capacity, size_t size) {
  if (count < *capacity) return list;
  *capacity = *capacity ? *capacity + *capacity / 2 : 1024;
  return xrealloc(list, *capacity * size);
}

// ---- The pairs

static PairKey make_key(int32_t left, int32_t right) {
  return (uint64_t)left << 32 | (uint32_t)right;
}

static size_t first_slot(const Merger *m, PairKey key) {
  uint64_t h = key * 0x9e3779b97f4a7c15; // the golden ratio's bits: the upper ones depend on all
  return (h ^ h >> 32) & (m->slot_count - 1);
}

static void put_slot(Merger *m, size_t number) {
  size_t at = first_slot(m, m->pairs[number].key);
  while (m->slots[at]) at = (at + 1) & (m->slot_count - 1);
  m->slots[at] = (uint32_t)number + 1;
}

static void fill_slots(Merger *m, size_t slot_count) {
  free(m->slots);
  m->slot_count = slot_count;
  m->slots = xcalloc(m->slot_count, sizeof *m->slots);
  for (size_t i = 0; i < m->pair_count; i++) put_slot(m, i);
}

static Pair *find_pair(Merger *m, PairKey key) {
  for (size_t at = first_slot(m, key); m->slots[at]; at = (at + 1) & (m->slot_count - 1))
    if (m->pairs[m->slots[at] - 1].key == key) return &m->pairs[m->slots[at] - 1];
  return NULL;
}

static Pair *find_or_add_pair(Merger *m, PairKey key) {
  Pair *found = find_pair(m, key);
  if (found) return found;
  if (2 * (m->pair_count + 1) > m->slot_count) fill_slots(m, 2 * m->slot_count);
  m->pairs = more_room(m->pairs, m->pair_count, &m->pair_capacity, sizeof *m->pairs);
  m->pairs[m->pair_count] = (Pair){.key = key};
  put_slot(m, m->pair_count);
  return &m->pairs[m->pair_count++];
}

static void forget_places(Pair *p) {
  free(p->places);
  p->places = NULL;
  p->place_count = p->place_capacity = 0;
}

// The pair comes once more in a word.
static void pair_comes(Merger *m, int32_t left, int32_t right, uint32_t word) {
  Pair *p = find_or_add_pair(m, make_key(left, right));
  p->count += m->words[word].count;
  if (p->place_count > 0 && p->places[p->place_count - 1] == word) return;
  if (p->place_count == p->place_capacity) {
    p->place_capacity += p->place_capacity / 2 + 2;
    p->places = xrealloc(p->places, p->place_capacity * sizeof *p->places);
  }
  p->places[p->place_count++] = word;
}

// And once less.
static void pair_goes(Merger *m, int32_t left, int32_t right, uint32_t word) {
  Pair *p = find_pair(m, make_key(left, right));
  if (!p) return; // it was dropped
  p->count -= m->words[word].count;
  if (p->count == 0) forget_places(p);
}

// ---- The heap

static bool is_better(Candidate a, Candidate b) {
  return a.count != b.count ? a.count > b.count : a.key < b.key;
}

static void heap_push(Merger *m, Candidate c) {
  m->heap = more_room(m->heap, m->heap_count, &m->heap_capacity, sizeof *m->heap);
  size_t at = m->heap_count++;
  for (; at > 0 && is_better(c, m->heap[(at - 1) / 2]); at = (at - 1) / 2)
    m->heap[at] = m->heap[(at - 1) / 2];
  m->heap[at] = c;
}

static Candidate heap_pop(Merger *m) {
  const Candidate best = m->heap[0], last = m->heap[--m->heap_count];
  size_t at = 0;
  for (size_t child; (child = 2 * at + 1) < m->heap_count; at = child) {
    if (child + 1 < m->heap_count && is_better(m->heap[child + 1], m->heap[child])) child++;
    if (!is_better(m->heap[child], last)) break;
    m->heap[at] = m->heap[child];
  }
  m->heap[at] = last;
  return best;
}

// The pairs from `first` on become candidates if they come twice. Older ones have not come to
// more: each pair that a merge makes has the new token in it.
static void push_pairs(Merger *m, size_t first) {
  for (size_t i = first; i < m->pair_count; i++) {
    Pair *p = &m->pairs[i];
    if (p->count > 1)
      heap_push(m, (Candidate){p->count, p->key});
    else
      forget_places(p);
  }
}

// Once most pairs come less than twice, which they then do for ever, these are dropped.
static void drop_pairs(Merger *m) {
  if (m->pair_count < FIRST_SLOTS || m->pair_count < 2 * m->kept_pairs) return;
  size_t kept = 0;
  for (size_t i = 0; i < m->pair_count; i++)
    if (m->pairs[i].count > 1)
      m->pairs[kept++] = m->pairs[i];
    else
      free(m->pairs[i].places);
  m->pair_count = m->kept_pairs = kept;
  fill_slots(m, m->slot_count);
}

// The most frequent pair, or NULL if none comes twice.
static Pair *best_pair(Merger *m) {
  while (m->heap_count > 0) {
    const Candidate c = heap_pop(m);
    Pair *p = find_pair(m, c.key);
    if (p && p->count == c.count) return p;
    if (p && p->count > 1) heap_push(m, (Candidate){p->count, p->key});
  }
  return NULL;
}

// ---- Joining

// Joins the pair in a word, from left to right. In "aaa" that is the first two.
static void join_in_word(Merger *m, uint32_t word, int32_t left, int32_t right, int32_t joined) {
  int32_t *s = m->symbols + m->words[word].start;
  const size_t length = m->words[word].length;
  size_t kept = 0;
  for (size_t i = 0; i < length; i++) {
    if (s[i] != left || i + 1 == length || s[i + 1] != right) {
      s[kept++] = s[i];
      continue;
    }
    if (kept > 0) {
      pair_comes(m, s[kept - 1], joined, word);
      pair_goes(m, s[kept - 1], left, word);
    }
    if (i + 2 < length) {
      pair_comes(m, joined, s[i + 2], word);
      pair_goes(m, right, s[i + 2], word);
    }
    s[kept++] = joined;
    i++;
  }
  m->words[word].length = (uint32_t)kept;
}

static bool is_reserved(const Merger *m, const char *token, size_t length) {
  for (int i = 0; i < m->reserved_count; i++)
    if (strlen(m->reserved[i]) == length && memcmp(m->reserved[i], token, length) == 0) return true;
  return false;
}

// The new token's id, or -1 if it is reserved. Merges cannot collide: bytes that form a token are
// always segmented as that token.
static int32_t joined_token(Merger *m, int32_t left, int32_t right) {
  const Word a = m->tokens.words[left], b = m->tokens.words[right];
  char *text = xmalloc(a.length + b.length);
  memcpy(text, m->tokens.bytes + a.start, a.length);
  memcpy(text + a.length, m->tokens.bytes + b.start, b.length);
  const bool taken = is_reserved(m, text, a.length + b.length);
  const int32_t id = taken ? -1 : (int32_t)words_add(&m->tokens, text, a.length + b.length, 0);
  free(text);
  return id;
}

// Joins the most frequent pair to a new token; of equally frequent ones that with the smaller left
// id, then right id. False: no pair is left that comes twice.
static bool merger_step(Merger *m) {
  Pair *best;
  int32_t left, right, joined;
  drop_pairs(m);
  do { // a pair that would make a reserved token stays as it is, and is no candidate any more
    best = best_pair(m);
    if (!best) return false;
    left = (int32_t)(best->key >> 32);
    right = (int32_t)(uint32_t)best->key;
    joined = joined_token(m, left, right);
  } while (joined < 0);
  const size_t old_pairs = m->pair_count;
  uint32_t *places = best->places; // the pairs move when new ones come
  const uint32_t place_count = best->place_count;
  best->places = NULL;
  forget_places(best);
  for (uint32_t i = 0; i < place_count; i++) join_in_word(m, places[i], left, right, joined);
  free(places);
  push_pairs(m, old_pairs);
  m->merges = more_room(m->merges, m->merge_count, &m->merge_capacity, sizeof *m->merges);
  m->merges[m->merge_count][0] = left;
  m->merges[m->merge_count++][1] = right;
  return true;
}

// ---- Before and after

// The bytes as tokens. The id of one is how many have a smaller character.
static void add_bytes(Merger *m, int32_t ids[256]) {
  char ordered[256];
  for (int byte = 0; byte < 256; byte++) {
    ids[byte] = 0;
    for (int other = 0; other < 256; other++)
      ids[byte] +=
          byte_level_character((unsigned char)other) < byte_level_character((unsigned char)byte);
    ordered[ids[byte]] = (char)byte;
  }
  for (int id = 0; id < 256; id++) words_add(&m->tokens, &ordered[id], 1, 0);
}

static void spell_words(Merger *m, const char *bytes) {
  int32_t ids[256];
  add_bytes(m, ids);
  for (size_t w = 0; w < m->word_count; w++)
    for (size_t i = 0; i < m->words[w].length; i++) {
      const size_t at = m->words[w].start + i;
      m->symbols[at] = ids[(unsigned char)bytes[at]];
    }
}

// Every byte is a token, in the order of GPT-2's alphabet; ids count on from there. The words move
// into the merger, and the table becomes empty: at most INT32_MAX bytes of words. No merge makes
// one of the texts in reserved[reserved_count], which are the caller's.
static Merger *merger_open(WordTable *words, const char *const *reserved, int reserved_count) {
  Merger *m = xcalloc(1, sizeof *m);
  m->words = words->words;
  m->word_count = words->count;
  m->reserved = reserved;
  m->reserved_count = reserved_count;
  words->words = NULL;
  m->symbols = xmalloc(words->bytes_used * sizeof *m->symbols);
  spell_words(m, words->bytes);
  words_free(words);
  fill_slots(m, FIRST_SLOTS);
  for (size_t w = 0; w < m->word_count; w++) {
    const int32_t *s = m->symbols + m->words[w].start;
    for (size_t i = 1; i < m->words[w].length; i++) pair_comes(m, s[i - 1], s[i], (uint32_t)w);
  }
  push_pairs(m, 0);
  return m;
}

static void merger_close(Merger *m) {
  if (!m) return;
  for (size_t i = 0; i < m->pair_count; i++) free(m->pairs[i].places);
  words_free(&m->tokens);
  free(m->words);
  free(m->symbols);
  free(m->pairs);
  free(m->slots);
  free(m->heap);
  free(m->merges);
  free(m);
}

// ---- The trainer

// 1 GB of noise, of which every word is another, must fit into 8 GB of memory.
static const CountLimits limits = {.longest_word = BPE_LONGEST_WORD,
                                   .batch_bytes = 1 << 24,
                                   .max_words = 1 << 24,
                                   .max_words_bytes = 1 << 27};

struct BpeTrainer {
  BpeOptions options;
  const char *special[2 + BPE_MARKERS];
  int special_count;
  WordCounter *counter;
  Merger *merger; // from the first step on
  int64_t words;
};

BpeTrainer *bpe_trainer_open(const BpeOptions *options, Error *err) {
  const int64_t size = options->vocab_size;
  int markers = 0;
  while (markers < BPE_MARKERS && options->markers[markers]) markers++;
  if (size < BPE_MIN_VOCAB + markers || size > BPE_MAX_VOCAB) {
    error_set(err,
              "a tokenizer can have from %d to %d tokens (256 bytes, merges, and the special "
              "tokens %s and %s%s), not %" PRId64,
              BPE_MIN_VOCAB + markers, BPE_MAX_VOCAB, BPE_BEGIN, BPE_END,
              markers ? " and the template's" : "", size);
    return NULL;
  }
  WordCounter *counter = counter_open(options->pattern, &limits, options->threads, err);
  if (!counter) return NULL;
  BpeTrainer *t = xcalloc(1, sizeof *t);
  t->options = *options;
  t->special[t->special_count++] = BPE_BEGIN;
  t->special[t->special_count++] = BPE_END;
  for (int i = 0; i < markers; i++) t->special[t->special_count++] = options->markers[i];
  t->counter = counter;
  return t;
}

void bpe_trainer_close(BpeTrainer *t) {
  if (!t) return;
  counter_close(t->counter);
  merger_close(t->merger);
  free(t);
}

int bpe_trainer_add(BpeTrainer *t, const char *text, size_t bytes, Error *err) {
  return counter_add(t->counter, text, bytes, err);
}

static int64_t tokens_made(const BpeTrainer *t) {
  return t->merger ? (int64_t)t->merger->tokens.count + t->special_count : 0;
}

static int begin_merging(BpeTrainer *t, Error *err) {
  WordTable words;
  if (counter_finish(t->counter, &words, err) != 0) return -1;
  t->words = (int64_t)words.count;
  t->merger = merger_open(&words, t->special, t->special_count);
  return 0;
}

int bpe_trainer_step(BpeTrainer *t, int64_t tokens, Error *err) {
  if (!t->merger && begin_merging(t, err) != 0) return -1;
  const int64_t size = t->options.vocab_size, made = tokens_made(t);
  const int64_t until = size - made < tokens ? size : made + tokens;
  while (tokens_made(t) < until)
    if (!merger_step(t->merger))
      return error_set(err,
                       "the text is too little for %" PRId64 " tokens: it gives %" PRId64
                       "; add text or ask for fewer tokens",
                       size, tokens_made(t));
  return tokens_made(t) < size;
}

BpeProgress bpe_trainer_progress(const BpeTrainer *t) {
  return (BpeProgress){.bytes = t->counter->bytes,
                       .words = t->words,
                       .tokens = tokens_made(t),
                       .vocab_size = t->options.vocab_size};
}

int64_t bpe_trainer_text_tokens(const BpeTrainer *t) {
  const Merger *m = t->merger;
  int64_t tokens = 0;
  for (size_t w = 0; w < m->word_count; w++) tokens += m->words[w].count * m->words[w].length;
  return tokens;
}

// ---- The files

static char *tokenizer_json(const BpeTrainer *t) {
  const WordTable *tokens = &t->merger->tokens;
  size_t *offsets = xmalloc((tokens->count + 1) * sizeof *offsets);
  for (size_t i = 0; i < tokens->count; i++) offsets[i] = tokens->words[i].start;
  offsets[tokens->count] = tokens->bytes_used;
  const BpeExport bpe = {.bytes = tokens->bytes,
                         .offsets = offsets,
                         .count = (int32_t)tokens->count,
                         .merges = (const int32_t(*)[2])t->merger->merges,
                         .merge_count = (int64_t)t->merger->merge_count,
                         .pattern = t->options.pattern,
                         .special = t->special,
                         .special_count = t->special_count};
  char *json = export_tokenizer(&bpe);
  free(offsets);
  return json;
}

// Both under their temporary names first; then the names, that of tokenizer.json last.
static int write_both(const char *folder, const char *const texts[2], Error *err) {
  static const char *const names[2] = {"tokenizer_config.json", "tokenizer.json"};
  PathText temporary[2], final[2];
  int status = 0;
  for (int i = 0; i < 2; i++) {
    final[i] = path_text("%s/%s", folder, names[i]);
    temporary[i] = path_text("%s/%s.tmp", folder, names[i]);
    if (path_is_directory(final[i].text))
      return error_set(err, "'%s' is a folder: a file is to take this name", final[i].text);
  }
  for (int i = 0; i < 2 && status == 0; i++)
    status = file_write(temporary[i].text, texts[i], strlen(texts[i]), err);
  for (int i = 0; i < 2 && status == 0; i++)
    status = path_rename(temporary[i].text, final[i].text, err);
  if (status == 0) return directory_sync(folder, err);
  for (int i = 0; i < 2; i++) unlink(temporary[i].text);
  return -1;
}

int bpe_trainer_save(const BpeTrainer *t, const char *folder, Error *err) {
  char *json = tokenizer_json(t),
       *config = export_tokenizer_config(BPE_BEGIN, BPE_END, t->options.chat_template);
  const int status = write_both(folder, (const char *const[2]){config, json}, err);
  free(json);
  free(config);
  return status;
}
