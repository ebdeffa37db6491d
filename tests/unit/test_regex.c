// Regular expressions: Oniguruma's meaning, and the two ways by which Llama 3's pattern is matched.
#include <utf8proc.h>

#include "base/text.h"
#include "data/tokenizer/regex.h"
#include "tests/support/test.h"

static void close_it(void *regex) {
  regex_close(regex);
}
static void end_scan(void *scan) {
  regex_scan_close(scan);
}

static Regex *open_it(const char *pattern) {
  Error err;
  return hold(must_make(regex_open(pattern, &err), &err), close_it);
}
static RegexScan *scan_of(const Regex *regex) {
  return hold(regex_scan_open(regex), end_scan);
}

// The matches in a text are these; NULL ends them.
static void matches(const char *pattern, const char *text, const char *const *expected) {
  RegexScan *scan = scan_of(open_it(pattern));
  size_t at = 0, begin, end;
  Error err;
  while (regex_next(scan, text, strlen(text), at, &begin, &end, &err) == 1) {
    if (!*expected) fail_msg("%s matches '%.*s', too", pattern, (int)(end - begin), text + begin);
    assert_int_equal(end - begin, strlen(*expected));
    assert_memory_equal(text + begin, *expected, end - begin);
    expected++;
    at = end;
  }
  assert_null(*expected);
}

TEST(it_means_what_oniguruma_means) {
  matches("\\s+", "a \u180e\u2003b\xc2\x85",
          (const char *const[]){" ", "\u2003", "\xc2\x85", NULL});
  matches("\\w+", "a\u0301_\u203f\u2460-b", (const char *const[]){"a\u0301_\u203f", "b", NULL});
  matches("^.", "ab\ncd", (const char *const[]){"a", "c", NULL});
  matches(".$", "ab\ncd", (const char *const[]){"b", "d", NULL});
  matches("\\u00e9|[\\u0061-b]", "x\u00e9b", (const char *const[]){"\u00e9", "b", NULL});
  matches("(?i:'s)", "'S's'\u017f", (const char *const[]){"'S", "'s", "'\u017f", NULL});
  matches("\\d", "1\u0663\u00b2", (const char *const[]){"1", "\u0663", NULL});
}

// As far as this PCRE2 knows the property, of which older ones need a list.
TEST(a_word_has_what_is_alphabetic) {
  Regex *property = regex_open("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]", &err);
  if (!property) skip();
  RegexScan *expected = scan_of(hold(property, close_it)), *scan = scan_of(open_it("\\w"));
  int words = 0;
  for (uint32_t c = 1; c <= 0x10ffff; c++) {
    if (c >= 0xd800 && c < 0xe000) continue; // no characters
    char text[4];
    const size_t bytes =
        (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)text);
    size_t begin, end;
    const int want = regex_next(expected, text, bytes, 0, &begin, &end, &err);
    if (regex_next(scan, text, bytes, 0, &begin, &end, &err) != want)
      fail_msg("U+%04X is %sof a word", c, want ? "" : "not ");
    words += want;
  }
  assert_true(words > 130000); // 135,200 with PCRE2 10.42
}

// Random texts of what the pattern tells apart, in ASCII and beyond it.
static size_t random_text(char *text, size_t capacity, uint32_t *seed) {
  static const char *const parts[] = {
      "a",      "Z", "the",      "7",      "12",     " ",      "  ",     "\t",   "\n",     "\r\n",
      "\v",     "'", "'s",       "'LL",    ".",      "\"",     "\x01",   "\x7f", "\u00e9", "\u00b2",
      "\u3000", "!", "\xc2\x85", "\u2028", "\u65e5", "\u0301", "\u00a0", "'r"};
  size_t used = 0;
  for (;;) {
    *seed = *seed * 1664525 + 1013904223;
    const char *part = parts[(*seed >> 16) % (sizeof parts / sizeof *parts)];
    if (used + strlen(part) > capacity || *seed >> 27 == 0) return used;
    memcpy(text + used, part, strlen(part));
    used += strlen(part);
  }
}

// The group around it keeps the pattern from being recognised.
TEST(llama3s_pattern_matches_by_hand_as_by_pcre2) {
  RegexScan *scans[2] = {scan_of(open_it(LLAMA3_PATTERN)),
                         scan_of(open_it("(?:" LLAMA3_PATTERN ")"))};
  uint32_t seed = 1;
  char text[100];
  for (int i = 0; i < 200000; i++) {
    const size_t bytes = random_text(text, sizeof text, &seed);
    assert_int_equal(utf8_valid(text, bytes), bytes);
    for (size_t at = 0; at < bytes;) {
      size_t begin[2], end[2];
      for (int k = 0; k < 2; k++)
        assert_int_equal(regex_next(scans[k], text, bytes, at, &begin[k], &end[k], &err), 1);
      if (begin[0] != begin[1] || end[0] != end[1])
        fail_msg("at %zu of '%.*s': [%zu, %zu) and [%zu, %zu)", at, (int)bytes, text, begin[0],
                 end[0], begin[1], end[1]);
      at = end[0];
    }
  }
}
