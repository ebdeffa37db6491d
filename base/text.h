// Text: UTF-8 as RFC 3629 defines it, text that grows, and sets of bytes.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "base/memory.h"

#define UTF8_MARK "\xef\xbb\xbf" // the byte order mark, which some programs put in front of UTF-8

// Bytes of the character at text[0], of which bytes > 0 are there; 0 if it is no character:
// overlong forms, surrogates and codes beyond U+10FFFF are none.
static inline size_t utf8_length(const char *text, size_t bytes) {
  const unsigned char *p = (const unsigned char *)text, c = p[0];
  const size_t length = c < 0x80   ? 1
                        : c < 0xc2 ? 0
                        : c < 0xe0 ? 2
                        : c < 0xf0 ? 3
                        : c < 0xf5 ? 4
                                   : 0;
  if (length < 2 || length > bytes) return length > bytes ? 0 : length;
  const unsigned char least = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
  if (p[1] < least || p[1] > most) return 0;
  for (size_t i = 2; i < length; i++)
    if ((p[i] & 0xc0) != 0x80) return 0;
  return length;
}

// Bytes at the end of text[bytes] that begin a character and are not all of it.
static inline size_t utf8_begun(const char *text, size_t bytes) {
  for (size_t n = 1; n <= 3 && n <= bytes; n++) {
    const char *const at = text + bytes - n;
    if (((unsigned char)*at & 0xc0) == 0x80) continue;
    // The least or the greatest continuation would end it.
    char whole[2][8] = {"\0\x80\x80\x80", "\0\xbf\xbf\xbf"};
    for (int i = 0; i < 2; i++) {
      memcpy(whole[i], at, n);
      if (utf8_length(whole[i], 4) > n) return n;
    }
    return 0;
  }
  return 0;
}

// Bytes of text[bytes] in front of the first one that begins no character.
static inline size_t utf8_valid(const char *text, size_t bytes) {
  size_t i = 0;
  while (i < bytes) {
    uint64_t eight;
    while (bytes - i >= sizeof eight) { // ASCII, eight at a time
      memcpy(&eight, text + i, sizeof eight);
      if (eight & 0x8080808080808080) break;
      i += sizeof eight;
    }
    const size_t length = i < bytes ? utf8_length(text + i, bytes - i) : 1;
    if (length == 0 || i == bytes) break;
    i += length;
  }
  return i;
}

// Text in memory of somebody else.
typedef struct Span {
  const char *text; // [bytes], not NUL-terminated; NULL: there is none
  size_t bytes;
} Span;

static inline Span span_of(const char *text) {
  return (Span){text, strlen(text)};
}

static inline bool span_is(Span span, const char *text) {
  return span.text && span.bytes == strlen(text) && memcmp(span.text, text, span.bytes) == 0;
}

// Text that grows. Starts from zeros; free(text->data) at the end.
typedef struct Text {
  char *data; // [bytes], not NUL-terminated
  size_t bytes, capacity;
} Text;

// Room for `more` bytes behind the text.
static inline char *text_room(Text *text, size_t more) {
  if (!text->data || text->capacity - text->bytes < more) {
    text->capacity = 2 * (text->bytes + more) + 16;
    text->data = xrealloc(text->data, text->capacity);
  }
  return text->data + text->bytes;
}

static inline void text_append(Text *text, const char *data, size_t bytes) {
  if (bytes == 0) return;
  memcpy(text_room(text, bytes), data, bytes);
  text->bytes += bytes;
}

// A set of bytes. Starts from zeros: empty.
typedef struct ByteSet {
  uint64_t bits[4];
} ByteSet;

static inline void byte_set_add(ByteSet *set, char byte) {
  set->bits[(unsigned char)byte / 64] |= (uint64_t)1 << (unsigned char)byte % 64;
}

static inline bool byte_set_has(const ByteSet *set, char byte) {
  return set->bits[(unsigned char)byte / 64] >> (unsigned char)byte % 64 & 1;
}
