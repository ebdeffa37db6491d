#include "data/tokenizer.h"

void bytes_encode(const char *text, size_t bytes, int32_t *tokens) {
  for (size_t i = 0; i < bytes; i++) tokens[i] = (unsigned char)text[i];
}
