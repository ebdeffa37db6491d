#include "data/pack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"

// ---- The pieces

typedef struct Cutter {
  Packing *packing;
  const TokenFile *files;
  uint32_t file;
  int64_t T, count; // of the pieces so far
} Cutter;

static void cut_document(Cutter *c, int64_t first, int64_t end) {
  Packing *p = c->packing;
  const Documents *d = &c->files[c->file].documents;
  const int64_t before = c->count;
  for (int64_t at = first; at < end - 1; at += c->T) {
    const int64_t rows = min_i64(end - 1 - at, c->T);
    int64_t counted = d->mask ? 0 : rows;
    for (int64_t i = 1; d->mask && i <= rows; i++) counted += documents_counts(d, at + i);
    if (counted == 0) p->left_out += rows;
    if (counted == 0) continue;
    p->pieces[c->count++] = (WindowPiece){c->file, (uint32_t)at, (uint32_t)rows};
    p->rows += rows;
    p->counted += counted;
    p->longest = max_i64(p->longest, rows);
  }
  p->documents += c->count > before;
  p->cut += c->count > before && end - 1 - first > c->T;
}

static void cut_file(Cutter *c, bool by_file) {
  const Documents *d = &c->files[c->file].documents;
  if (by_file || d->count == 0) cut_document(c, 0, c->files[c->file].count);
  for (int64_t i = 0; i < d->count && !by_file; i++)
    cut_document(c, i > 0 ? d->ends[i - 1] : 0, d->ends[i]);
}

// ---- Windows by the room that they have left: a set of sizes with a list of windows for each

typedef struct Rooms {
  uint64_t *sizes, *words; // a bit a size; a bit a word of `sizes` that is not 0
  int64_t word_count;
  uint32_t *first; // [T] a window with so much room; UINT32_MAX: none
  uint32_t *next;  // of each window, in its list
} Rooms;

// The least size of a list, from `size` on; -1: all are empty.
static int64_t least_room(const Rooms *r, int64_t size) {
  const uint64_t rest = r->sizes[size / 64] >> size % 64;
  if (rest) return size + __builtin_ctzll(rest);
  for (int64_t word = size / 64 + 1; word < r->word_count;) {
    const uint64_t words = r->words[word / 64] >> word % 64;
    word += words ? __builtin_ctzll(words) : 64 - word % 64;
    if (words) return word * 64 + __builtin_ctzll(r->sizes[word]);
  }
  return -1;
}

static void add_room(Rooms *r, uint32_t window, int64_t size) {
  r->next[window] = r->first[size];
  r->first[size] = window;
  r->sizes[size / 64] |= (uint64_t)1 << size % 64;
  r->words[size / 4096] |= (uint64_t)1 << size / 64 % 64;
}

static uint32_t take_room(Rooms *r, int64_t size) {
  const uint32_t window = r->first[size];
  r->first[size] = r->next[window];
  if (r->first[size] != UINT32_MAX) return window;
  r->sizes[size / 64] &= ~((uint64_t)1 << size % 64);
  if (!r->sizes[size / 64]) r->words[size / 4096] &= ~((uint64_t)1 << size / 64 % 64);
  return window;
}

static Rooms open_rooms(int64_t T, int64_t pieces) {
  Rooms r = {.word_count = T / 64 + 1};
  r.sizes = xcalloc((size_t)r.word_count, sizeof *r.sizes);
  r.words = xcalloc((size_t)(T / 4096 + 1), sizeof *r.words);
  r.first = xmalloc((size_t)T * sizeof *r.first);
  memset(r.first, 0xff, (size_t)T * sizeof *r.first);
  r.next = xmalloc((size_t)pieces * sizeof *r.next + 1);
  return r;
}

static void close_rooms(Rooms *r) {
  free(r->sizes);
  free(r->words);
  free(r->first);
  free(r->next);
}

// ---- Packing

// [count]: the pieces by falling size, those of one size in their order. fewer: [T + 1], of each
// size as many as are of it or larger.
static uint32_t *by_size(const Packing *p, int64_t count, int64_t T, uint32_t *fewer) {
  uint32_t *order = xmalloc((size_t)count * sizeof *order + 1);
  for (int64_t i = 0; i < count; i++) fewer[p->pieces[i].rows - 1]++;
  for (int64_t size = T; size > 0; size--) fewer[size - 1] += fewer[size];
  for (int64_t i = 0; i < count; i++) order[fewer[p->pieces[i].rows]++] = (uint32_t)i;
  return order;
}

// window: [count], of each piece by falling size. ends: of each size, where its pieces end there.
static void choose_windows(Packing *p, const uint32_t *ends, int64_t count, int64_t T,
                           uint32_t *window) {
  Rooms rooms = open_rooms(T, count);
  for (int64_t i = 0, rows = T; i < count; i++) {
    while (i == ends[rows]) rows--;
    const int64_t room = rows < T ? least_room(&rooms, rows) : -1;
    const int64_t left = (room < 0 ? T : room) - rows;
    window[i] = room < 0 ? (uint32_t)p->windows++ : take_room(&rooms, room);
    if (left > 0) add_room(&rooms, window[i], left);
  }
  // What is left now is padding.
  for (int64_t size = T - 1; size > p->longest; size--)
    if (rooms.first[size] != UINT32_MAX) p->longest = size;
  for (int64_t size = 1; size < T; size++)
    for (uint32_t w = rooms.first[size]; w != UINT32_MAX; w = rooms.next[w]) p->padded++;
  close_rooms(&rooms);
}

static void group(Packing *p, const uint32_t *order, const uint32_t *window, int64_t count) {
  p->list = xmalloc((size_t)count * sizeof *p->list + 1);
  p->begin = xcalloc((size_t)p->windows + 2, sizeof *p->begin);
  for (int64_t i = 0; i < count; i++) p->begin[window[i] + 2]++;
  for (int64_t w = 0; w < p->windows; w++) {
    if (p->begin[w + 2] > p->most) p->most = p->begin[w + 2];
    p->begin[w + 2] += p->begin[w + 1];
  }
  for (int64_t i = 0; i < count; i++) p->list[p->begin[window[i] + 1]++] = order[i];
}

static void fill_windows(Packing *p, int64_t count, int64_t T) {
  uint32_t *ends = xcalloc((size_t)T + 1, sizeof *ends), *order = by_size(p, count, T, ends);
  uint32_t *window = xmalloc((size_t)count * sizeof *window + 1);
  choose_windows(p, ends, count, T, window);
  group(p, order, window, count);
  free(window);
  free(order);
  free(ends);
}

int pack(Packing *p, const TokenFile *files, int count, int64_t T, bool by_file, bool alone,
         Error *err) {
  int64_t most = 0;
  *p = (Packing){0};
  for (int f = 0; f < count; f++) most += files[f].count / T + files[f].documents.count + 1;
  if (most >= UINT32_MAX)
    return error_set(err,
                     "the files may have %" PRId64 " documents and pieces of documents, but "
                     "the most is %" PRIu32 ": use fewer files, or a longer window",
                     most, UINT32_MAX - 1);
  p->pieces = xmalloc((size_t)most * sizeof *p->pieces + 1);
  Cutter c = {.packing = p, .files = files, .T = T};
  for (; (int)c.file < count; c.file++) cut_file(&c, by_file);
  p->pieces = xrealloc(p->pieces, (size_t)c.count * sizeof *p->pieces + 1);
  p->count = p->windows = c.count;
  if (alone) return 0;
  p->windows = 0;
  fill_windows(p, c.count, T);
  return 0;
}

void packing_free(Packing *p) {
  free(p->pieces);
  free(p->list);
  free(p->begin);
  *p = (Packing){0};
}
