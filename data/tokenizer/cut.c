#include "data/tokenizer/cut.h"

// LOOK: bytes behind a place that decide whether it is safe.
enum { PIECE_BYTES = 1 << 20, MOST_BYTES = 16 << 20, LOOK = 4 };

size_t cut_character(const char *text, size_t at) {
  size_t start = at;
  while (start > 0 && at - start < 3 && ((unsigned char)text[start] & 0xc0) == 0x80) start--;
  return start;
}

// Is the character at text[0] white space, or one of the blocks of characters that hold some?
static bool may_be_white(const char *text, size_t bytes) {
  const unsigned char *c = (const unsigned char *)text;
  if (c[0] < 0xc2) return c[0] <= ' ' || c[0] == 0x7f;
  if (bytes < LOOK) return c[0] <= 0xe3;
  return (c[0] == 0xc2 && (c[1] == 0x85 || c[1] == 0xa0)) ||
         (c[0] == 0xe1 && (c[1] == 0x9a || c[1] == 0xa0)) ||
         (c[0] == 0xe2 && (c[1] == 0x80 || c[1] == 0x81)) ||
         (c[0] == 0xe3 && c[1] == 0x80 && c[2] == 0x80);
}

// Behind a newline with no white space on either side: there every pre-tokenizer that we know of
// begins a new word, and no normal form reaches across.
static bool is_safe(const ByteSet *joined, const char *text, size_t at, size_t known) {
  if (at < 2 || text[at - 1] != '\n' || may_be_white(text + at, known - at) ||
      byte_set_has(joined, text[at]))
    return false;
  const size_t left = cut_character(text, at - 2);
  return !may_be_white(text + left, known - left);
}

size_t cut_piece(const ByteSet *joined, const char *text, size_t known, bool complete,
                 size_t *searched) {
  if (complete && known <= PIECE_BYTES) return known;
  if (known < PIECE_BYTES + LOOK && !complete) return 0;
  const size_t end = complete ? known : known - LOOK;
  for (size_t at = PIECE_BYTES; *searched == 0 && at > 0; at--)
    if (is_safe(joined, text, at, known)) return at;
  if (*searched < PIECE_BYTES) *searched = PIECE_BYTES;
  while (*searched < end && *searched < MOST_BYTES) {
    const char *newline = memchr(text + *searched, '\n', end - *searched);
    *searched = newline ? (size_t)(newline - text) + 1 : end;
    if (*searched > MOST_BYTES || *searched == end) break;
    if (newline && is_safe(joined, text, *searched, known)) return *searched;
  }
  if (known >= MOST_BYTES + LOOK) return cut_character(text, MOST_BYTES);
  return complete ? known : 0;
}
