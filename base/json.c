#include "base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"

// ---- The scanner

enum { MAX_DEPTH = 512 };
#define NUL_REFUSED "a NUL character is not allowed"

static bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool next_is(const JsonScan *s, char c) {
  return s->at < s->end && *s->at == c;
}

bool json_wrong(JsonScan *s, const char *problem) {
  s->problem = next_is(s, '\0') ? NUL_REFUSED : problem;
  return false;
}

static void skip_space(JsonScan *s) {
  while (s->at < s->end && is_space(*s->at)) s->at++;
}

bool json_take(JsonScan *s, char c) {
  skip_space(s);
  if (!next_is(s, c)) return false;
  s->at++;
  return true;
}

bool json_take_end(JsonScan *s) {
  skip_space(s);
  return s->at == s->end || json_wrong(s, "there is text after the JSON value");
}

// The four digits at `at`, which stays where one is missing.
static bool scan_hex(JsonScan *s, unsigned *code) {
  *code = 0;
  for (int i = 0; i < 4; i++, s->at++) {
    const char c = s->at < s->end ? *s->at : ' ';
    const bool digit = c >= '0' && c <= '9', low = c >= 'a' && c <= 'f',
               high = c >= 'A' && c <= 'F';
    if (!digit && !low && !high) return json_wrong(s, "\\u needs four hexadecimal digits");
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
static bool scan_unicode(JsonScan *s, char **out) {
  char *const escape = s->at - 2;
  unsigned code, low;
  if (!scan_hex(s, &code)) return false;
  if (code >= 0xd800 && code < 0xdc00 && s->end - s->at >= 2 && memcmp(s->at, "\\u", 2) == 0) {
    char *const second = s->at;
    s->at += 2;
    if (!scan_hex(s, &low)) return false;
    if (low >= 0xdc00 && low < 0xe000)
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    else
      s->at = second;
  }
  const bool half = code >= 0xd800 && code < 0xe000;
  if ((half && !s->halves) || (code == 0 && !s->nuls)) {
    s->at = escape;
    return json_wrong(s, half ? "half of a surrogate pair" : NUL_REFUSED);
  }
  *out = put_character(*out, half ? 0xfffd : code);
  return true;
}

// At the backslash.
static bool scan_escape(JsonScan *s, char **out) {
  static const char names[] = "\"\\/bfnrt", characters[] = "\"\\/\b\f\n\r\t";
  s->at++;
  const char *name = s->at < s->end && *s->at ? strchr(names, *s->at) : NULL;
  if (name) {
    *(*out)++ = characters[name - names];
    s->at++;
    return true;
  }
  if (!next_is(s, 'u')) return json_wrong(s, "there is no such escape");
  s->at++;
  return scan_unicode(s, out);
}

// Behind the opening quote. string: NULL where it stays as it is. No escape is shorter than its
// character, so `out` never passes `at`.
static bool scan_string(JsonScan *s, Span *string) {
  char spare[4], *out = s->at;
  if (string) string->text = out;
  for (;;) {
    char *const run = s->at;
    while (s->at < s->end && *s->at != '"' && *s->at != '\\' && (unsigned char)*s->at >= ' ')
      s->at++;
    const size_t length = (size_t)(s->at - run);
    if (string && out != run) memmove(out, run, length);
    out += length;
    if (s->at == s->end) return json_wrong(s, "a string has no end");
    if (*s->at == '"') break;
    if (*s->at != '\\') return json_wrong(s, "a control character in a string must be escaped");
    char *to = string ? out : spare;
    if (!scan_escape(s, &to)) return false;
    if (string) out = to;
  }
  s->at++;
  if (string) string->bytes = (size_t)(out - string->text);
  return true;
}

bool json_take_string(JsonScan *s, Span *string) {
  if (!json_take(s, '"')) return json_wrong(s, "a string in quotes is missing");
  return scan_string(s, string);
}

static bool take_key(JsonScan *s, Span *key) {
  if (!json_take(s, '"')) return json_wrong(s, "a key in quotes is missing");
  if (!scan_string(s, key)) return false;
  return json_take(s, ':') || json_wrong(s, "a colon is missing");
}

static bool scan_digits(JsonScan *s) {
  char *const start = s->at;
  while (s->at < s->end && *s->at >= '0' && *s->at <= '9') s->at++;
  return s->at > start;
}

// Python, for one, writes these.
static bool is_no_number(const JsonScan *s) {
  const size_t left = (size_t)(s->end - s->at);
  return (left >= 3 && memcmp(s->at, "NaN", 3) == 0) || (left >= 3 && memcmp(s->at, "Inf", 3) == 0);
}

#define NO_NUMBER "NaN and Infinity are no JSON; write null"

static bool scan_number(JsonScan *s) {
  const char *problem = "a digit is missing";
  if (next_is(s, '-')) s->at++;
  if (is_no_number(s)) problem = NO_NUMBER;
  if (next_is(s, '0'))
    s->at++;
  else if (!scan_digits(s))
    return json_wrong(s, problem);
  if (next_is(s, '.') && (s->at++, !scan_digits(s))) return json_wrong(s, problem);
  if (!next_is(s, 'e') && !next_is(s, 'E')) return true;
  s->at++;
  if (next_is(s, '+') || next_is(s, '-')) s->at++;
  return scan_digits(s) || json_wrong(s, problem);
}

static bool scan_word(JsonScan *s) {
  static const char *const words[] = {"true", "false", "null"};
  for (int i = 0; i < 3; i++) {
    const size_t length = strlen(words[i]);
    if ((size_t)(s->end - s->at) < length || memcmp(s->at, words[i], length) != 0) continue;
    s->at += length;
    return true;
  }
  return json_wrong(s, is_no_number(s) ? NO_NUMBER : "a value is missing");
}

bool json_next(JsonScan *s, char close, bool *begun, Span *key) {
  const bool object = close == '}';
  if (json_take(s, close)) return false;
  if (*begun && !json_take(s, ','))
    return json_wrong(s, object ? "a comma or } is missing" : "a comma or ] is missing");
  *begun = true;
  return !object || take_key(s, key);
}

bool json_skip(JsonScan *s) {
  skip_space(s);
  if (s->depth == MAX_DEPTH)
    return json_wrong(s, "its values lie more than 512 deep in each other");
  if (json_take(s, '"')) return scan_string(s, NULL);
  const bool object = json_take(s, '{');
  if (!object && !json_take(s, '['))
    return next_is(s, '-') || (s->at < s->end && *s->at >= '0' && *s->at <= '9') ? scan_number(s)
                                                                                 : scan_word(s);
  s->depth++;
  for (bool begun = false; json_next(s, object ? '}' : ']', &begun, NULL);)
    if (!json_skip(s)) return false;
  s->depth--;
  return !s->problem;
}

bool json_members(JsonScan *s, const char *const *names, int count, JsonMember *members) {
  bool begun = false;
  memset(members, 0, (size_t)count * sizeof *members);
  if (!json_take(s, '{')) return json_skip(s);
  for (Span key; json_next(s, '}', &begun, &key);) {
    int i = 0;
    while (i < count && !span_is(key, names[i])) i++;
    if (i < count && members[i].value.at)
      return json_wrong(s, "a key is there twice; keep one of them");
    skip_space(s);
    JsonMember m = {.value = *s};
    if (i < count && next_is(s, '"') ? !json_take_string(s, &m.string) : !json_skip(s))
      return false;
    m.value.end = s->at;
    if (i < count) members[i] = m;
  }
  return !s->problem;
}

int json_line_error(const JsonScan *s, const char *line, Error *err) {
  return error_set(err, "is not JSON: it goes wrong at column %zu: %s", (size_t)(s->at - line) + 1,
                   s->problem);
}

bool json_begins(const char *text, size_t bytes) {
  const size_t mark = bytes >= 3 && memcmp(text, UTF8_MARK, 3) == 0 ? 3 : 0;
  char *const all = (char *)(uintptr_t)text; // nothing changes it
  JsonScan s = {.at = all + mark, .end = all + bytes, .halves = true, .nuls = true};
  json_take(&s, '[');
  return json_take(&s, '{') && take_key(&s, NULL);
}

// ---- Reading

int json_syntax_error(const char *name, const char *text, size_t bytes, size_t at,
                      const char *problem, Error *err) {
  size_t line = 1, start = 0;
  for (size_t i = 0; i < at; i++)
    if (text[i] == '\n') line++, start = i + 1;
  char seen[32] = "the end of the file";
  if (at < bytes) {
    const unsigned char c = (unsigned char)text[at];
    if (c > ' ' && c < 127)
      snprintf(seen, sizeof seen, "'%c'", c);
    else
      snprintf(seen, sizeof seen, "the byte 0x%02x", c);
  }
  return error_set(err, "%s is not valid JSON: line %zu, column %zu: %s, at %s", name, line,
                   at - start + 1, problem, seen);
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// A key that the object has more than once, or NULL.
static const char *duplicate_key(const cJSON *object) {
  const size_t count = (size_t)cJSON_GetArraySize(object);
  const char **names = xmalloc(count * sizeof *names), *duplicate = NULL;
  size_t n = 0;
  for (const cJSON *item = object->child; item; item = item->next) names[n++] = item->string;
  qsort(names, count, sizeof *names, compare_names);
  for (size_t i = 1; i < count && !duplicate; i++)
    if (strcmp(names[i - 1], names[i]) == 0) duplicate = names[i];
  free(names);
  return duplicate;
}

// The sentence names the key with those of the objects around it, as in "model.hidden_size".
static int check_unique(const cJSON *value, Error *err) {
  const char *twice = cJSON_IsObject(value) ? duplicate_key(value) : NULL;
  if (twice) return error_set(err, "%.200s appears twice; keep one of them", twice);
  for (const cJSON *item = value->child; item; item = item->next) {
    if (check_unique(item, err) == 0) continue;
    const Error inner = *err;
    return item->string ? error_set(err, "%.200s.%.1000s", item->string, inner.text) : -1;
  }
  return 0;
}

cJSON *json_parse(const char *name, const char *text, size_t bytes, Error *err) {
  const bool marked = bytes >= 3 && memcmp(text, UTF8_MARK, 3) == 0; // cJSON passes over it
  char *const all = (char *)(uintptr_t)text;                         // json_skip changes nothing
  JsonScan s = {.at = all + (marked ? 3 : 0), .end = all + bytes};
  const char *end = text;
  cJSON *tree = NULL;
  if (json_skip(&s) && json_take_end(&s)) {
    errno = 0;
    tree = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
    if (!tree && errno == ENOMEM) out_of_memory("the system refused what %s takes", name);
    s.at = all + (end - text);
    s.problem = "this value is too long"; // a number of more than 60 digits
  }
  if (!tree) json_syntax_error(name, text, bytes, (size_t)(s.at - all), s.problem, err);
  if (!tree || check_unique(tree, err) == 0) return tree;
  error_prefix(err, "%s", name);
  cJSON_Delete(tree);
  return NULL;
}

cJSON *json_read(const char *path, size_t max_bytes, Error *err) {
  char *text;
  size_t bytes;
  if (file_read(path, max_bytes, &text, &bytes, err) != 0) return NULL;
  cJSON *tree = NULL;
  if (file_refuse_packed(path, text, bytes, err) == 0) tree = json_parse(path, text, bytes, err);
  free(text);
  return tree;
}

int json_integer(const cJSON *item, int64_t *value) {
  if (!cJSON_IsNumber(item)) return -1;
  const double d = item->valuedouble; // valueint saturates at 2^31 - 1
  if (!(fabs(d) <= (double)JSON_MAX_INTEGER) || d != floor(d)) return -1;
  *value = (int64_t)d;
  return 0;
}

int json_fields(const cJSON *object, const char *const *names, int count, const cJSON **fields,
                Error *err) {
  if (!cJSON_IsObject(object)) return error_set(err, "it is not an object");
  for (int i = 0; i < count; i++) fields[i] = NULL;
  for (const cJSON *item = object->child; item; item = item->next) {
    int i = 0;
    while (i < count && strcmp(names[i], item->string) != 0) i++;
    if (i == count) return error_set(err, "the key '%.100s' is unknown", item->string);
    fields[i] = item;
  }
  for (int i = 0; i < count; i++)
    if (!fields[i]) return error_set(err, "the key '%s' is missing", names[i]);
  return 0;
}

ShortText json_shown(const cJSON *item) {
  if (cJSON_IsNumber(item)) return number_text(item->valuedouble); // cJSON writes infinity as null
  char *text = cJSON_PrintUnformatted(item);
  const bool cut = text && strlen(text) > 80;
  const ShortText shown = short_text("%.80s%s", text ? text : "?", cut ? "..." : "");
  cJSON_free(text);
  return shown;
}

// ---- Writing

static void put(JsonWriter *w, const char *text, size_t bytes) {
  const size_t needed = w->used + bytes + 1;
  if (needed > w->capacity) w->text = xrealloc(w->text, w->capacity = 2 * needed);
  memcpy(w->text + w->used, text, bytes);
  w->used += bytes;
  w->text[w->used] = '\0';
}

static void put_text(JsonWriter *w, const char *text) {
  put(w, text, strlen(text));
}

static void put_line(JsonWriter *w) {
  if (w->indent == 0) return;
  put(w, "\n", 1);
  for (int i = 0; i < w->depth * w->indent; i++) put(w, " ", 1);
}

// The two ways of escaping differ in line feed and DEL because files that are there have them so.
static void put_string(JsonWriter *w, const char *text, size_t bytes, bool foreign) {
  put(w, "\"", 1);
  for (size_t i = 0, n; i < bytes; i += n ? n : 1) {
    const unsigned char c = (unsigned char)text[i];
    char escape[8] = "\\ufffd";
    n = foreign ? utf8_length(text + i, bytes - i) : 1;
    if (c == '"' || c == '\\')
      snprintf(escape, sizeof escape, "\\%c", c);
    else if (c == '\n' && !foreign)
      strcpy(escape, "\\n");
    else if (c < 0x20 || (c == 0x7f && foreign))
      snprintf(escape, sizeof escape, "\\u%04x", c);
    else if (n > 0) {
      put(w, text + i, n);
      continue;
    }
    put_text(w, escape);
  }
  put(w, "\"", 1);
}

static void put_name(JsonWriter *w, const char *name) {
  if (w->comma) put(w, ",", 1);
  w->comma = true;
  if (w->depth > 0) put_line(w);
  if (!name) return;
  put_string(w, name, strlen(name), false);
  put_text(w, w->indent > 0 ? ": " : ":");
}

void json_raw(JsonWriter *w, const char *name, const char *json) {
  put_name(w, name);
  put_text(w, json);
}

void json_open(JsonWriter *w, const char *name, char bracket) {
  put_name(w, name);
  put(w, &bracket, 1);
  w->depth++;
  w->comma = false;
}

void json_close(JsonWriter *w, char bracket) {
  w->depth--;
  put_line(w);
  put(w, &bracket, 1);
  w->comma = w->depth > 0;
  if (w->depth == 0) put_line(w);
}

void json_string(JsonWriter *w, const char *name, const char *text) {
  put_name(w, name);
  put_string(w, text, strlen(text), w->foreign);
}

void json_bytes(JsonWriter *w, const char *name, const char *text, size_t bytes) {
  put_name(w, name);
  put_string(w, text, bytes, true);
}

ShortText number_text(double value) {
  if (value == floor(value) && fabs(value) < 1e15) // 500000 rather than 5e+05
    return short_text("%.0f", value);
  for (int digits = 1; digits < 17; digits++) {
    const ShortText t = short_text("%.*g", digits, value);
    if (strtod(t.text, NULL) == value) return t;
  }
  return short_text("%.17g", value); // always enough for a double
}

ShortText digits_text(uint64_t value) {
  return short_text("%" PRIu64, value);
}

ShortText hex_text(uint64_t value) {
  return short_text("%016" PRIx64, value);
}

void json_number(JsonWriter *w, const char *name, double value, int digits) {
  const ShortText t = digits == JSON_EXACT ? number_text(value) : short_text("%.*g", digits, value);
  json_raw(w, name, isfinite(value) ? t.text : "null");
}

void json_whole(JsonWriter *w, const char *name, int64_t value) {
  json_raw(w, name, short_text("%" PRId64, value).text);
}

void json_bool(JsonWriter *w, const char *name, bool value) {
  json_raw(w, name, value ? "true" : "false");
}
