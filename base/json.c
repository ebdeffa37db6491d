#include "base/json.h"

#include <math.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"

// Says where text[at] is, in lines and columns from 1, and what stands there.
static int syntax_error(const char *name, const char *text, size_t bytes, size_t at,
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

// A \u0000 would end the C string early, and two different keys would read as one.
static const char *find_escaped_nul(const char *text, size_t bytes) {
  for (size_t i = 0; i + 6 <= bytes; i++) {
    if (text[i] != '\\') continue;
    if (memcmp(text + i, "\\u0000", 6) == 0) return text + i;
    i++; // the escaped character, which may be a backslash
  }
  return NULL;
}

static int is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// Where parsing failed. Where a key should be and is not, cJSON's pointer is one character past it:
// after a comma that should not be there, or at a key without quotes.
static size_t failure_position(const char *text, size_t bytes, size_t at) {
  size_t before = at ? at - 1 : 0; // of the last character before text[at - 1] that is no space
  while (before > 0 && is_space(text[before - 1])) before--;
  if (before > 0) {
    const char missed = text[at - 1], previous = text[before - 1];
    const bool empty_object = previous == '{' && missed == '}';
    if ((previous == ',' || previous == '{') && !empty_object &&
        !strchr(" \t\r\n[,:\"0123456789", missed))
      return at - 1;
  }
  // It stops in front of the white space that precedes what it did not understand.
  while (at < bytes && is_space(text[at])) at++;
  return at;
}

cJSON *json_parse(const char *name, const char *text, size_t bytes, Error *err) {
  const char *nul = memchr(text, '\0', bytes);
  if (!nul) nul = find_escaped_nul(text, bytes);
  if (nul) {
    syntax_error(name, text, bytes, (size_t)(nul - text), "a NUL character is not allowed", err);
    return NULL;
  }
  const char *end = text;
  cJSON *tree = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
  size_t at = (size_t)(end - text);
  if (tree) {
    while (at < bytes && is_space(text[at])) at++;
    if (at == bytes) return tree;
  } else {
    at = failure_position(text, bytes, at);
  }
  syntax_error(name, text, bytes, at,
               tree ? "there is text after the JSON value" : "a value, comma or bracket is wrong",
               err);
  cJSON_Delete(tree);
  return NULL;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *json_duplicate_key(const cJSON *object) {
  const size_t count = (size_t)cJSON_GetArraySize(object);
  const char **names = xmalloc(count * sizeof *names);
  size_t n = 0;
  for (const cJSON *item = object->child; item; item = item->next) names[n++] = item->string;
  qsort(names, count, sizeof *names, compare_names);
  const char *duplicate = NULL;
  for (size_t i = 1; i < count && !duplicate; i++)
    if (strcmp(names[i - 1], names[i]) == 0) duplicate = names[i];
  free(names);
  return duplicate;
}

int json_integer(const cJSON *item, int64_t *value) {
  if (!cJSON_IsNumber(item)) return -1;
  const double d = item->valuedouble; // valueint saturates at 2^31 - 1
  if (!(fabs(d) <= (double)JSON_MAX_INTEGER) || d != floor(d)) return -1;
  *value = (int64_t)d;
  return 0;
}

void json_append(JsonText *out, const char *format, ...) {
  va_list args;
  va_start(args, format);
  const int length = vsnprintf(NULL, 0, format, args);
  va_end(args);
  const size_t needed = out->used + (size_t)length + 1;
  if (needed > out->capacity) {
    out->capacity = 2 * needed;
    out->text = xrealloc(out->text, out->capacity);
  }
  va_start(args, format);
  vsnprintf(out->text + out->used, out->capacity - out->used, format, args);
  va_end(args);
  out->used += (size_t)length;
}

void json_append_string(JsonText *out, const char *string) {
  json_append(out, "\"");
  for (const char *p = string; *p; p++) {
    const unsigned char c = (unsigned char)*p;
    if (c == '"' || c == '\\')
      json_append(out, "\\%c", c);
    else if (c == '\n')
      json_append(out, "\\n");
    else if (c < 0x20)
      json_append(out, "\\u%04x", c);
    else
      json_append(out, "%c", c);
  }
  json_append(out, "\"");
}

void json_append_number(JsonText *out, double value) {
  if (value == floor(value) && fabs(value) < 1e15) { // 500000 rather than 5e+05
    json_append(out, "%.0f", value);
    return;
  }
  char text[32];
  for (int digits = 1; digits <= 17; digits++) { // 17 are always enough for a double
    snprintf(text, sizeof text, "%.*g", digits, value);
    if (strtod(text, NULL) == value) break;
  }
  json_append(out, "%s", text);
}

void json_append_value(JsonText *out, const cJSON *item) {
  if (cJSON_IsNumber(item)) { // cJSON would write infinity as null
    json_append_number(out, item->valuedouble);
    return;
  }
  char *text = cJSON_PrintUnformatted(item);
  const int length = text ? (int)strlen(text) : 0;
  json_append(out, "%.80s%s", text ? text : "?", length > 80 ? "..." : "");
  cJSON_free(text);
}
