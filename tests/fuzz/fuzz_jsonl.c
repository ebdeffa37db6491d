#define _GNU_SOURCE // memmem
// Any bytes as a line of .jsonl: it is refused with a sentence, or the field is what cJSON reads.
// The two differ where this file says so.
#include <assert.h>
#include <cjson/cJSON.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "data/prepare/corpus.h"

// cJSON takes numbers as "01" and "1.", control characters in strings and half surrogate pairs in
// its own way, and ends a string at a NUL. What json_parse refuses may be another key's repetition.
static void compare(const char *line, size_t size, const char *text, size_t text_bytes) {
  Error err;
  cJSON *tree = json_parse("line", line, size, &err);
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(tree, "text");
  if (tree) {
    assert(cJSON_IsString(item));
    assert(strlen(item->valuestring) == text_bytes);
    assert(memcmp(item->valuestring, text, text_bytes) == 0);
  }
  cJSON_Delete(tree);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  Error err = {""};
  char *line = xmalloc(size), *copy = xmalloc(size + 1);
  Span text;
  memcpy(line, bytes, size);
  memcpy(copy, bytes, size);
  copy[size] = '\0';
  if (jsonl_text(line, size, "a.b", &text, &err) != 0) assert(err.text[0]);
  memcpy(line, bytes, size);
  err.text[0] = '\0';
  if (jsonl_text(line, size, "text", &text, &err) != 0) {
    assert(err.text[0]);
  } else {
    assert(text.text >= line && text.bytes <= size && text.text + text.bytes <= line + size);
    const bool halves = memmem(text.text, text.bytes, "\xef\xbf\xbd", 3) != NULL;
    if (!halves) compare(copy, size, text.text, text.bytes);
  }
  free(copy);
  free(line);
  return 0;
}
