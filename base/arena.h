// Memory handed out piece by piece from one block.
#pragma once
#include <stddef.h>

// With block NULL an arena only counts: lay out once to know the size, allocate, lay out again.
typedef struct Arena {
  char *block;
  size_t used;
} Arena;

// The next `bytes`, at a multiple of 256 bytes from the block's start; NULL where there is no
// block.
void *arena_take(Arena *arena, size_t bytes);
