// JSON. The reader is strict: cJSON makes the tree, but by itself it accepts much that is not JSON,
// duplicate keys, text after the value and a NUL inside a string. The writer makes text in memory;
// its numbers read back as the same bits unless they are rounded on purpose.
#pragma once
#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "base/text.h"

// ---- Reading

// Every whole number up to here is exact as a double, and so in JSON: 2^53 - 1.
#define JSON_MAX_INTEGER 9007199254740991

// text[bytes], with a NUL behind it, must be one JSON value with nothing after it, and no object in
// it may have a key twice. If not: NULL and a sentence with `name` and the line and column, or the
// key. The caller frees the tree with cJSON_Delete.
cJSON *json_parse(const char *name, const char *text, size_t bytes, Error *err);
// Like json_parse, for a file of at most max_bytes.
cJSON *json_read(const char *path, size_t max_bytes, Error *err);

// -1 unless the item is a number, whole, and exact (at most JSON_MAX_INTEGER either way).
int json_integer(const cJSON *item, int64_t *value);

// An object that has exactly the keys names[count]: fields[i] becomes the value of names[i]. The
// sentence names the missing or unknown key.
int json_fields(const cJSON *object, const char *const *names, int count, const cJSON **fields,
                Error *err);

// A value for sentences, on one line and cut to 80 characters.
ShortText json_shown(const cJSON *item);

// ---- Reading without a tree: texts that are too large for one, and lines of .jsonl

// Accepts RFC 8259's JSON and nothing else, at most 512 values inside of each other. Where a
// function returns false, `problem` describes the error at `at`; only json_take sets none.
typedef struct JsonScan {
  char *at, *end; // the rest of the text
  bool halves;    // half of a surrogate pair becomes U+FFFD, else it is wrong
  bool nuls;      // \u0000 is accepted, else it is wrong
  int depth;
  const char *problem;
} JsonScan;

// Skips white space, and the character if it is there.
bool json_take(JsonScan *s, char c);
// Reads a string. Unescapes it in place, which spoils the JSON that was there. With NULL the JSON
// stays as it is.
bool json_take_string(JsonScan *s, Span *string);
// Skips a value, which stays as it is.
bool json_skip(JsonScan *s);
// Goes to the next value of an object, behind its key, or of a list. close: '}' or ']'; begun:
// false behind the opening bracket. False, and no problem: it ended.
bool json_next(JsonScan *s, char close, bool *begun, Span *key);

typedef struct JsonMember {
  JsonScan value; // scans it alone; `at` is NULL where the key is not there
  Span string;    // where it is a string, which is unescaped already
} JsonMember;
// Reads a value: members[i] is the one with the key names[i]. Other keys, and what is no object,
// are skipped. One of these keys twice is a problem.
bool json_members(JsonScan *s, const char *const *names, int count, JsonMember *members);
// True where text[bytes] begins as JSON does: an object with a key, or a list of such objects.
bool json_begins(const char *text, size_t bytes);
// True where nothing but white space follows.
bool json_take_end(JsonScan *s);
bool json_wrong(JsonScan *s, const char *problem); // sets the problem; false
// The sentence for it, about a line of JSON: "is not JSON: it goes wrong at column 3: why".
int json_line_error(const JsonScan *s, const char *line, Error *err);

// The sentence for the error at text[at]: `name` is not valid JSON, its line and column from 1,
// the problem, and the characters there.
int json_syntax_error(const char *name, const char *text, size_t bytes, size_t at,
                      const char *problem, Error *err);

// ---- Writing

// Start from zeros, but for `indent` and `foreign`. The text is the caller's to free, or to write
// out and begin again by `used = 0`.
typedef struct JsonWriter {
  char *text; // NUL-terminated
  size_t used, capacity;
  int indent;   // spaces a level: a value a line, and a newline at the end; 0: all on one line
  int depth;    // open objects and lists
  bool comma;   // the next value needs one in front
  bool foreign; // strings may hold any bytes: json_string writes them as json_bytes does
} JsonWriter;

// Every value takes the name that it has in its object; NULL in a list and for the outermost value.
void json_open(JsonWriter *w, const char *name, char bracket); // '{' or '['
void json_close(JsonWriter *w, char bracket);                  // '}' or ']'
void json_string(JsonWriter *w, const char *name, const char *text);
// Text that a model wrote, or a file's name: bytes that are not UTF-8 become U+FFFD, every control
// character \u00xx.
void json_bytes(JsonWriter *w, const char *name, const char *text, size_t bytes);
// With at most this many significant digits, or JSON_EXACT: as few as read back as the same bits.
// null if the value is not finite.
enum { JSON_EXACT = 0 };
void json_number(JsonWriter *w, const char *name, double value, int digits);
void json_whole(JsonWriter *w, const char *name, int64_t value);
void json_bool(JsonWriter *w, const char *name, bool value);
void json_raw(JsonWriter *w, const char *name, const char *json); // JSON already

// A number with as few digits as read back as the same bits: "500000", "0.1", "1e-05", "inf".
ShortText number_text(double value);
ShortText digits_text(uint64_t value); // "18446744073709551615"
ShortText hex_text(uint64_t value);    // "00000000000000ff"
