#include "kernels/cuda/choices.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"

enum { MAX_FILE_BYTES = 4 << 20 };

char *choices_path(const char *kind, const char *gpu, int driver, size_t library) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (!(cache && *cache) && !(home && *home)) return NULL;
  char *name = xstrdup(gpu);
  for (char *c = name; *c; c++)
    if (!isalnum((unsigned char)*c)) *c = '-';
  const bool set = cache && *cache;
  char *path = xasprintf("%s%s/coda/%s-%s-%d-%zu.txt", set ? cache : home, set ? "" : "/.cache",
                         kind, name, driver, library);
  free(name);
  return path;
}

// The lines in `text`, or NULL where it is not whole or not for `first`. Cuts the checksum off.
static const char *verified_lines(char *text, const char *first) {
  char *tail = strstr(text, "\nchecksum ");
  if (!tail) return NULL;
  uint64_t expected;
  int used = 0;
  if (sscanf(tail + 1, "checksum %" SCNx64 "%n", &expected, &used) != 1 ||
      strcmp(tail + 1 + used, "\n") != 0)
    return NULL;
  tail[1] = '\0';
  if (XXH3_64bits(text, strlen(text)) != expected) return NULL;
  const size_t length = strlen(first);
  return strncmp(text, first, length) == 0 ? text + length : NULL;
}

// The file's lines in fresh memory, none of a file that cannot be trusted.
static char *read_lines(const char *path, const char *first) {
  char *text;
  size_t bytes;
  Error ignored;
  if (!path_exists(path) || file_read(path, MAX_FILE_BYTES, &text, &bytes, &ignored))
    return xstrdup("");
  const char *lines = strlen(text) == bytes ? verified_lines(text, first) : NULL;
  char *copy = xstrdup(lines ? lines : "");
  free(text);
  return copy;
}

void choices_open(Choices *c, const char *path, const char *first) {
  *c = (Choices){.path = path ? xstrdup(path) : NULL,
                 .first = xstrdup(first),
                 .lines = path ? read_lines(path, first) : xstrdup(""),
                 .kept = xstrdup("")};
}

void choices_close(Choices *c) {
  free(c->path);
  free(c->first);
  free(c->lines);
  free(c->kept);
  *c = (Choices){.path = NULL};
}

// Ends a question, which may be the beginning of another.
static const char separator[] = " = ";
enum { SEPARATOR = sizeof separator - 1 };

// The line of a question of `length` characters, NULL where there is none.
static char *find_line(char *lines, const char *question, size_t length) {
  for (char *line = lines; *line; line = strchr(line, '\n') + 1)
    if (strncmp(line, question, length) == 0 && strncmp(line + length, separator, SEPARATOR) == 0)
      return line;
  return NULL;
}

const char *choices_find(const Choices *c, const char *question) {
  const size_t length = strlen(question);
  const char *line = find_line(c->kept, question, length);
  if (!line) line = find_line(c->lines, question, length);
  return line ? line + length + SEPARATOR : NULL;
}

static void remove_line(char *line) {
  const char *next = strchr(line, '\n') + 1;
  memmove(line, next, strlen(next) + 1);
}

void choices_keep(Choices *c, const char *question, const char *answer) {
  char *older = c->kept, *known = find_line(older, question, strlen(question));
  if (known) remove_line(known);
  c->kept = xasprintf("%s%s%s%s\n", older, question, separator, answer);
  free(older);
}

// The file's lines as they are now, then those that were kept here.
static char *merged_lines(const Choices *c) {
  char *lines = read_lines(c->path, c->first);
  for (const char *kept = c->kept; *kept; kept = strchr(kept, '\n') + 1) {
    char *known = find_line(lines, kept, (size_t)(strstr(kept, separator) - kept));
    if (known) remove_line(known);
  }
  char *all = xasprintf("%s%s", lines, c->kept);
  free(lines);
  return all;
}

void choices_save(Choices *c) {
  if (!c->path || !*c->kept) return;
  free(c->lines);
  c->lines = merged_lines(c);
  *c->kept = '\0';
  char *body = xasprintf("%s%s", c->first, c->lines);
  char *text =
      xasprintf("%schecksum %" PRIx64 "\n", body, (uint64_t)XXH3_64bits(body, strlen(body)));
  Error ignored;
  if (directory_create(path_parent(c->path).text, &ignored) == 0)
    (void)file_write_atomic(c->path, text, strlen(text), &ignored);
  free(body);
  free(text);
}
