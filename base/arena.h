// A block of memory given out piece by piece. Where there is no block yet the pieces are counted:
// the same calls say first how large it has to be, and then where each piece lies.
#pragma once
#include <stddef.h>

typedef struct Arena {
  char *block; // at a 256-byte boundary; NULL: only count
  size_t used;
} Arena;

// The next piece, at a 256-byte boundary; NULL where there is no block.
void *arena_take(Arena *a, size_t bytes);
