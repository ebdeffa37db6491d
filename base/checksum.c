#include "base/checksum.h"

#include <xxhash.h>

#include "base/memory.h"

void *checksum_state(void) {
  XXH3_state_t *hash = XXH3_createState();
  if (!hash || XXH3_64bits_reset(hash) != XXH_OK)
    out_of_memory("the system refused a checksum's state");
  return hash;
}

void checksum_begin(Checksum *c) {
  *c = (Checksum){.piece = checksum_state(), .whole = checksum_state()};
}

static void end_piece(Checksum *c) {
  const uint64_t hash = XXH3_64bits_digest(c->piece);
  XXH3_64bits_update(c->whole, &hash, sizeof hash);
  XXH3_64bits_reset(c->piece);
  c->filled = 0;
}

void checksum_add(Checksum *c, const void *data, size_t bytes) {
  for (const unsigned char *at = data; bytes > 0;) {
    const size_t room = CHECKSUM_PIECE - c->filled, n = bytes < room ? bytes : room;
    XXH3_64bits_update(c->piece, at, n);
    at += n;
    bytes -= n;
    c->filled += n;
    if (c->filled == CHECKSUM_PIECE) end_piece(c);
  }
}

uint64_t checksum_end(Checksum *c) {
  if (c->filled > 0) end_piece(c);
  const uint64_t hash = XXH3_64bits_digest(c->whole);
  checksum_abandon(c);
  return hash;
}

void checksum_abandon(Checksum *c) {
  XXH3_freeState(c->piece);
  XXH3_freeState(c->whole);
  *c = (Checksum){0};
}

uint64_t checksum_piece(const void *data, size_t bytes,
                        void (*seen)(void *context, const void *portion, size_t bytes),
                        void *context) {
  enum { PORTION = 128 << 10 };
  XXH3_state_t *hash = checksum_state();
  for (const unsigned char *at = data, *end = at + bytes; at < end;) {
    const size_t left = (size_t)(end - at), n = left < PORTION ? left : PORTION;
    XXH3_64bits_update(hash, at, n);
    if (seen) seen(context, at, n);
    at += n;
  }
  const uint64_t checksum = XXH3_64bits_digest(hash);
  XXH3_freeState(hash);
  return checksum;
}

uint64_t checksum_of_pieces(const uint64_t *checksums, size_t pieces) {
  return XXH3_64bits(checksums, pieces * sizeof *checksums);
}
