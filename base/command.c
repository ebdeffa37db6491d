#include "base/command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/os.h"

// ---- Options

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

static int refuse_unknown(const Option *list, int count, const char *command, const char *name,
                          Error *err) {
  const char **names = xmalloc((size_t)count * sizeof *names);
  for (int i = 0; i < count; i++) names[i] = list[i].name;
  const char *near = nearest_name(name, names, count);
  free(names);
  error_set(err, "unknown option '%s' of %s; ", name, command);
  if (near) return error_append(err, "did you mean %s?", near);
  error_append(err, "there are");
  for (int i = 0; i < count; i++) error_append(err, "%s %s", i > 0 ? "," : "", list[i].name);
  return -1;
}

int option_read(const Option *list, int count, const char *command, int argc, char *const *argv,
                int *at, Error *err) {
  const char *name = argv[*at];
  const size_t length = strcspn(name, "=");
  const bool joined = name[length] == '=';
  for (int i = 0; i < count; i++) {
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
  return refuse_unknown(list, count, command, short_text("%.*s", (int)length, name).text, err);
}

// ---- Words for a shell

char *shell_word(const char *text) {
  static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                              "_./,:=@%+-";
  if (text[0] != '\0' && text[strspn(text, plain)] == '\0') return xstrdup(text);
  char *word = xmalloc(4 * strlen(text) + 3), *at = word;
  *at++ = '\'';
  for (; *text; text++) {
    const size_t bytes = *text == '\'' ? 4 : 1; // out of the quotes, a quote, into them again
    memcpy(at, bytes > 1 ? "'\\''" : text, bytes);
    at += bytes;
  }
  memcpy(at, "'", 2);
  return word;
}

// ---- Progress

Progress progress_begin(const char *unit, double in_unit) {
  return (Progress){.unit = unit,
                    .in_unit = in_unit,
                    .start = now_ms() / 1000,
                    .terminal = isatty(STDERR_FILENO) == 1};
}

static void show_amount(const Progress *p, double amount, double elapsed, const char *end) {
  const double rate = amount / elapsed;
  fprintf(stderr, "%.0f %s, %.*f %s/s%s", amount, p->unit, rate < 10 ? 1 : 0, rate, p->unit, end);
}

void progress_show(Progress *p, uint64_t done, uint64_t total, uint64_t amount) {
  const double now = now_ms() / 1000, elapsed = now - p->start;
  if (elapsed < 1 || now - p->shown < (p->terminal ? 0.1 : 10)) return;
  p->shown = now;
  const double part = total > 0 && done < total ? (double)done / (double)total : 1;
  enum { WIDTH = 30 };
  char bar[WIDTH + 1];
  for (int i = 0; i < WIDTH; i++) bar[i] = i < (int)(part * WIDTH) ? '#' : '.';
  bar[WIDTH] = '\0';
  if (p->terminal && total > 0) fprintf(stderr, "\r[%s] ", bar);
  if (p->terminal && total == 0) fputs("\r", stderr);
  if (total > 0) fprintf(stderr, "%3.0f %%, ", 100 * part);
  if (amount > 0) show_amount(p, (double)amount / p->in_unit, elapsed, total > 0 ? ", " : "");
  if (total > 0) fprintf(stderr, "%.0f s left", part > 0 ? elapsed * (1 - part) / part : 0);
  fputs(p->terminal ? "\033[K" : "\n", stderr);
}

void progress_end(const Progress *p) {
  if (p->terminal && p->shown > 0) fputs("\r\033[K", stderr);
}
