// Any bytes: a token file is either refused with a sentence or can be read to its last token.
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <xxhash.h>

#include "base/memory.h"
#include "data/tokens.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  enum { VOCAB = 258 };
  Error err = {""};
  TokenFile file;
  fuzz_write("fuzzed.bin", bytes, size);
  if (tokens_open(&file, path_text("%s/fuzzed.bin", fuzz_folder()).text, &err) != 0) {
    assert(err.text[0] != '\0' && file.path == NULL && file.count == 0);
    return 0;
  }
  assert(TOKENS_HEADER_BYTES + file.count * file.token_bytes == (int64_t)size);
  int32_t *tokens = xmalloc((size_t)file.count * sizeof *tokens);
  assert(tokens_read(&file, 0, file.count, 0, tokens, &err) == 0);
  bool in_range = true;
  for (int64_t i = 0; i < file.count; i++) in_range &= tokens[i] >= 0 && tokens[i] < VOCAB;
  const size_t held = size - TOKENS_HEADER_BYTES;
  const bool whole =
      file.tokenizer == 0 || XXH3_64bits(bytes + TOKENS_HEADER_BYTES, held) == file.checksum;
  const int status = tokens_check(&file, &err);
  assert((status == 0) == (whole && file.documents.facts.largest < TOKENS_MOST_IDS));
  if (whole) assert((file.documents.facts.largest < VOCAB) == in_range);
  assert((tokens_read(&file, 0, file.count, VOCAB, tokens, &err) == 0) == in_range);
  if (file.count > 0) {
    int32_t last;
    assert(tokens_read(&file, file.count - 1, 1, 0, &last, &err) == 0);
    assert(last == tokens[file.count - 1]);
  }
  free(tokens);
  tokens_close(&file);
  return 0;
}
