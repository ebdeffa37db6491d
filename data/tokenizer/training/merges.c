#include "data/tokenizer/training/merges.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/tokenizer/bpe.h"

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

struct Merger {
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
};

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

// The new token's id, or -1 if it is reserved. No two merges make the same token: between tokens'
// borders the same bytes are always cut the same way, so that once they are a token, they are one
// everywhere.
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

bool merger_step(Merger *m) {
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

Merger *merger_open(WordTable *words, const char *const *reserved, int reserved_count) {
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

void merger_close(Merger *m) {
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

const WordTable *merger_tokens(const Merger *m) {
  return &m->tokens;
}

const int32_t (*merger_merges(const Merger *m, int64_t *count))[2] {
  *count = (int64_t)m->merge_count;
  return (const int32_t(*)[2])m->merges;
}

int64_t merger_text_tokens(const Merger *m) {
  int64_t tokens = 0;
  for (size_t w = 0; w < m->word_count; w++) tokens += m->words[w].count * m->words[w].length;
  return tokens;
}
