#include "data/tokenizer/byte_level.h"

#include <stdbool.h>

// What Latin-1 prints: not the controls, the two spaces and the soft hyphen.
static bool stands_for_itself(uint32_t c) {
  return (c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xff && c != 0xad);
}

// The others, in order: 0 to 0x20 take U+0100 to U+0120, 0x7f to 0xa0 the next 34, 0xad the last.
uint32_t byte_level_character(unsigned char byte) {
  if (stands_for_itself(byte)) return byte;
  return 0x100 + (byte <= ' ' ? byte : byte == 0xad ? 67 : byte - 0x7fu + 33);
}

static int byte_of(uint32_t c) {
  if (stands_for_itself(c)) return (int)c;
  if (c < 0x100 || c > 0x100 + 67) return -1;
  const int k = (int)c - 0x100;
  return k <= ' ' ? k : k == 67 ? 0xad : k - 33 + 0x7f;
}

ptrdiff_t byte_level_decode(const char *text, size_t bytes, char *out) {
  ptrdiff_t count = 0;
  for (size_t i = 0; i < bytes; i++) {
    uint32_t c = (unsigned char)text[i];
    if (c >= 0x80) { // the alphabet's characters take two bytes at most
      if (c < 0xc2 || c >= 0xe0 || ++i == bytes) return -1;
      c = (c & 0x1f) << 6 | ((unsigned char)text[i] & 0x3f);
    }
    const int byte = byte_of(c);
    if (byte < 0) return -1;
    out[count++] = (char)byte;
  }
  return count;
}

size_t byte_level_encode(const char *text, size_t bytes, char *out) {
  size_t count = 0;
  for (size_t i = 0; i < bytes; i++) {
    const uint32_t c = byte_level_character((unsigned char)text[i]);
    if (c >= 0x80) out[count++] = (char)(0xc0 | c >> 6);
    out[count++] = (char)(c < 0x80 ? c : 0x80 | (c & 0x3f));
  }
  return count;
}
