#include "base/error.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
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

const char *errno_text(void) {
  return errno == EMFILE ? "too many files are open (allow more: ulimit -n)" : strerror(errno);
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

static bool separates(char c) {
  return c == '-' || c == '_';
}

// Both stand where a word begins, or before its separators.
static bool abbreviates(const char *name, const char *full) {
  while (separates(*name)) name++;
  while (separates(*full)) full++;
  if (*name == '\0' || *full == '\0') return *name == '\0';
  const char *next = full;
  while (*next && !separates(*next)) next++;
  for (int i = 0; full + i < next && name[i] == full[i]; i++)
    if (abbreviates(name + i + 1, next)) return true;
  return false;
}

static bool begins(const char *name, const char *full) {
  return strncmp(name, full, strlen(name)) == 0;
}

// The nearest of the names that `fits` accepts (all where it is NULL), at less than `limit` edits.
static const char *nearest_of(const char *name, const char *const *names, int count,
                              bool (*fits)(const char *, const char *), int limit) {
  const char *best = NULL;
  for (int i = 0; i < count; i++) {
    const int distance = edit_distance(name, names[i]);
    if (distance >= limit || (fits && !fits(name, names[i]))) continue;
    limit = distance;
    best = names[i];
  }
  return best;
}

const char *nearest_name(const char *name, const char *const *names, int count) {
  const char *best = NULL;
  if (name[strspn(name, "-_")] != '\0') { // it has letters
    best = nearest_of(name, names, count, begins, INT_MAX);
    if (!best) best = nearest_of(name, names, count, abbreviates, INT_MAX);
  }
  return best ? best : nearest_of(name, names, count, NULL, (int)strlen(name) / 3 + 2);
}
