// Any bytes as a text, by tokenizers of several kinds. The first byte chooses one. Byte-level ones
// give the text back; all give the same ids with a fresh encoder as with one that is warm.
#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/tokenizer/tokenizer.h"

enum { KINDS = 7, LOSSLESS = 3 };

typedef struct Kind {
  Tokenizer *tokenizer;
  Encoder *warm;
} Kind;

static Kind *open_kinds(void) {
  static const char *const names[KINDS] = {BYTES_NAME,
                                           "tests/fixtures/tokenizers/llama3",
                                           "tests/fixtures/tokenizers/smollm",
                                           "tests/fixtures/tokenizers/gpt2",
                                           "tests/fixtures/tokenizers/qwen",
                                           "tests/fixtures/tokenizers/llama2",
                                           "tests/fixtures/tokenizers/mistral"};
  static Kind kinds[KINDS];
  for (int i = 0; i < KINDS && !kinds[i].tokenizer; i++) {
    Error err;
    kinds[i].tokenizer = tokenizer_open(names[i], &err);
    if (!kinds[i].tokenizer) {
      fprintf(stderr,
              "fuzz_encoder: %s; run it in the repository's root, whose fixtures it reads\n",
              err.text);
      _exit(1); // libFuzzer takes exit for a crash
    }
    kinds[i].warm = encoder_open(kinds[i].tokenizer);
  }
  return kinds;
}

static void check_text_back(const Tokenizer *t, const TokenIds *ids, const char *text,
                            size_t size) {
  Decoder *decoder = decoder_open(t);
  size_t at = 0;
  for (int64_t i = 0; i <= ids->count; i++) {
    const char *part;
    const size_t n =
        i < ids->count ? decoder_next(decoder, ids->ids[i], &part) : decoder_end(decoder, &part);
    assert(n <= size - at && memcmp(part, text + at, n) == 0);
    at += n;
  }
  assert(at == size);
  decoder_close(decoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (size == 0) return 0;
  const int number = bytes[0] % KINDS;
  const Kind *kind = &open_kinds()[number];
  const char *const text = (const char *)bytes + 1;
  size--;
  Error err;
  TokenIds warm = {0}, fresh = {0};
  assert(encoder_append(kind->warm, text, size, bytes[0] & 128, &warm, &err) == 0);
  Encoder *encoder = encoder_open(kind->tokenizer);
  assert(encoder_append(encoder, text, size, bytes[0] & 128, &fresh, &err) == 0);
  assert(warm.count == fresh.count);
  assert(warm.count == 0 ||
         memcmp(warm.ids, fresh.ids, (size_t)warm.count * sizeof *warm.ids) == 0);
  // Special tokens in the text are not shown, and some take white space with them.
  if (number < LOSSLESS && !memchr(text, '<', size) && !memchr(text, 'm', size))
    check_text_back(kind->tokenizer, &fresh, text, size);
  free(warm.ids);
  free(fresh.ids);
  encoder_close(encoder);
  return 0;
}
