#include "base/choices.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
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

char *choices_read(const char *path, const char *first) {
  char *text;
  size_t bytes;
  Error ignored;
  if (!path_exists(path) || file_read(path, MAX_FILE_BYTES, &text, &bytes, &ignored)) return NULL;
  const char *lines = strlen(text) == bytes ? verified_lines(text, first) : NULL;
  char *copy = lines ? xstrdup(lines) : NULL;
  free(text);
  return copy;
}

int choices_write(const char *path, const char *first, const char *lines, Error *err) {
  if (directory_create(path_parent(path).text, err)) return -1;
  char *body = xasprintf("%s%s", first, lines);
  char *text = xasprintf("%schecksum %" PRIx64 "\n", body, checksum(body, strlen(body)));
  const int status = file_write_atomic(path, text, strlen(text), err);
  free(body);
  free(text);
  return status;
}
