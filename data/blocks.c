#include "data/blocks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"

// ---- Making them

void block_sums_begin(BlockSums *s, size_t block) {
  assert(block > 0 && block <= BLOCK_MOST);
  *s = (BlockSums){.block = block, .part = checksum_state(), .hash = checksum_state()};
}

void block_sums_head(BlockSums *s, const void *bytes, size_t count) {
  XXH3_64bits_update(s->hash, bytes, count);
}

static void end_block(BlockSums *s) {
  LIST_ROOM(s->sums, s->count, s->capacity);
  s->sums[s->count++] = XXH3_64bits_digest(s->part);
  s->filled = 0;
  XXH3_64bits_reset(s->part);
}

void block_sums_add(BlockSums *s, const void *bytes, size_t count) {
  const unsigned char *at = bytes;
  XXH3_64bits_update(s->hash, bytes, count);
  for (size_t n; count > 0; at += n, count -= n) {
    n = s->block - s->filled < count ? s->block - s->filled : count;
    XXH3_64bits_update(s->part, at, n);
    s->filled += n;
    if (s->filled == s->block) end_block(s);
  }
}

static void free_states(BlockSums *s) {
  XXH3_freeState(s->part);
  XXH3_freeState(s->hash);
  s->part = s->hash = NULL;
}

void block_sums_end(BlockSums *s) {
  if (s->filled > 0) end_block(s);
  s->whole = XXH3_64bits_digest(s->hash);
  free_states(s);
}

void block_sums_free(BlockSums *s) {
  free_states(s);
  free(s->sums);
  *s = (BlockSums){0};
}

// ---- Reading

static int read_at(const Blocks *b, size_t at, size_t count, void *to, Error *err) {
  if (b->fd >= 0) return file_read_at(b->fd, b->path, b->base + at, to, count, err);
  if (count > 0) memcpy(to, b->memory + at, count);
  return 0;
}

int blocks_read(const Blocks *b, size_t first, size_t count, void *to, Error *err) {
  unsigned char copy[BLOCK_MOST], *out = to;
  assert(first <= b->bytes && count <= b->bytes - first);
  if (!b->sums) return read_at(b, first, count, to, err);
  for (size_t n; count > 0; first += n, out += n, count -= n) {
    const size_t i = first / b->block, begin = i * b->block, skip = first - begin;
    const size_t bytes = b->bytes - begin < b->block ? b->bytes - begin : b->block;
    n = bytes - skip < count ? bytes - skip : count;
    if (read_at(b, begin, bytes, copy, err) != 0) return -1;
    if (XXH3_64bits(copy, bytes) != b->sums[i])
      return error_set(err,
                       "'%s' was changed while it was in use, or is damaged: bytes %zu to %zu do "
                       "not match their checksum; restore the file, or make it again",
                       b->path, b->base + begin, b->base + begin + bytes);
    memcpy(out, copy + skip, n);
  }
  return 0;
}
