// LLAMA3_PATTERN by hand where only ASCII decides, which is most of what there is: several times as
// fast as the regular expression. tests/unit/test_regex.c holds the two against each other.
#pragma once
#include <stdbool.h>
#include <stddef.h>

static inline bool is_letter(char c) {
  return (unsigned char)((c | 0x20) - 'a') < 26;
}

static inline bool is_digit(char c) {
  return (unsigned char)(c - '0') < 10;
}

static inline bool is_line_end(char c) {
  return c == '\n' || c == '\r';
}

static inline bool is_white(char c) {
  return c == ' ' || (unsigned char)(c - '\t') < 5;
}

// Part of a character beyond ASCII, which may be any of these.
static inline bool is_wide(char c) {
  return (unsigned char)c >= 0x80;
}

static inline bool is_other(char c) {
  return !is_letter(c) && !is_digit(c) && !is_white(c) && !is_wide(c);
}

// Bytes of the match at text[0] of bytes > 0, or 0 where the regular expression has to decide.
static inline size_t llama3_match(const char *text, size_t bytes) {
  const char first = text[0];
  if (is_wide(first) || first == '\'') return 0;
  // [^\r\n\p{L}\p{N}]?\p{L}+
  size_t i = !is_letter(first) && !is_digit(first) && !is_line_end(first);
  if (i < bytes && is_letter(text[i])) {
    while (i < bytes && is_letter(text[i])) i++;
    return i < bytes && is_wide(text[i]) ? 0 : i;
  }
  if (i < bytes && is_wide(text[i])) return 0;
  if (is_digit(first)) { // \p{N}{1,3}
    for (i = 1; i < 3 && i < bytes && is_digit(text[i]);) i++;
    return i < 3 && i < bytes && is_wide(text[i]) ? 0 : i;
  }
  i = first == ' '; // " ?[^\s\p{L}\p{N}]+[\r\n]*"
  if (i < bytes && is_other(text[i])) {
    while (i < bytes && is_other(text[i])) i++;
    if (i < bytes && is_wide(text[i])) return 0;
    while (i < bytes && is_line_end(text[i])) i++;
    return i;
  }
  size_t lines = 0; // \s*[\r\n]+|\s+(?!\S)|\s+
  for (i = 0; i < bytes && is_white(text[i]); i++)
    if (is_line_end(text[i])) lines = i + 1;
  if (i < bytes && is_wide(text[i])) return 0;
  return lines ? lines : i == bytes || i == 1 ? i : i - 1;
}
