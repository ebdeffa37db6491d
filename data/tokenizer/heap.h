// A binary heap of pairs of numbers: the least comes first.
#pragma once
#include "base/memory.h"

typedef struct HeapItem {
  uint64_t first, second;
} HeapItem;

// Starts from zeros; free(heap->items) at the end.
typedef struct Heap {
  HeapItem *items; // [count]
  size_t count, capacity;
} Heap;

static inline bool heap_less(HeapItem a, HeapItem b) {
  return a.first != b.first ? a.first < b.first : a.second < b.second;
}

static inline void heap_push(Heap *h, uint64_t first, uint64_t second) {
  const HeapItem item = {first, second};
  LIST_ROOM(h->items, h->count, h->capacity);
  size_t at = h->count++;
  for (; at > 0 && heap_less(item, h->items[(at - 1) / 2]); at = (at - 1) / 2)
    h->items[at] = h->items[(at - 1) / 2];
  h->items[at] = item;
}

// The heap is not empty.
static inline HeapItem heap_pop(Heap *h) {
  const HeapItem top = h->items[0], last = h->items[--h->count];
  size_t at = 0;
  for (size_t child; (child = 2 * at + 1) < h->count; at = child) {
    if (child + 1 < h->count && heap_less(h->items[child + 1], h->items[child])) child++;
    if (!heap_less(h->items[child], last)) break;
    h->items[at] = h->items[child];
  }
  h->items[at] = last;
  return top;
}
