#define _GNU_SOURCE // CLOCK_BOOTTIME
#include "base/phases.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

static void add(Phases *p, const char *name, double ms) {
  if (p->count < MAX_PHASES) p->list[p->count++] = (PhaseTime){name, ms};
}

void phase_end(Phases *p, const char *name) {
  const double now = now_ms();
  if (p->count == MAX_PHASES) return;
  add(p, name, now - p->since_ms);
  p->since_ms = now;
}

void phases_join(Phases *p, const Phases *inner, const char *name) {
  const double known = phases_sum(inner);
  for (int i = 0; i < inner->count; i++) add(p, inner->list[i].name, inner->list[i].ms);
  p->since_ms += known;
  phase_end(p, name);
}

double phases_sum(const Phases *p) {
  double ms = 0;
  for (int i = 0; i < p->count; i++) ms += p->list[i].ms;
  return ms;
}

// /proc/self/stat: the 22nd number is the start in clock ticks since the machine's. The second, in
// parentheses, is the program's name, which may hold spaces.
double process_began_ms(void) {
  char text[1024];
  unsigned long long ticks;
  struct timespec t;
  FILE *in = fopen("/proc/self/stat", "r");
  const size_t bytes = in ? fread(text, 1, sizeof text - 1, in) : 0;
  if (in) fclose(in);
  text[bytes] = '\0';
  const char *rest = strrchr(text, ')');
  const double now = now_ms(), per_second = (double)sysconf(_SC_CLK_TCK);
  if (!rest || per_second <= 0 || clock_gettime(CLOCK_BOOTTIME, &t) != 0 ||
      sscanf(rest + 1,
             " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
             &ticks) != 1)
    return now;
  const double age =
      (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6 - (double)ticks / per_second * 1e3;
  return age > 0 ? now - age : now;
}
