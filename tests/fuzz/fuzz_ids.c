// Any bytes as the prompt of a model without a tokenizer: refused with a sentence, or ids, which
// read the same when they are written with one space between them.
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/run/commands.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  Error err = {""};
  TokenIds ids = {0}, again = {0};
  char *text = xmalloc(size + 1); // exactly as large, so that ASan sees a byte too far
  memcpy(text, bytes, size);
  text[size] = '\0';
  if (generate_parse_ids(text, &ids, &err) != 0) {
    assert(err.text[0] != '\0');
  } else {
    char *plain = xcalloc((size_t)ids.count + 1, 12);
    for (int64_t i = 0, at = 0; i < ids.count; i++) {
      assert(ids.ids[i] >= 0);
      at += sprintf(plain + at, "%d ", ids.ids[i]);
    }
    assert(generate_parse_ids(plain, &again, &err) == 0 && again.count == ids.count);
    assert(ids.count == 0 || memcmp(ids.ids, again.ids, (size_t)ids.count * sizeof *ids.ids) == 0);
    free(plain);
  }
  free(text);
  free(ids.ids);
  free(again.ids);
  return 0;
}
