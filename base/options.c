#include "base/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_value(const Option *o, const char *value, Error *err) {
  if (o->text) {
    if (!value) return error_set(err, "%s needs %s", o->name, o->needs);
    *o->text = value;
    return 0;
  }
  char *end = NULL;
  const double x = value ? strtod(value, &end) : 0;
  if (!value || end == value || *end != '\0' || !(x >= o->low && x <= o->high))
    return error_set(err, "%s needs a number from %g to %g, not '%.100s'", o->name, o->low, o->high,
                     value ? value : "");
  *o->number = x;
  return 0;
}

int option_read(const Option *list, int count, const char *command, int argc, char *const *argv,
                int *at, Error *err) {
  enum { MOST_OPTIONS = 16 };
  const char *name = argv[*at], *value = *at + 1 < argc ? argv[*at + 1] : NULL, *near;
  const char *names[MOST_OPTIONS];
  char all[256] = "";
  *at += 1;
  for (int i = 0; i < count; i++) {
    if (strcmp(name, list[i].name) == 0) return read_value(&list[i], value, err);
    const size_t used = strlen(all);
    snprintf(all + used, sizeof all - used, "%s %s", i > 0 ? "," : "", list[i].name);
    names[i] = list[i].name;
  }
  if ((near = nearest_name(name, names, count)))
    return error_set(err, "unknown option '%.100s' of %s; did you mean %s?", name, command, near);
  return error_set(err, "unknown option '%.100s' of %s; there are%s", name, command, all);
}
