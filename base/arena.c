#include "base/arena.h"

void *arena_take(Arena *a, size_t bytes) {
  char *piece = a->block ? a->block + a->used : NULL;
  a->used += (bytes + 255) / 256 * 256;
  return piece;
}
