// Any bytes: a file of documents' ends is either refused with a sentence, or all of its ends ascend
// up to the last token and its mask can be read. The first byte says how many tokens there are.
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"
#include "data/documents.h"
#include "tests/fuzz/folder.h"

// With the right checksum more of the reader is reached.
static void seal(uint8_t *file, size_t size) {
  XXH3_state_t *hash = XXH3_createState();
  XXH3_64bits_reset(hash);
  XXH3_64bits_update(hash, file, 40);
  XXH3_64bits_update(hash, file + DOCUMENTS_HEADER_BYTES, size - DOCUMENTS_HEADER_BYTES);
  const uint64_t checksum = XXH3_64bits_digest(hash);
  memcpy(file + 40, &checksum, sizeof checksum);
  XXH3_freeState(hash);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (size == 0) return 0;
  const int64_t tokens = bytes[0] & 127;
  uint8_t *file = xmalloc(size);
  memcpy(file, bytes + 1, --size);
  if ((bytes[0] & 128) && size >= DOCUMENTS_HEADER_BYTES) seal(file, size);
  fuzz_write("fuzzed.docs", file, size);
  free(file);
  Error err = {""};
  Documents d;
  if (documents_open(&d, path_text("%s/fuzzed.bin", fuzz_folder()).text, tokens, 0, &err) != 0) {
    assert(err.text[0] != '\0' && d.path == NULL && d.count == 0);
    return 0;
  }
  uint32_t last = 0;
  int64_t counted = 0;
  assert(d.count <= tokens);
  for (int64_t i = 0; i < d.count; i++) {
    assert(d.ends[i] > last);
    last = d.ends[i];
  }
  assert(last == tokens);
  for (int64_t i = 0; i < tokens; i++) counted += documents_counts(&d, i);
  assert(d.mask || counted == tokens);
  documents_close(&d);
  return 0;
}
