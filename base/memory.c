#define _GNU_SOURCE // vasprintf
#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *checked(void *memory, size_t bytes) {
  if (memory) return memory;
  fprintf(stderr,
          "out of memory: the system refused %zu bytes; use a smaller model, batch or file\n",
          bytes);
  exit(1);
}

void *xmalloc(size_t bytes) {
  return checked(malloc(bytes ? bytes : 1), bytes);
}

void *xcalloc(size_t count, size_t size) {
  return checked(calloc(count ? count : 1, size ? size : 1), count * size);
}

void *xrealloc(void *old, size_t bytes) {
  return checked(realloc(old, bytes ? bytes : 1), bytes);
}

char *xstrdup(const char *text) {
  const size_t bytes = strlen(text) + 1;
  return memcpy(xmalloc(bytes), text, bytes);
}

char *xasprintf(const char *format, ...) {
  char *text = NULL;
  va_list args;
  va_start(args, format);
  const int length = vasprintf(&text, format, args);
  va_end(args);
  return checked(length < 0 ? NULL : text, strlen(format));
}

SizeText size_text(size_t bytes) {
  static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes;
  int u = 0;
  while (value >= 1024 && u < 6) value /= 1024, u++;
  SizeText s;
  snprintf(s.text, sizeof s.text, "%.*f %s", u > 0 ? 2 : 0, value, unit[u]);
  return s;
}
