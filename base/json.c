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
  if (twice) return error_set(err, "%.200s is there twice; keep one of them", twice);
  for (const cJSON *item = value->child; item; item = item->next) {
    if (check_unique(item, err) == 0) continue;
    const Error inner = *err;
    return item->string ? error_set(err, "%.200s.%.1000s", item->string, inner.text) : -1;
  }
  return 0;
}

cJSON *json_parse(const char *name, const char *text, size_t bytes, Error *err) {
  const char *nul = memchr(text, '\0', bytes), *end = text;
  if (!nul) nul = find_escaped_nul(text, bytes);
  errno = 0;
  cJSON *tree = nul ? NULL : cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
  if (!tree && errno == ENOMEM) out_of_memory("the system refused what %s takes", name);
  size_t at = (size_t)((nul ? nul : end) - text);
  while (tree && at < bytes && is_space(text[at])) at++;
  if (tree && at == bytes) {
    if (check_unique(tree, err) == 0) return tree;
    error_prefix(err, "%s", name);
  } else {
    if (!tree && !nul) at = failure_position(text, bytes, at);
    json_syntax_error(name, text, bytes, at,
                      nul    ? "a NUL character is not allowed"
                      : tree ? "there is text after the JSON value"
                             : "a value, comma or bracket is wrong",
                      err);
  }
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

ShownText json_shown(const cJSON *item) {
  ShownText shown;
  if (cJSON_IsNumber(item)) { // cJSON would write infinity as null
    snprintf(shown.text, sizeof shown.text, "%s", number_text(item->valuedouble).text);
    return shown;
  }
  char *text = cJSON_PrintUnformatted(item);
  const bool cut = text && strlen(text) > 80;
  snprintf(shown.text, sizeof shown.text, "%.80s%s", text ? text : "?", cut ? "..." : "");
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

NumberText number_text(double value) {
  NumberText t;
  if (value == floor(value) && fabs(value) < 1e15) { // 500000 rather than 5e+05
    snprintf(t.text, sizeof t.text, "%.0f", value);
    return t;
  }
  for (int digits = 1; digits <= 17; digits++) { // 17 are always enough for a double
    snprintf(t.text, sizeof t.text, "%.*g", digits, value);
    if (strtod(t.text, NULL) == value) break;
  }
  return t;
}

NumberText digits_text(uint64_t value) {
  NumberText t;
  snprintf(t.text, sizeof t.text, "%" PRIu64, value);
  return t;
}

NumberText hex_text(uint64_t value) {
  NumberText t;
  snprintf(t.text, sizeof t.text, "%016" PRIx64, value);
  return t;
}

void json_number(JsonWriter *w, const char *name, double value, int digits) {
  NumberText t = number_text(value);
  if (digits != JSON_EXACT) snprintf(t.text, sizeof t.text, "%.*g", digits, value);
  json_raw(w, name, isfinite(value) ? t.text : "null");
}

void json_whole(JsonWriter *w, const char *name, int64_t value) {
  NumberText t;
  snprintf(t.text, sizeof t.text, "%" PRId64, value);
  json_raw(w, name, t.text);
}

void json_bool(JsonWriter *w, const char *name, bool value) {
  json_raw(w, name, value ? "true" : "false");
}
