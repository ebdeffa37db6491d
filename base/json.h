// Strict JSON over cJSON, which by itself takes duplicate keys, text after the value, a NUL hidden
// in a string and numbers that saturate; and a writer whose numbers read back as the same bits.
#pragma once
#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

// Every whole number up to here is exact as a double, and so in JSON: 2^53 - 1.
#define JSON_MAX_INTEGER 9007199254740991

// text[bytes] must be one JSON value with nothing after it. NULL and a sentence with `name`, line
// and column when it is not; the caller frees the tree with cJSON_Delete.
cJSON *json_parse(const char *name, const char *text, size_t bytes, Error *err);

// A key that the object has more than once, or NULL.
const char *json_duplicate_key(const cJSON *object);

// -1 unless the item is a number, whole, and exact (at most JSON_MAX_INTEGER either way).
int json_integer(const cJSON *item, int64_t *value);

// Text that grows. Start from zeros; `text` is NUL-terminated, owned, and freed by the caller.
typedef struct JsonText {
  char *text;
  size_t used, capacity;
} JsonText;

void json_append(JsonText *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void json_append_string(JsonText *out, const char *string); // quoted and escaped
void json_append_number(JsonText *out, double value);       // the shortest that reads back equal
void json_append_value(JsonText *out, const cJSON *item);   // on one line, cut to 80 characters
