// Any bytes as a tokenizer.json: it is refused with a sentence, or it encodes and decodes.
#undef NDEBUG
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  static const char text[] =
      "Hello  <s> w\xc3\xb6rld's 123 ab aab\n\n\xf0\x9f\x98\x80 \xff\xe2\x96\x81 e\xcc\x81";
  Error err = {""};
  Tokenizer *t = tokenizer_parse("fuzzed", (const char *)bytes, size, &err);
  if (!t) {
    assert(err.text[0] != '\0');
    return 0;
  }
  const TokenizerFacts *facts = tokenizer_facts(t);
  assert(facts->vocab_size > 0 && facts->fingerprint != 0);
  assert(facts->bos < facts->vocab_size && facts->eos < facts->vocab_size);
  Encoder *encoder = encoder_open(t);
  Decoder *decoder = decoder_open(t);
  TokenIds ids = {0};
  if (encoder_append(encoder, text, sizeof text - 1, false, &ids, &err) == 0) {
    const char *part;
    for (int64_t i = 0; i < ids.count; i++) {
      assert(ids.ids[i] >= 0 && ids.ids[i] < facts->vocab_size);
      decoder_next(decoder, ids.ids[i], &part);
    }
    decoder_end(decoder, &part);
  } else {
    assert(err.text[0] != '\0' && ids.count == 0);
  }
  free(ids.ids);
  encoder_close(encoder);
  decoder_close(decoder);
  tokenizer_close(t);
  return 0;
}
