#include "data/source.h"

#include <assert.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/rng.h"

// A Feistel network is a bijection for any round function (Luby & Rackoff, SIAM J. Comput. 1988).
// Its domain is the power of 4 at or above n; positions that land outside [0, n) are mapped again
// until they land inside (cycle walking: Black & Rogaway, CT-RSA 2002), fewer than 4 times on
// average.
uint64_t permute(uint64_t i, uint64_t n, uint64_t key) {
  assert(i < n);
  enum { ROUNDS = 8 };
  int half = 1; // bits
  while (half < 32 && (n - 1) >> (2 * half)) half++;
  const uint64_t mask = ((uint64_t)1 << half) - 1;
  do {
    uint64_t left = i >> half, right = i & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
      const uint64_t mixed = left ^ (rng_u64(key + round, right) & mask);
      left = right;
      right = mixed;
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}

static int read_fingerprint(Source *s, Error *err) {
  for (const TokenFile *f = s->files; f < s->files + s->file_count; f++) {
    uint64_t content;
    if (tokens_fingerprint(f, &content, err) != 0) return -1;
    s->fingerprint = rng_u64(s->fingerprint, content);
    // Joined windows without a mask are those of files whose ends are not known.
    if (f->documents.path && (s->kind != WINDOWS_JOINED || f->documents.mask))
      s->fingerprint = rng_u64(s->fingerprint, f->documents.content);
  }
  return 0;
}

static void count_joined(Source *s) {
  s->first_window = xcalloc((size_t)s->file_count + 1, sizeof *s->first_window);
  for (int f = 0; f < s->file_count; f++) {
    // One window fewer than fit leaves T tokens or more for the offset that shuffling adds.
    const int64_t count = s->files[f].count, fit = count > 0 ? (count - 1) / s->T : 0;
    s->windows += s->shuffle && fit >= 2 ? fit - 1 : fit;
    s->first_window[f + 1] = s->windows;
  }
  s->targets = s->counted = s->windows * s->T;
}

int source_open(Source *s, bool by_file, Error *err) {
  for (int f = 0; f < s->file_count; f++) s->tokens += s->files[f].count;
  if (read_fingerprint(s, err) != 0) return -1;
  if (s->kind == WINDOWS_JOINED) {
    count_joined(s);
    return 0;
  }
  const bool alone = s->kind == WINDOWS_ALONE;
  if (pack(&s->packing, s->files, s->file_count, s->T, by_file, alone, err) != 0) return -1;
  s->windows = s->packing.windows;
  s->targets = s->packing.rows + s->packing.left_out;
  s->counted = s->packing.counted;
  return 0;
}

void source_close(Source *s) {
  packing_free(&s->packing);
  free(s->first_window);
  free(s->name);
  *s = (Source){0};
}

// ---- Windows

// The file f with first_window[f] <= window < first_window[f + 1], by bisection.
static int file_of_window(const Source *s, int64_t window) {
  int low = 0, high = s->file_count;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (s->first_window[middle] <= window)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// How far the windows of file f are shifted in this epoch, in [0, T) as far as the file allows.
static int64_t file_offset(const Source *s, int f, uint64_t epoch) {
  if (!s->shuffle) return 0;
  const int64_t windows = s->first_window[f + 1] - s->first_window[f];
  const int64_t slack = s->files[f].count - 1 - windows * s->T;
  const int64_t most = slack < s->T - 1 ? slack : s->T - 1;
  const uint64_t key = rng_key(s->seed, "data.offset");
  const uint64_t draw = rng_u64(rng_u64(key, epoch), (uint64_t)f);
  return (int64_t)(draw % ((uint64_t)most + 1));
}

static WindowPiece joined_piece(const Source *s, int64_t window, uint64_t epoch) {
  const int f = file_of_window(s, window);
  const int64_t first = file_offset(s, f, epoch) + (window - s->first_window[f]) * s->T;
  return (WindowPiece){(uint32_t)f, (uint32_t)first, (uint32_t)s->T};
}

WindowPiece source_piece(const Source *s, uint64_t position, int64_t i) {
  const uint64_t windows = (uint64_t)s->windows, epoch = position / windows;
  const Packing *p = &s->packing;
  const uint32_t *begin = p->begin;
  uint64_t window = position % windows;
  if (s->shuffle) window = permute(window, windows, rng_u64(rng_key(s->seed, "data.order"), epoch));
  if (i >= (s->kind == WINDOWS_PACKED ? begin[window + 1] - begin[window] : 1))
    return (WindowPiece){0};
  switch (s->kind) {
  case WINDOWS_JOINED:
    return joined_piece(s, (int64_t)window, epoch);
  case WINDOWS_ALONE:
    return p->pieces[window];
  default:
    return p->pieces[p->list[begin[window] + (uint64_t)i]];
  }
}
