#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int error_set(Error *err, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(err->text, sizeof err->text, format, args);
  va_end(args);
  return -1;
}

int error_append(Error *err, const char *format, ...) {
  const size_t used = strlen(err->text);
  va_list args;
  va_start(args, format);
  vsnprintf(err->text + used, sizeof err->text - used, format, args);
  va_end(args);
  return -1;
}

int error_prefix(Error *err, const char *format, ...) {
  const Error inner = *err;
  va_list args;
  va_start(args, format);
  vsnprintf(err->text, sizeof err->text / 2, format, args);
  va_end(args);
  return error_append(err, ": %.1000s", inner.text);
}

// Levenshtein distance, one row at a time; names longer than the row are taken as far apart.
static int edit_distance(const char *a, const char *b) {
  enum { MAX_NAME = 127 };
  const int la = (int)strlen(a), lb = (int)strlen(b);
  if (la > MAX_NAME || lb > MAX_NAME) return MAX_NAME;
  int row[MAX_NAME + 1];
  for (int j = 0; j <= lb; j++) row[j] = j;
  for (int i = 1; i <= la; i++) {
    int diagonal = row[0];
    row[0] = i;
    for (int j = 1; j <= lb; j++) {
      const int replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      int best = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
      row[j] = replaced < best ? replaced : best;
    }
  }
  return row[lb];
}

const char *nearest_name(const char *name, const char *const *names, int count) {
  const char *best = NULL;
  int best_distance = (int)strlen(name) / 3 + 2;
  for (int i = 0; i < count; i++) {
    const int distance = edit_distance(name, names[i]);
    if (distance < best_distance) {
      best_distance = distance;
      best = names[i];
    }
  }
  return best;
}
