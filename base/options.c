#include "base/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Sets the number and returns true if the text is one in the range.
static bool read_number(const Option *o, const char *value) {
  char *end;
  errno = 0;
  const int64_t whole = o->whole ? strtoll(value, &end, 10) : 0;
  const double x = o->whole ? (double)whole : strtod(value, &end);
  if (end == value || *end != '\0' || errno != 0 || !(x >= o->low && x <= o->high)) return false;
  if (o->whole)
    *o->whole = whole;
  else
    *o->number = x;
  return true;
}

static int read_value(const Option *o, const char *value, Error *err) {
  if (o->text) {
    if (!value) return error_set(err, "%s needs %s", o->name, o->needs);
    *o->text = value;
    return 0;
  }
  if (value && read_number(o, value)) return 0;
  return error_set(err, "%s needs a %snumber from %.16g to %.16g, not '%.100s'", o->name,
                   o->whole ? "whole " : "", o->low, o->high, value ? value : "");
}

int option_read(const Option *list, int count, const char *command, int argc, char *const *argv,
                int *at, Error *err) {
  enum { MOST_OPTIONS = 16 };
  const char *name = argv[*at], *near, *names[MOST_OPTIONS];
  const size_t length = strcspn(name, "=");
  const bool joined = name[length] == '=';
  char all[256] = "", alone[101];
  for (int i = 0; i < count; i++) {
    const size_t used = strlen(all);
    snprintf(all + used, sizeof all - used, "%s %s", i > 0 ? "," : "", list[i].name);
    names[i] = list[i].name;
    if (strlen(list[i].name) != length || strncmp(name, list[i].name, length) != 0) continue;
    if (list[i].flag && joined) return error_set(err, "%s takes no value", list[i].name);
    if (list[i].flag) {
      *list[i].flag = true;
      return 0;
    }
    if (!joined) *at += 1;
    const char *next = *at < argc ? argv[*at] : NULL;
    return read_value(&list[i], joined ? name + length + 1 : next, err);
  }
  snprintf(alone, sizeof alone, "%.*s", (int)length, name);
  if ((near = nearest_name(alone, names, count)))
    return error_set(err, "unknown option '%s' of %s; did you mean %s?", alone, command, near);
  return error_set(err, "unknown option '%s' of %s; there are%s", alone, command, all);
}
