// Pieces of one block of memory, each aligned to 256 bytes, which suits a GPU's vector loads and
// copy engine. Laid out twice: without a block to learn its size, then in it.
#pragma once
#include <stddef.h>

typedef struct Arena {
  char *block; // NULL: the pieces are only counted
  size_t used; // bytes so far, with what aligns the next piece
} Arena;

// The next piece, or NULL where there is no block. The block must be as large as the count said.
static inline void *arena_take(Arena *a, size_t bytes) {
  enum { ALIGNMENT = 256 };
  void *piece = a->block ? a->block + a->used : NULL;
  a->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return piece;
}
