#include "kernels/cuda/choices.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

// FNV-1a
static uint64_t checksum(const char *text, size_t bytes) {
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < bytes; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
  return h;
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
  if (checksum(text, strlen(text)) != expected) return NULL;
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
                 .lines = path ? read_lines(path, first) : xstrdup("")};
}

static void forget_kept(Choices *c) {
  for (int i = 0; i < c->kept_count; i++) free(c->kept[i]);
  free(c->kept);
  c->kept = NULL;
  c->kept_count = 0;
}

void choices_close(Choices *c) {
  forget_kept(c);
  free(c->path);
  free(c->first);
  free(c->lines);
  *c = (Choices){.path = NULL};
}

// Ends a question, which may be the beginning of another.
static const char separator[] = " = ";
enum { SEPARATOR = sizeof separator - 1 };

// The question's line, NULL where there is none.
static char *find_line(char *lines, const char *question) {
  const size_t length = strlen(question);
  for (char *line = lines; *line; line = strchr(line, '\n') + 1)
    if (strncmp(line, question, length) == 0 && strncmp(line + length, separator, SEPARATOR) == 0)
      return line;
  return NULL;
}

const char *choices_find(const Choices *c, const char *question) {
  const char *line = find_line(c->lines, question);
  return line ? line + strlen(question) + SEPARATOR : NULL;
}

// The lines with this answer, in fresh memory; `text` is freed.
static char *with_answer(char *text, const char *question, const char *answer) {
  char *known = find_line(text, question);
  if (known) {
    const char *next = strchr(known, '\n') + 1;
    memmove(known, next, strlen(next) + 1);
  }
  char *lines = xasprintf("%s%s%s%s\n", text, question, separator, answer);
  free(text);
  return lines;
}

void choices_keep(Choices *c, const char *question, const char *answer) {
  c->lines = with_answer(c->lines, question, answer);
  c->kept = xrealloc(c->kept, (size_t)(c->kept_count + 1) * sizeof *c->kept);
  c->kept[c->kept_count++] = xstrdup(question);
}

// The file's lines as they are now, and our answers to the questions that were asked here.
static void add_others(Choices *c) {
  char *lines = read_lines(c->path, c->first);
  for (int i = 0; i < c->kept_count; i++) {
    const char *answer = choices_find(c, c->kept[i]);
    char *line = xasprintf("%.*s", (int)strcspn(answer, "\n"), answer);
    lines = with_answer(lines, c->kept[i], line);
    free(line);
  }
  free(c->lines);
  c->lines = lines;
}

void choices_save(Choices *c) {
  if (!c->path || c->kept_count == 0) return;
  add_others(c);
  forget_kept(c);
  char *body = xasprintf("%s%s", c->first, c->lines);
  char *text = xasprintf("%schecksum %" PRIx64 "\n", body, checksum(body, strlen(body)));
  Error ignored;
  if (directory_create(path_parent(c->path).text, &ignored) == 0)
    (void)file_write_atomic(c->path, text, strlen(text), &ignored);
  free(body);
  free(text);
}
