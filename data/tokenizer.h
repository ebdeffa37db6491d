// The built-in byte tokenizer: ids 0-255 are bytes, then begin and end of document.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { TOKEN_BEGIN = 256, TOKEN_END = 257, BYTE_VOCAB = 258 };

// text[bytes] -> tokens[bytes]; no begin or end is added.
static inline void bytes_encode(const char *text, size_t bytes, int32_t *tokens) {
  for (size_t i = 0; i < bytes; i++) tokens[i] = (unsigned char)text[i];
}
