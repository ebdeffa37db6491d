// Regular expressions as tokenizer.json has them: Oniguruma's syntax, matched by PCRE2.
//
// A Regex does not change once it is open, and threads may share it. A match writes into a
// RegexScan, one for each thread.
#pragma once
#include <stddef.h>
#include "base/error.h"

// How GPT-2 and Llama 3 cut text into pre-tokens.
#define GPT2_PATTERN                                                                               \
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3_PATTERN                                                                             \
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"                        \
  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

typedef struct Regex Regex;
typedef struct RegexScan RegexScan;

// NULL, and a sentence, if the pattern does not compile or means something else in PCRE2.
Regex *regex_open(const char *pattern, Error *err);
void regex_close(Regex *regex); // NULL is fine

RegexScan *regex_scan_open(const Regex *regex);
void regex_scan_close(RegexScan *scan); // NULL is fine

// The next match in text[bytes] at or after `at`: 1 and its bounds, 0 if there is none, -1 and a
// sentence where PCRE2 meets its limits: a pattern that backtracks for ever ends so. The text must
// be UTF-8 (utf8_valid in base/text.h), and `at` the start of a character or the end.
int regex_next(RegexScan *scan, const char *text, size_t bytes, size_t at, size_t *begin,
               size_t *end, Error *err);
