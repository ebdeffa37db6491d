#include "base/arena.h"

enum { ALIGNMENT = 256 }; // what a GPU's vector loads and copy engine like

void *arena_take(Arena *arena, size_t bytes) {
  void *piece = arena->block ? arena->block + arena->used : NULL;
  arena->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return piece;
}
