#include "data/chat/dumps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/json.h"
#include "base/memory.h"

static void put(Text *out, const char *text) {
  text_append(out, text, strlen(text));
}

void dumps_string(Text *out, Span string) {
  static const char names[] = "btnvfr"; // of 8 to 13; \v has none in JSON
  put(out, "\"");
  for (size_t i = 0; i < string.bytes; i++) {
    const unsigned char c = (unsigned char)string.text[i];
    char escape[8] = {'\\', (char)c, 0};
    if (c >= 8 && c <= 13 && c != 11)
      escape[1] = names[c - 8];
    else if (c < 0x20)
      snprintf(escape, sizeof escape, "\\u%04x", c);
    else if (c != '"' && c != '\\') {
      text_append(out, string.text + i, 1);
      continue;
    }
    put(out, escape);
  }
  put(out, "\"");
}

// ---- Numbers: whole ones stay as they are, others become repr(float)

static void put_float(Text *out, double value) {
  char digits[32], text[64];
  int precision = 0;
  if (isinf(value)) {
    put(out, value < 0 ? "-Infinity" : "Infinity");
    return;
  }
  do // d.ddde+xx
    snprintf(digits, sizeof digits, "%.*e", precision, fabs(value));
  while (strtod(digits, NULL) != fabs(value) && precision++ < 17);
  const int exponent = atoi(strchr(digits, 'e') + 1);
  if (signbit(value)) put(out, "-");
  if (exponent < -4 || exponent >= 16) {
    put(out, digits); // C writes the exponent as Python does
    return;
  }
  const int behind = precision > exponent ? precision - exponent : 1;
  snprintf(text, sizeof text, "%.*f", behind, fabs(value));
  put(out, text);
}

static void put_number(Text *out, Span number) {
  const bool whole = !memchr(number.text, '.', number.bytes) &&
                     !memchr(number.text, 'e', number.bytes) &&
                     !memchr(number.text, 'E', number.bytes);
  if (whole && !span_is(number, "-0")) {
    text_append(out, number.text, number.bytes);
  } else if (whole) {
    put(out, "0");
  } else {
    char *copy = memcpy(xcalloc(number.bytes + 1, 1), number.text, number.bytes);
    put_float(out, strtod(copy, NULL));
    free(copy);
  }
}

// ---- Values

typedef struct Keys {
  uint64_t *hashes; // [count] of the keys of the objects that are open
  size_t count, capacity;
} Keys;

static void push_key(Keys *k, Span key) {
  LIST_ROOM(k->hashes, k->count, k->capacity);
  k->hashes[k->count++] = XXH3_64bits(key.text, key.bytes);
}

static int compare(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

// Forgets the keys from `first` on. False: two of them are equal.
static bool pop_keys(Keys *k, size_t first) {
  bool unique = true;
  if (k->count > first) qsort(k->hashes + first, k->count - first, sizeof *k->hashes, compare);
  for (size_t i = first + 1; i < k->count; i++) unique &= k->hashes[i] != k->hashes[i - 1];
  k->count = first;
  return unique;
}

static bool take_string(JsonScan *s, Span *string) {
  char *text;
  if (!json_take_string(s, &text, &string->bytes)) return false;
  string->text = text;
  return true;
}

static bool put_value(Text *out, JsonScan *s, Keys *keys);

static bool put_members(Text *out, JsonScan *s, Keys *keys, bool object) {
  const char end = object ? '}' : ']';
  const size_t first = keys->count;
  put(out, object ? "{" : "[");
  for (bool more = !json_take(s, end), comma = false; more; comma = true) {
    Span key;
    char *name;
    if (comma) put(out, ", ");
    if (object) {
      if (!json_take_key(s, &name, &key.bytes)) return false;
      key.text = name;
      dumps_string(out, key);
      put(out, ": ");
      push_key(keys, key);
    }
    if (!put_value(out, s, keys)) return false;
    more = json_take(s, ',');
    if (!more && !json_take(s, end)) return false;
  }
  text_append(out, &end, 1);
  return pop_keys(keys, first);
}

static bool put_value(Text *out, JsonScan *s, Keys *keys) {
  if (json_take(s, '{')) return put_members(out, s, keys, true);
  if (json_take(s, '[')) return put_members(out, s, keys, false);
  Span value = {.text = s->at};
  if (*s->at == '"') {
    if (!take_string(s, &value)) return false;
    dumps_string(out, value);
    return true;
  }
  if (!json_skip(s)) return false;
  value.bytes = (size_t)(s->at - value.text);
  if (*value.text == '-' || (*value.text >= '0' && *value.text <= '9'))
    put_number(out, value);
  else
    text_append(out, value.text, value.bytes); // true, false, null
  return true;
}

bool dumps_json(Text *out, char *json, size_t bytes) {
  JsonScan s = {.at = json, .end = json + bytes, .halves = true, .nuls = true};
  Keys keys = {0};
  const bool unique = put_value(out, &s, &keys);
  free(keys.hashes);
  return unique;
}

// ---- Tool calls

// values[count]: of the object's members with these names; at is NULL where one is missing.
static bool find_members(JsonScan *s, const char *const *names, JsonScan *values, int count) {
  if (!json_take(s, '{')) return false;
  for (bool more = !json_take(s, '}'); more;) {
    Span key;
    char *name;
    if (!json_take_key(s, &name, &key.bytes)) return false;
    key.text = name;
    json_take(s, '}'); // white space: no value begins with it
    JsonScan value = *s;
    if (!json_skip(s)) return false;
    value.end = s->at;
    for (int i = 0; i < count; i++)
      if (span_is(key, names[i])) values[i] = value;
    more = json_take(s, ',');
    if (!more && !json_take(s, '}')) return false;
  }
  return true;
}

const char *dumps_call(Text *out, char *calls, size_t bytes) {
  static const char *const of_call[] = {"function"}, *const of_function[] = {"name", "arguments"};
  JsonScan s = {.at = calls, .end = calls + bytes, .halves = true, .nuls = true};
  JsonScan function = {0},
           members[2] = {{0}}, *const called = &members[0], *const with = &members[1];
  Span name;
  if (!json_take(&s, '[') || json_take(&s, ']') || !find_members(&s, of_call, &function, 1) ||
      !json_take(&s, ']'))
    return "must be a list of one call";
  if (!function.at || !find_members(&function, of_function, members, 2))
    return "must have an object \"function\"";
  if (!called->at || *called->at != '"' || !take_string(called, &name))
    return "must have a string \"name\"";
  if (!with->at) return "must have \"arguments\"";
  put(out, "{\"name\": \"");
  text_append(out, name.text, name.bytes);
  put(out, "\", \"parameters\": ");
  if (!dumps_json(out, with->at, (size_t)(with->end - with->at)))
    return "have a key twice in the arguments";
  put(out, "}");
  return NULL;
}
