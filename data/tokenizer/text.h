// Text that grows. Start from zeros; free(text->data) at the end.
#pragma once
#include <stddef.h>
#include <string.h>
#include "base/memory.h"

typedef struct Text {
  char *data; // [bytes], not NUL-terminated
  size_t bytes, capacity;
} Text;

// Room for `more` bytes behind what is there.
static inline char *text_room(Text *text, size_t more) {
  if (!text->data || text->capacity - text->bytes < more) {
    text->capacity = 2 * (text->bytes + more) + 16;
    text->data = xrealloc(text->data, text->capacity);
  }
  return text->data + text->bytes;
}

static inline void text_append(Text *text, const char *data, size_t bytes) {
  if (bytes == 0) return;
  memcpy(text_room(text, bytes), data, bytes);
  text->bytes += bytes;
}
