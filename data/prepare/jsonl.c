// Lines of JSON: the document in one of them.
#include <string.h>

#include "base/json.h"
#include "data/prepare/corpus.h"

typedef struct Line {
  JsonScan scan;
  bool found, twice; // the wanted field
  char *text;
  size_t bytes;
} Line;

static bool read_object(Line *l, const char *field);

// The value of a key that the field begins with; `rest` is the field behind it, or NULL.
static bool read_wanted(Line *l, const char *rest) {
  if (rest && json_take(&l->scan, '{')) return read_object(l, rest);
  if (rest || !json_take(&l->scan, '"')) return json_skip(&l->scan);
  l->scan.at--;
  l->found = json_take_string(&l->scan, &l->text, &l->bytes);
  return l->found;
}

// Behind the opening brace. field: the key to look for.
static bool read_object(Line *l, const char *field) {
  const char *dot = strchr(field, '.');
  const size_t wanted = dot ? (size_t)(dot - field) : strlen(field);
  JsonScan *s = &l->scan;
  bool seen = false;
  if (json_take(s, '}')) return true;
  do {
    char *key;
    size_t bytes;
    if (!json_take_key(s, &key, &bytes)) return false;
    const bool here = bytes == wanted && memcmp(key, field, bytes) == 0;
    if (here ? !read_wanted(l, dot ? dot + 1 : NULL) : !json_skip(s)) return false;
    l->twice |= here && seen;
    seen |= here;
  } while (json_take(s, ','));
  return json_take(s, '}') || json_wrong(s, "a comma or } is missing");
}

int jsonl_text(char *line, size_t bytes, const char *field, char **text, size_t *text_bytes,
               Error *err) {
  Line l = {.scan = {.at = line, .end = line + bytes, .halves = true, .nuls = true}};
  const bool object = json_take(&l.scan, '{');
  if (!(object ? read_object(&l, field) : json_skip(&l.scan)) || !json_take_end(&l.scan))
    return error_set(err, "is not JSON: it goes wrong at column %zu: %s",
                     (size_t)(l.scan.at - line) + 1, l.scan.problem);
  if (l.twice) return error_set(err, "has \"%s\" twice; keep one of them", field);
  *text = l.text;
  *text_bytes = l.bytes;
  if (l.found) return 0;
  return error_set(err,
                   "has no \"%s\" string: each line must be an object such as {\"%s\": \"...\"}; "
                   "--field names another field",
                   field, field);
}
