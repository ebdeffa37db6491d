#include "data/corpus/jsonl.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MAX_DEPTH = 512 };

typedef struct Line {
  char *at, *end;
  const char *problem; // what is wrong at `at`
  int depth;
  bool found, twice;
  char *text;
  size_t bytes;
} Line;

static bool fault(Line *l, const char *problem) {
  l->problem = problem;
  return false;
}

static void skip_space(Line *l) {
  while (l->at < l->end && (*l->at == ' ' || *l->at == '\t' || *l->at == '\r' || *l->at == '\n'))
    l->at++;
}

static bool next_is(const Line *l, char c) {
  return l->at < l->end && *l->at == c;
}

// ---- Strings

// The four digits at `at`, which stays where one is missing.
static bool read_hex(Line *l, unsigned *code) {
  *code = 0;
  for (int i = 0; i < 4; i++, l->at++) {
    const char c = l->at < l->end ? *l->at : ' ';
    const bool digit = c >= '0' && c <= '9', low = c >= 'a' && c <= 'f',
               high = c >= 'A' && c <= 'F';
    if (!digit && !low && !high) return fault(l, "\\u needs four hexadecimal digits");
    *code = *code * 16 + (unsigned)(digit ? c - '0' : (c | 32) - 'a' + 10);
  }
  return true;
}

static char *put_character(char *out, unsigned code) {
  if (code < 0x80) {
    *out++ = (char)code;
    return out;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
  *out++ = (char)(lead[more] | code >> (6 * more));
  for (int i = more - 1; i >= 0; i--) *out++ = (char)(0x80 | (code >> (6 * i) & 0x3f));
  return out;
}

// Behind "\u". A pair of surrogates is one character; half a pair is none.
static bool read_unicode(Line *l, char **out) {
  unsigned code, low;
  if (!read_hex(l, &code)) return false;
  if (code >= 0xd800 && code < 0xdc00 && l->end - l->at >= 2 && memcmp(l->at, "\\u", 2) == 0) {
    char *const second = l->at;
    l->at += 2;
    if (!read_hex(l, &low)) return false;
    if (low >= 0xdc00 && low < 0xe000)
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    else
      l->at = second;
  }
  *out = put_character(*out, code >= 0xd800 && code < 0xe000 ? 0xfffd : code);
  return true;
}

// At the backslash.
static bool read_escape(Line *l, char **out) {
  static const char names[] = "\"\\/bfnrt", characters[] = "\"\\/\b\f\n\r\t";
  l->at++;
  const char *name = l->at < l->end && *l->at ? strchr(names, *l->at) : NULL;
  if (name) {
    *(*out)++ = characters[name - names];
    l->at++;
    return true;
  }
  if (!next_is(l, 'u')) return fault(l, "there is no such escape");
  l->at++;
  return read_unicode(l, out);
}

// At the opening quote. No escape is shorter than what it stands for, so `out` never passes `at`.
static bool read_string(Line *l, char **text, size_t *bytes) {
  char *out = ++l->at;
  *text = out;
  for (;;) {
    char *const run = l->at;
    while (l->at < l->end && *l->at != '"' && *l->at != '\\' && (unsigned char)*l->at >= ' ')
      l->at++;
    const size_t length = (size_t)(l->at - run);
    if (out != run) memmove(out, run, length);
    out += length;
    if (l->at == l->end) return fault(l, "the line ends inside a string");
    if (*l->at == '"') break;
    if (*l->at != '\\') return fault(l, "a control character in a string must be escaped");
    if (!read_escape(l, &out)) return false;
  }
  l->at++;
  *bytes = (size_t)(out - *text);
  return true;
}

// ---- Values

static bool skip_digits(Line *l) {
  char *const start = l->at;
  while (l->at < l->end && *l->at >= '0' && *l->at <= '9') l->at++;
  return l->at > start;
}

static bool skip_number(Line *l) {
  static const char problem[] = "a digit is missing";
  if (next_is(l, '-')) l->at++;
  if (next_is(l, '0'))
    l->at++;
  else if (!skip_digits(l))
    return fault(l, problem);
  if (next_is(l, '.') && (l->at++, !skip_digits(l))) return fault(l, problem);
  if (!next_is(l, 'e') && !next_is(l, 'E')) return true;
  l->at++;
  if (next_is(l, '+') || next_is(l, '-')) l->at++;
  return skip_digits(l) || fault(l, problem);
}

static bool skip_word(Line *l) {
  static const char *const words[] = {"true", "false", "null"};
  for (int i = 0; i < 3; i++) {
    const size_t length = strlen(words[i]);
    if ((size_t)(l->end - l->at) < length || memcmp(l->at, words[i], length) != 0) continue;
    l->at += length;
    return true;
  }
  return fault(l, "a value is missing");
}

static bool read_object(Line *l, const char *field);

static bool skip_value(Line *l);

static bool skip_list(Line *l) {
  l->at++;
  skip_space(l);
  for (bool more = !next_is(l, ']'); more;) {
    if (!skip_value(l)) return false;
    skip_space(l);
    more = next_is(l, ',');
    if (more) l->at++;
  }
  if (!next_is(l, ']')) return fault(l, "a comma or ] is missing");
  l->at++;
  return true;
}

static bool skip_value(Line *l) {
  char *text;
  size_t bytes;
  skip_space(l);
  if (l->depth == MAX_DEPTH) return fault(l, "its values lie more than 512 deep in each other");
  if (next_is(l, '"')) return read_string(l, &text, &bytes);
  if (next_is(l, '-') || (l->at < l->end && *l->at >= '0' && *l->at <= '9')) return skip_number(l);
  const bool object = next_is(l, '{');
  if (!object && !next_is(l, '[')) return skip_word(l);
  l->depth++;
  const bool ok = object ? read_object(l, NULL) : skip_list(l);
  l->depth--;
  return ok;
}

// The value of a key that the field begins with; `rest` is the field behind it, or NULL.
static bool read_wanted(Line *l, const char *rest) {
  skip_space(l);
  if (rest && next_is(l, '{')) return read_object(l, rest);
  if (rest || !next_is(l, '"')) return skip_value(l);
  l->found = read_string(l, &l->text, &l->bytes);
  return l->found;
}

// At the opening brace. field: what is looked for here; NULL: nothing.
static bool read_object(Line *l, const char *field) {
  const char *dot = field ? strchr(field, '.') : NULL;
  const size_t wanted = !field ? 0 : dot ? (size_t)(dot - field) : strlen(field);
  bool seen = false;
  l->at++;
  skip_space(l);
  for (bool more = !next_is(l, '}'); more;) {
    char *key;
    size_t bytes;
    skip_space(l);
    if (!next_is(l, '"')) return fault(l, "a key in quotes is missing");
    if (!read_string(l, &key, &bytes)) return false;
    const bool here = field && bytes == wanted && memcmp(key, field, bytes) == 0;
    skip_space(l);
    if (!next_is(l, ':')) return fault(l, "a colon is missing");
    l->at++;
    if (here ? !read_wanted(l, dot ? dot + 1 : NULL) : !skip_value(l)) return false;
    l->twice |= here && seen;
    seen |= here;
    skip_space(l);
    more = next_is(l, ',');
    if (more) l->at++;
  }
  if (!next_is(l, '}')) return fault(l, "a comma or } is missing");
  l->at++;
  return true;
}

int jsonl_text(char *line, size_t bytes, const char *field, char **text, size_t *text_bytes,
               Error *err) {
  Line l = {.at = line, .end = line + bytes};
  skip_space(&l);
  bool ok = next_is(&l, '{') ? read_object(&l, field) : skip_value(&l);
  if (ok) skip_space(&l);
  if (ok && l.at < l.end) ok = fault(&l, "there is text behind the value");
  if (!ok)
    return error_set(err, "is not JSON: it goes wrong at column %zu: %s", (size_t)(l.at - line) + 1,
                     l.problem);
  if (l.twice) return error_set(err, "has \"%s\" twice; keep one of them", field);
  *text = l.text;
  *text_bytes = l.bytes;
  if (l.found) return 0;
  return error_set(err,
                   "has no \"%s\" string: each line must be an object such as {\"%s\": \"...\"}; "
                   "--field names another field",
                   field, field);
}
