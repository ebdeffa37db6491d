#include "base/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

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
