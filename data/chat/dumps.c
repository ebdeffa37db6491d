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

// ---- Values. The hashes of the keys of all objects that are open, one after the other, tell
// whether an object has a key twice

static int compare(const void *a, const void *b) {
  const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

// Forgets the hashes behind keys[bytes]. False: two of them are equal.
static bool pop_keys(Text *keys, size_t bytes) {
  uint64_t *const hashes = (uint64_t *)(void *)(keys->data + bytes);
  const size_t count = (keys->bytes - bytes) / sizeof *hashes;
  bool unique = true;
  if (count > 0) qsort(hashes, count, sizeof *hashes, compare);
  for (size_t i = 1; i < count; i++) unique &= hashes[i] != hashes[i - 1];
  keys->bytes = bytes;
  return unique;
}

static bool put_value(Text *out, JsonScan *s, Text *keys);

static bool put_members(Text *out, JsonScan *s, Text *keys, bool object) {
  const char close = object ? '}' : ']';
  const size_t before = keys->bytes;
  bool begun = false, comma = false;
  put(out, object ? "{" : "[");
  for (Span key; json_next(s, close, &begun, &key); comma = true) {
    if (comma) put(out, ", ");
    if (object) {
      const uint64_t hash = XXH3_64bits(key.text, key.bytes);
      text_append(keys, (const char *)&hash, sizeof hash);
      dumps_string(out, key);
      put(out, ": ");
    }
    if (!put_value(out, s, keys)) return false;
  }
  text_append(out, &close, 1);
  return pop_keys(keys, before);
}

static bool put_value(Text *out, JsonScan *s, Text *keys) {
  if (json_take(s, '{')) return put_members(out, s, keys, true);
  if (json_take(s, '[')) return put_members(out, s, keys, false);
  Span value = {.text = s->at};
  if (*s->at == '"') {
    if (!json_take_string(s, &value)) return false;
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
  Text keys = {0};
  text_room(&keys, 1); // so that it is never NULL
  const bool unique = put_value(out, &s, &keys);
  free(keys.data);
  return unique;
}

const char *dumps_call(Text *out, char *calls, size_t bytes) {
  static const char *const of_call[] = {"function"}, *const of_function[] = {"name", "arguments"};
  JsonScan s = {.at = calls, .end = calls + bytes, .halves = true, .nuls = true};
  JsonMember function, called[2];
  const Span *const name = &called[0].string, *const text = &called[1].string;
  const JsonScan *const arguments = &called[1].value;
  if (!json_take(&s, '[') || json_take(&s, ']') || !json_members(&s, of_call, 1, &function) ||
      !json_take(&s, ']'))
    return "must be a list of one call";
  if (!function.value.at || *function.value.at != '{' ||
      !json_members(&function.value, of_function, 2, called))
    return "must have an object \"function\"";
  if (!name->text) return "must have a string \"name\"";
  if (!arguments->at) return "must have \"arguments\"";
  put(out, "{\"name\": \"");
  text_append(out, name->text, name->bytes);
  put(out, "\", \"parameters\": ");
  if (text->text)
    dumps_string(out, *text);
  else if (!dumps_json(out, arguments->at, (size_t)(arguments->end - arguments->at)))
    return "have a key twice in the arguments";
  put(out, "}");
  return NULL;
}
