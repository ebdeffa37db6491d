#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void out_of_memory(size_t bytes) {
  fprintf(stderr,
          "out of memory: the system refused %zu bytes; use a smaller model, batch or file\n",
          bytes);
  exit(1);
}

void *xmalloc(size_t bytes) {
  void *p = malloc(bytes ? bytes : 1);
  if (!p) out_of_memory(bytes);
  return p;
}

void *xcalloc(size_t count, size_t size) {
  void *p = calloc(count ? count : 1, size ? size : 1);
  if (!p) out_of_memory(count * size);
  return p;
}

void *xrealloc(void *old, size_t bytes) {
  void *p = realloc(old, bytes ? bytes : 1);
  if (!p) out_of_memory(bytes);
  return p;
}

char *xstrdup(const char *text) {
  const size_t bytes = strlen(text) + 1;
  return memcpy(xmalloc(bytes), text, bytes);
}

char *xasprintf(const char *format, ...) {
  va_list args;
  va_start(args, format);
  const int length = vsnprintf(NULL, 0, format, args);
  va_end(args);
  char *text = xmalloc((size_t)length + 1);
  va_start(args, format);
  vsnprintf(text, (size_t)length + 1, format, args);
  va_end(args);
  return text;
}

SizeText size_text(size_t bytes) {
  static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  SizeText s;
  if (bytes < 1024) {
    snprintf(s.text, sizeof s.text, "%zu B", bytes);
    return s;
  }
  double value = (double)bytes / 1024;
  int u = 0;
  while (value >= 1024 && u < 5) value /= 1024, u++;
  snprintf(s.text, sizeof s.text, "%.2f %s", value, unit[u]);
  return s;
}
