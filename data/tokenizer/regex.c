// Where Oniguruma (with Ruby's syntax, as the Python package has it) and PCRE2 differ:
//   \s      U+180E is white space to PCRE2 alone: the characters are listed
//   \w      PCRE2's has no marks and no connectors: the properties are listed
//   ^ $     match at every line: PCRE2_MULTILINE
//   \uhhhh  is \x{hhhh}
// These mean something else in PCRE2, and no known tokenizer needs them, so they are refused:
// nested classes, && and [:names:] in classes; \b \h \G \K \N \O \Q \R \X \y and the like; flags
// but (?i:...) and a leading (?i); (*VERBS); {,n}, {n}? and a possessive {n,m}+.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer/regex.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

enum {
  MAX_PATTERN_BYTES = 1 << 14,
  // One match may take about this many steps: some tenths of a second.
  MATCH_LIMIT = 10000000,
  HEAP_LIMIT_KIB = 1 << 18, // only where there is no JIT
  JIT_STACK_BYTES = 1 << 23
};

struct Regex {
  pcre2_code *code;
  bool llama3;   // it is LLAMA3_PATTERN
  bool compiled; // by the JIT, which a system may forbid or lack; else pcre2_match interprets
};

struct RegexScan {
  const Regex *regex;
  pcre2_match_data *data;
  pcre2_match_context *context;
  pcre2_jit_stack *stack; // NULL where there is no JIT
};

// ---- The pattern in PCRE2's words

#define WHITE_SPACE                                                                                \
  "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"                  \
  "\\x{205f}\\x{3000}"
// Alphabetic characters, without \p{Alphabetic}, which PCRE2 10.39 (Ubuntu 22.04) does not know:
// letters, marks, numerals that are letters, and letters in circles and squares.
#define WORD                                                                                       \
  "\\p{L}\\p{M}\\p{Nl}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"               \
  "\\x{1f170}-\\x{1f189}\\p{Nd}\\p{Pc}"

typedef struct Translation {
  const char *pattern; // NUL-terminated
  size_t at;           // the next byte of it
  bool in_class;
  Text out;
} Translation;

static void put(Translation *t, const char *text) {
  text_append(&t->out, text, strlen(text));
}

static void put_set(Translation *t, const char *before, const char *set, const char *after) {
  if (!t->in_class) put(t, before);
  put(t, set);
  if (!t->in_class) put(t, after);
}

static int take(Translation *t, size_t bytes) {
  text_append(&t->out, t->pattern + t->at, bytes);
  t->at += bytes;
  return 0;
}

static int refuse(const Translation *t, size_t bytes, Error *err) {
  return error_set(err, "the regular expression has '%.*s' at byte %zu, which is not supported",
                   (int)bytes, t->pattern + t->at, t->at);
}

static int translate_escape(Translation *t, Error *err) {
  const char *const p = t->pattern + t->at;
  const char c = p[1];
  if (c == 's') {
    put_set(t, "[", WHITE_SPACE, "]");
  } else if (c == 'w') {
    put_set(t, "[", WORD, "]");
  } else if (c == 'S' && !t->in_class) {
    put_set(t, "[^", WHITE_SPACE, "]");
  } else if (c == 'W' && !t->in_class) {
    put_set(t, "[^", WORD, "]");
  } else if (c == 'u' && strspn(p + 2, "0123456789abcdefABCDEF") >= 4) {
    put(t, "\\x{");
    text_append(&t->out, p + 2, 4);
    put(t, "}");
    t->at += 4;
  } else if (c != '\0' && (!isalpha((unsigned char)c) || strchr("pPdDnrtfvaexAzZkg", c))) {
    return take(t, 2);
  } else {
    return refuse(t, c == '\0' ? 1 : 2, err);
  }
  t->at += 2;
  return 0;
}

// A bracket that opens a group: flags and verbs are looked at.
static int translate_group(Translation *t, Error *err) {
  const char *const p = t->pattern + t->at;
  if (p[1] == '*') return refuse(t, 2, err);
  if (p[1] == '?' && (isalpha((unsigned char)p[2]) || p[2] == '-')) {
    const size_t flags = strspn(p + 2, "i-");
    const char after = p[2 + flags];
    if (after != ':' && !(after == ')' && t->at == 0)) return refuse(t, 3 + flags, err);
  }
  return take(t, 1);
}

static int translate_repeat(Translation *t, Error *err) {
  const char *const p = t->pattern + t->at;
  const size_t low = strspn(p + 1, "0123456789");
  const bool range = p[1 + low] == ',';
  const size_t high = range ? strspn(p + 2 + low, "0123456789") : 0;
  const size_t length = 1 + low + range + high + 1;
  if (p[length - 1] == '}' && low + high > 0) {
    const char after = p[length];
    if (low == 0 || after == '+' || (after == '?' && !range)) return refuse(t, length + 1, err);
  }
  return take(t, 1);
}

// The bracket that opens a class; a ] right behind it is in the class.
static int translate_class(Translation *t) {
  const char *const p = t->pattern + t->at;
  const size_t head = 1 + (p[1] == '^');
  t->in_class = true;
  return take(t, head + (p[head] == ']'));
}

static int translate(Translation *t, Error *err) {
  int status = 0;
  for (char c; status == 0 && (c = t->pattern[t->at]);) {
    if (c == '\\')
      status = translate_escape(t, err);
    else if (t->in_class && (c == '[' || (c == '&' && t->pattern[t->at + 1] == '&')))
      status = refuse(t, 2, err);
    else if (!t->in_class && c == '(')
      status = translate_group(t, err);
    else if (!t->in_class && c == '{')
      status = translate_repeat(t, err);
    else if (!t->in_class && c == '[')
      status = translate_class(t);
    else {
      t->in_class &= c != ']';
      take(t, 1);
    }
  }
  return status;
}

// ---- Compiling and matching

static int compile(Regex *regex, Text pattern, Error *err) {
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int code;
  PCRE2_SIZE at;
  regex->code = pcre2_compile((PCRE2_SPTR)pattern.data, pattern.bytes, options, &code, &at, NULL);
  if (!regex->code) {
    PCRE2_UCHAR why[256];
    pcre2_get_error_message(code, why, sizeof why);
    return error_set(err, "the regular expression does not compile: %s", (char *)why);
  }
  regex->compiled = pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE) == 0;
  return 0;
}

Regex *regex_open(const char *pattern, Error *err) {
  const size_t bytes = strlen(pattern);
  if (bytes > MAX_PATTERN_BYTES || utf8_valid(pattern, bytes) != bytes) {
    error_set(err, "the regular expression is longer than %d bytes, or not UTF-8",
              MAX_PATTERN_BYTES);
    return NULL;
  }
  Translation t = {.pattern = pattern};
  Regex *regex = xcalloc(1, sizeof *regex);
  regex->llama3 = strcmp(pattern, LLAMA3_PATTERN) == 0;
  put(&t, "(*LF)"); // newlines
  const bool failed = translate(&t, err) != 0 || compile(regex, t.out, err) != 0;
  free(t.out.data);
  if (!failed) return regex;
  free(regex);
  return NULL;
}

void regex_close(Regex *regex) {
  if (!regex) return;
  pcre2_code_free(regex->code);
  free(regex);
}

static void *allocate(size_t bytes, void *unused) {
  (void)unused;
  return xmalloc(bytes);
}

static void release(void *memory, void *unused) {
  (void)unused;
  free(memory);
}

RegexScan *regex_scan_open(const Regex *regex) {
  RegexScan *scan = xcalloc(1, sizeof *scan);
  pcre2_general_context *memory = pcre2_general_context_create(allocate, release, NULL);
  scan->regex = regex;
  scan->data = pcre2_match_data_create(1, memory);
  scan->context = pcre2_match_context_create(memory);
  pcre2_set_match_limit(scan->context, MATCH_LIMIT);
  pcre2_set_heap_limit(scan->context, HEAP_LIMIT_KIB);
  scan->stack = pcre2_jit_stack_create(1 << 15, JIT_STACK_BYTES, memory);
  pcre2_general_context_free(memory);
  if (scan->stack) pcre2_jit_stack_assign(scan->context, NULL, scan->stack);
  return scan;
}

void regex_scan_close(RegexScan *scan) {
  if (!scan) return;
  pcre2_jit_stack_free(scan->stack);
  pcre2_match_context_free(scan->context);
  pcre2_match_data_free(scan->data);
  free(scan);
}

// ---- LLAMA3_PATTERN by hand where only ASCII decides, which is most of what there is: several
// times as fast as the regular expression. tests/unit/test_regex.c holds the two against each other

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

int regex_next(RegexScan *scan, const char *text, size_t bytes, size_t at, size_t *begin,
               size_t *end, Error *err) {
  const size_t length = scan->regex->llama3 && at < bytes ? llama3_match(text + at, bytes - at) : 0;
  if (length > 0) {
    *begin = at;
    *end = at + length;
    return 1;
  }
  const PCRE2_SPTR subject = (PCRE2_SPTR)text;
  const pcre2_code *code = scan->regex->code;
  const int found =
      scan->regex->compiled
          ? pcre2_jit_match(code, subject, bytes, at, 0, scan->data, scan->context)
          : pcre2_match(code, subject, bytes, at, PCRE2_NO_UTF_CHECK, scan->data, scan->context);
  if (found == PCRE2_ERROR_NOMATCH) return 0;
  if (found < 0) {
    PCRE2_UCHAR why[256];
    pcre2_get_error_message(found, why, sizeof why);
    return error_set(err,
                     "the regular expression fails on this text: %s; it may backtrack for ever",
                     (char *)why);
  }
  const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(scan->data);
  *begin = bounds[0];
  *end = bounds[1];
  return 1;
}
