// Drives the tokenizer for scripts/check_tokenizers.py: tokenize TOKENIZER
// Standard input: texts, each a uint32 of its length and its bytes; standard output, for each: the
// number of ids (uint32), the ids (int32), the length of what they decode to (uint32), and that.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/tokenizer/tokenizer.h"

static void must(bool fine, const Error *err) {
  if (fine) return;
  fprintf(stderr, "tokenize: %s\n", err->text);
  exit(1);
}

static void put(const void *data, size_t size, size_t count) {
  if (fwrite(data, size, count, stdout) != count) exit(1);
}

static void answer_text(Encoder *encoder, Decoder *decoder, const char *text, size_t bytes) {
  Error err;
  TokenIds ids = {0};
  must(encoder_append(encoder, text, bytes, false, &ids, &err) == 0, &err);
  const uint32_t count = (uint32_t)ids.count;
  put(&count, sizeof count, 1);
  put(ids.ids, sizeof *ids.ids, count);
  char *decoded = NULL;
  uint32_t length = 0;
  for (int64_t i = 0; i <= ids.count; i++) {
    const char *part;
    const size_t n =
        i < ids.count ? decoder_next(decoder, ids.ids[i], &part) : decoder_end(decoder, &part);
    decoded = xrealloc(decoded, length + n + 1);
    memcpy(decoded + length, part, n);
    length += (uint32_t)n;
  }
  put(&length, sizeof length, 1);
  put(decoded, 1, length);
  free(decoded);
  free(ids.ids);
}

static void answer_texts(const Tokenizer *tokenizer) {
  Encoder *encoder = encoder_open(tokenizer);
  Decoder *decoder = decoder_open(tokenizer);
  uint32_t bytes;
  while (fread(&bytes, sizeof bytes, 1, stdin) == 1) {
    char *text = xmalloc(bytes);
    if (fread(text, 1, bytes, stdin) != bytes) exit(1);
    answer_text(encoder, decoder, text, bytes);
    free(text);
  }
  encoder_close(encoder);
  decoder_close(decoder);
}

int main(int count, char **words) {
  if (count != 2) return 2;
  Error err;
  Tokenizer *tokenizer = tokenizer_open(words[1], &err);
  must(tokenizer != NULL, &err);
  answer_texts(tokenizer);
  tokenizer_close(tokenizer);
  return 0;
}
