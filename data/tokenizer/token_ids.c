#include "base/memory.h"
#include "data/tokenizer/tokenizer.h"

void token_ids_push(TokenIds *list, int32_t id) {
  if (list->count == list->capacity) {
    list->capacity = list->capacity ? 2 * list->capacity : 1024;
    list->ids = xrealloc(list->ids, (size_t)list->capacity * sizeof *list->ids);
  }
  list->ids[list->count++] = id;
}
