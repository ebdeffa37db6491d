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
#include "data/tokenizer/cut.h"
#include "data/tokenizer/heap.h"

// ---- The table of words

enum { FIRST_WORD_SLOTS = 1 << 12 };

// Room for one more in a list of any kind.
static void *more_room(void *list, size_t count, size_t *capacity, size_t size) {
  if (count < *capacity) return list;
  *capacity = *capacity ? *capacity + *capacity / 2 : 1024;
  return xrealloc(list, *capacity * size);
}

static void words_free(WordTable *t) {
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
  t->words = more_room(t->words, t->count, &t->capacity, sizeof *t->words);
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

// ---- The trainer: it counts the words, and then it merges pairs of neighbouring tokens, always
// the one that is the most frequent in all words

// Bytes that a thread matches at once. A pattern may walk over a run of spaces and back, so one
// without an end would come to PCRE2's limits.
enum { PIECE_BYTES = 1 << 20, FIRST_SLOTS = 1 << 16 };

// 1 GB of noise, of which every word is another, must fit into 8 GB of memory.
static const CountLimits usual_limits = {.longest_word = BPE_LONGEST_WORD,
                                         .batch_bytes = 1 << 24,
                                         .max_words = 1 << 24,
                                         .max_words_bytes = 1 << 27};

// One for each thread.
typedef struct Counter {
  WordTable words;
  Cutter cutter;
  size_t longest_word; // bytes
} Counter;

// Two neighbouring tokens: the left one's id above the right one's, so that a number orders them.
typedef uint64_t PairKey;

typedef struct Pair {
  PairKey key;
  int64_t count;    // how often the pair comes in the text
  uint32_t *places; // [place_count] numbers of words that have or had it, some of them twice
  uint32_t place_count, place_capacity;
} Pair;

struct BpeTrainer {
  BpeOptions options;
  const char *special[2 + BPE_MARKERS]; // [special_count]
  int special_count;

  Step split;
  Steps cut; // by the pattern
  int threads;
  Counter *counters; // [threads]; in the end all words are in the first one
  char *batch;       // [limits.batch_bytes]
  size_t used;
  Piece *pieces; // [piece_count] of the batch
  size_t piece_count, piece_capacity;
  int64_t bytes; // that were added

  // From the first step on. A word's start and length are those of its symbols.
  int32_t *symbols; // token ids
  Vocabulary tokens;
  Merges merges;
  Pair *pairs; // [pair_count]
  size_t pair_count, pair_capacity;
  size_t kept_pairs; // when those were dropped that had become too rare
  uint32_t *slots;   // [slot_count] a hash table: the pair's number + 1
  size_t slot_count;
  Heap heap; // of candidates: UINT64_MAX - how often the pair came when it was put there, its key
};

BpeTrainer *bpe_trainer_open(const BpeOptions *options, Error *err) {
  const int64_t size = options->vocab_size;
  int markers = 0;
  while (markers < BPE_MARKERS && options->markers[markers]) markers++;
  if (size < BPE_MIN_VOCAB + markers || size > BPE_MAX_VOCAB) {
    error_set(
        err,
        "a tokenizer can have from %d to %d tokens, bytes and special tokens too, not %" PRId64,
        BPE_MIN_VOCAB + markers, BPE_MAX_VOCAB, size);
    return NULL;
  }
  Regex *regex = regex_open(options->pattern, err);
  if (!regex) return NULL;
  BpeTrainer *t = xcalloc(1, sizeof *t);
  t->options = *options;
  if (t->options.limits.batch_bytes == 0) t->options.limits = usual_limits;
  t->special[t->special_count++] = BPE_BEGIN;
  t->special[t->special_count++] = BPE_END;
  for (int i = 0; i < markers; i++) t->special[t->special_count++] = options->markers[i];
  t->split = (Step){.kind = CUT_SPLIT, .regex = regex};
  t->cut = (Steps){.stage = CUT, .list = &t->split, .count = 1};
  t->threads = options->threads > 0 ? options->threads : omp_get_max_threads();
  thread_team(t->threads);
  t->counters = xcalloc((size_t)t->threads, sizeof *t->counters);
  for (int i = 0; i < t->threads; i++) {
    t->counters[i].longest_word = t->options.limits.longest_word;
    cutter_open(&t->counters[i].cutter, &t->cut);
  }
  t->batch = xmalloc(t->options.limits.batch_bytes);
  return t;
}

void bpe_trainer_close(BpeTrainer *t) {
  if (!t) return;
  for (int i = 0; i < t->threads; i++) {
    cutter_close(&t->counters[i].cutter);
    words_free(&t->counters[i].words);
  }
  for (size_t i = 0; i < t->pair_count; i++) free(t->pairs[i].places);
  regex_close(t->split.regex);
  vocabulary_close(&t->tokens);
  merges_close(&t->merges);
  free(t->counters);
  free(t->batch);
  free(t->pieces);
  free(t->symbols);
  free(t->pairs);
  free(t->slots);
  free(t->heap.items);
  free(t);
}

// ---- Counting words: the matches of the pattern, the text between them, and bytes that are not
// UTF-8

static int count_word(void *counter, const char *word, size_t length, Error *err) {
  Counter *c = counter;
  (void)err;
  while (length > c->longest_word) {
    const size_t cut = cut_character(word, c->longest_word);
    words_add(&c->words, word, cut, 1);
    word += cut;
    length -= cut;
  }
  words_add(&c->words, word, length, 1);
  return 0;
}

// The sentence is that of the first piece that fails, whatever the threads do.
static int count_pieces(BpeTrainer *t, Error *err) {
  size_t failed = SIZE_MAX;
#pragma omp parallel for num_threads(t->threads) schedule(dynamic)
  for (size_t i = 0; i < t->piece_count; i++) {
    Counter *c = &t->counters[omp_get_thread_num()];
    Error why;
    if (cutter_cut(&c->cutter, t->pieces[i], count_word, c, &why) == 0) continue;
#pragma omp critical
    if (i < failed) {
      failed = i;
      *err = why;
    }
  }
  return failed == SIZE_MAX ? 0 : -1;
}

static void gather(BpeTrainer *t) {
  for (int i = 1; i < t->threads; i++) words_absorb(&t->counters[0].words, &t->counters[i].words);
}

// Depends on the text alone: the threads' words are gathered if they could be too many, and then
// they are counted.
static void bound_words(BpeTrainer *t) {
  const size_t max_words = t->options.limits.max_words,
               max_bytes = t->options.limits.max_words_bytes;
  size_t words = 0, bytes = 0;
  for (int i = 0; i < t->threads; i++) {
    words += t->counters[i].words.count;
    bytes += t->counters[i].words.bytes_used;
  }
  if (words <= max_words && bytes <= max_bytes) return;
  gather(t);
  WordTable *all = &t->counters[0].words;
  if (all->count <= max_words && all->bytes_used <= max_bytes) return;
  for (int64_t least = 2; all->count > max_words / 2 || all->bytes_used > max_bytes / 2; least *= 2)
    words_drop_rare(all, least);
}

// Counts the batch. The words are bounded before, so that those of the last batch all stay.
static int count_batch(BpeTrainer *t, Error *err) {
  bound_words(t);
  if (count_pieces(t, err) != 0) return -1;
  t->used = t->piece_count = 0;
  return 0;
}

// Takes text that can be matched at once.
static int add_piece(BpeTrainer *t, const char *text, size_t bytes, Error *err) {
  if (bytes > t->options.limits.batch_bytes - t->used && count_batch(t, err) != 0) return -1;
  LIST_ROOM(t->pieces, t->piece_count, t->piece_capacity);
  memcpy(t->batch + t->used, text, bytes);
  t->pieces[t->piece_count++] = (Piece){.text = t->batch + t->used, .bytes = bytes};
  t->used += bytes;
  t->bytes += (int64_t)bytes;
  return 0;
}

int bpe_trainer_add(BpeTrainer *t, const char *text, size_t bytes, Error *err) {
  while (bytes > PIECE_BYTES) {
    const size_t cut = cut_character(text, PIECE_BYTES);
    if (add_piece(t, text, cut, err) != 0) return -1;
    text += cut;
    bytes -= cut;
  }
  return bytes > 0 ? add_piece(t, text, bytes, err) : 0;
}

WordTable *bpe_trainer_words(BpeTrainer *t, Error *err) {
  if (count_batch(t, err) != 0) return NULL;
  gather(t);
  return &t->counters[0].words;
}

// ---- The pairs

static PairKey make_key(int32_t left, int32_t right) {
  return (uint64_t)left << 32 | (uint32_t)right;
}

static size_t first_slot(const BpeTrainer *t, PairKey key) {
  uint64_t h = key * 0x9e3779b97f4a7c15; // the golden ratio's bits: the upper ones depend on all
  return (h ^ h >> 32) & (t->slot_count - 1);
}

static void put_slot(BpeTrainer *t, size_t number) {
  size_t at = first_slot(t, t->pairs[number].key);
  while (t->slots[at]) at = (at + 1) & (t->slot_count - 1);
  t->slots[at] = (uint32_t)number + 1;
}

static void fill_slots(BpeTrainer *t, size_t slot_count) {
  free(t->slots);
  t->slot_count = slot_count;
  t->slots = xcalloc(t->slot_count, sizeof *t->slots);
  for (size_t i = 0; i < t->pair_count; i++) put_slot(t, i);
}

static Pair *find_pair(BpeTrainer *t, PairKey key) {
  for (size_t at = first_slot(t, key); t->slots[at]; at = (at + 1) & (t->slot_count - 1))
    if (t->pairs[t->slots[at] - 1].key == key) return &t->pairs[t->slots[at] - 1];
  return NULL;
}

static Pair *find_or_add_pair(BpeTrainer *t, PairKey key) {
  Pair *found = find_pair(t, key);
  if (found) return found;
  if (2 * (t->pair_count + 1) > t->slot_count) fill_slots(t, 2 * t->slot_count);
  t->pairs = more_room(t->pairs, t->pair_count, &t->pair_capacity, sizeof *t->pairs);
  t->pairs[t->pair_count] = (Pair){.key = key};
  put_slot(t, t->pair_count);
  return &t->pairs[t->pair_count++];
}

static void forget_places(Pair *p) {
  free(p->places);
  p->places = NULL;
  p->place_count = p->place_capacity = 0;
}

// The pair comes once more in a word.
static void pair_comes(BpeTrainer *t, int32_t left, int32_t right, uint32_t word) {
  Pair *p = find_or_add_pair(t, make_key(left, right));
  p->count += t->counters[0].words.words[word].count;
  if (p->place_count > 0 && p->places[p->place_count - 1] == word) return;
  if (p->place_count == p->place_capacity) {
    p->place_capacity += p->place_capacity / 2 + 2;
    p->places = xrealloc(p->places, p->place_capacity * sizeof *p->places);
  }
  p->places[p->place_count++] = word;
}

// And once less.
static void pair_goes(BpeTrainer *t, int32_t left, int32_t right, uint32_t word) {
  Pair *p = find_pair(t, make_key(left, right));
  if (!p) return; // it was dropped
  p->count -= t->counters[0].words.words[word].count;
  if (p->count == 0) forget_places(p);
}

// ---- Candidates

static void push_candidate(BpeTrainer *t, const Pair *p) {
  heap_push(&t->heap, UINT64_MAX - (uint64_t)p->count, p->key);
}

// The pairs from `first` on become candidates if they come twice. Older ones have not come to
// more: each pair that a merge makes has the new token in it.
static void push_pairs(BpeTrainer *t, size_t first) {
  for (size_t i = first; i < t->pair_count; i++) {
    Pair *p = &t->pairs[i];
    if (p->count > 1)
      push_candidate(t, p);
    else
      forget_places(p);
  }
}

// Once most pairs come less than twice, which they then do for ever, these are dropped.
static void drop_pairs(BpeTrainer *t) {
  if (t->pair_count < FIRST_SLOTS || t->pair_count < 2 * t->kept_pairs) return;
  size_t kept = 0;
  for (size_t i = 0; i < t->pair_count; i++)
    if (t->pairs[i].count > 1)
      t->pairs[kept++] = t->pairs[i];
    else
      free(t->pairs[i].places);
  t->pair_count = t->kept_pairs = kept;
  fill_slots(t, t->slot_count);
}

// The most frequent pair, or NULL if none comes twice.
static Pair *best_pair(BpeTrainer *t) {
  while (t->heap.count > 0) {
    const HeapItem best = heap_pop(&t->heap);
    Pair *p = find_pair(t, best.second);
    if (p && UINT64_MAX - (uint64_t)p->count == best.first) return p;
    if (p && p->count > 1) push_candidate(t, p); // it has become less since
  }
  return NULL;
}

// ---- Joining

// Joins the pair in a word, from left to right. In "aaa" that is the first two.
static void join_in_word(BpeTrainer *t, uint32_t word, int32_t left, int32_t right,
                         int32_t joined) {
  int32_t *s = t->symbols + t->counters[0].words.words[word].start;
  const size_t length = t->counters[0].words.words[word].length;
  size_t kept = 0;
  for (size_t i = 0; i < length; i++) {
    if (s[i] != left || i + 1 == length || s[i + 1] != right) {
      s[kept++] = s[i];
      continue;
    }
    if (kept > 0) {
      pair_comes(t, s[kept - 1], joined, word);
      pair_goes(t, s[kept - 1], left, word);
    }
    if (i + 2 < length) {
      pair_comes(t, joined, s[i + 2], word);
      pair_goes(t, right, s[i + 2], word);
    }
    s[kept++] = joined;
    i++;
  }
  t->counters[0].words.words[word].length = (uint32_t)kept;
}

static bool is_special(const BpeTrainer *t, Text token) {
  for (int i = 0; i < t->special_count; i++)
    if (span_is((Span){token.data, token.bytes}, t->special[i])) return true;
  return false;
}

// The new token's id, or -1 if it is a special token's text. Merges cannot collide: bytes that form
// a token are always segmented as that token.
static int32_t joined_token(BpeTrainer *t, int32_t left, int32_t right) {
  const Vocabulary *v = &t->tokens;
  const int32_t id = v->size;
  Text text = {0};
  Error never;
  text_append(&text, vocabulary_text(v, left), v->tokens[left].length);
  text_append(&text, vocabulary_text(v, right), v->tokens[right].length);
  const bool taken = is_special(t, text) ||
                     vocabulary_add(&t->tokens, text.data, text.bytes, true, id, &never) != 0;
  free(text.data);
  return taken ? -1 : id;
}

// Joins the most frequent pair to a new token; of equally frequent ones that with the smaller left
// id, then right id. False: no pair is left that comes twice.
static bool merge_best(BpeTrainer *t) {
  Pair *best;
  int32_t left, right, joined;
  drop_pairs(t);
  do { // a pair that would make a reserved token stays as it is, and is no candidate any more
    best = best_pair(t);
    if (!best) return false;
    left = (int32_t)(best->key >> 32);
    right = (int32_t)(uint32_t)best->key;
    joined = joined_token(t, left, right);
  } while (joined < 0);
  const size_t old_pairs = t->pair_count;
  uint32_t *places = best->places; // the pairs move when new ones come
  const uint32_t place_count = best->place_count;
  best->places = NULL;
  forget_places(best);
  for (uint32_t i = 0; i < place_count; i++) join_in_word(t, places[i], left, right, joined);
  free(places);
  push_pairs(t, old_pairs);
  merges_add(&t->merges, left, right, joined);
  return true;
}

// ---- Steps

// Every byte is a token, in the order of GPT-2's alphabet. ids: of the bytes.
static void add_bytes(BpeTrainer *t, int32_t ids[256], Error *err) {
  for (int renamed = 0; renamed < 2; renamed++)
    for (int i = 0; i < 256; i++) {
      const char byte = (char)i;
      if ((byte_level_character((unsigned char)byte) > 255) != renamed) continue;
      ids[i] = t->tokens.size;
      vocabulary_add(&t->tokens, &byte, 1, true, ids[i], err);
    }
}

// Ends the counting: at most INT32_MAX bytes of words.
static int begin_merging(BpeTrainer *t, Error *err) {
  WordTable *const words = bpe_trainer_words(t, err);
  int32_t ids[256];
  if (!words) return -1;
  add_bytes(t, ids, err);
  t->symbols = xmalloc(words->bytes_used * sizeof *t->symbols);
  for (size_t i = 0; i < words->bytes_used; i++)
    t->symbols[i] = ids[(unsigned char)words->bytes[i]];
  free(words->bytes);
  free(words->slots);
  words->bytes = NULL;
  words->slots = NULL;
  fill_slots(t, FIRST_SLOTS);
  for (size_t w = 0; w < words->count; w++) {
    const int32_t *s = t->symbols + words->words[w].start;
    for (size_t i = 1; i < words->words[w].length; i++) pair_comes(t, s[i - 1], s[i], (uint32_t)w);
  }
  push_pairs(t, 0);
  return 0;
}

static int64_t tokens_made(const BpeTrainer *t) {
  return t->tokens.count > 0 ? t->tokens.count + t->special_count : 0;
}

int bpe_trainer_step(BpeTrainer *t, int64_t tokens, Error *err) {
  if (t->tokens.count == 0 && begin_merging(t, err) != 0) return -1;
  const int64_t size = t->options.vocab_size, made = tokens_made(t);
  const int64_t until = size - made < tokens ? size : made + tokens;
  while (tokens_made(t) < until)
    if (!merge_best(t))
      return error_set(err, "the text is too little for %" PRId64 " tokens: it gives %" PRId64,
                       size, tokens_made(t));
  return tokens_made(t) < size;
}

BpeProgress bpe_trainer_progress(const BpeTrainer *t) {
  return (BpeProgress){.bytes = t->bytes,
                       .words = (int64_t)t->counters[0].words.count,
                       .tokens = tokens_made(t),
                       .vocab_size = t->options.vocab_size};
}

int64_t bpe_trainer_text_tokens(const BpeTrainer *t) {
  const WordTable *words = &t->counters[0].words;
  int64_t tokens = 0;
  for (size_t w = 0; w < words->count; w++)
    tokens += words->words[w].count * words->words[w].length;
  return tokens;
}

// ---- The files

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
  char *json = export_tokenizer(&t->tokens, &t->merges, t->options.pattern, t->special,
                                t->special_count),
       *config = export_tokenizer_config(BPE_BEGIN, BPE_END, t->options.chat_template);
  const int status = write_both(folder, (const char *const[2]){config, json}, err);
  free(json);
  free(config);
  return status;
}
