// Lines of JSON: the document in one of them.
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/prepare/corpus.h"

int jsonl_text(char *line, size_t bytes, const char *field, Span *text, Error *err) {
  char *const path = xstrdup(field);
  JsonScan s = {.at = line, .end = line + bytes, .halves = true, .nuls = true};
  JsonMember member = {.value = s};
  bool good = true;
  for (char *name = path, *dot; good && name && member.value.at; name = dot) {
    dot = strchr(name, '.');
    if (dot) *dot++ = '\0';
    s = member.value;
    good = json_members(&s, (const char *const[]){name}, 1, &member) &&
           (name != path || json_take_end(&s));
  }
  free(path);
  if (!good) return json_line_error(&s, line, err);
  *text = member.string;
  if (text->text) return 0;
  return error_set(err,
                   "has no \"%s\" string, as in {\"%s\": \"...\"}; --field names another field",
                   field, field);
}
