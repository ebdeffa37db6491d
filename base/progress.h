// A line on standard error that says how far a long piece of work is, once it has taken a second.
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct Progress {
  const char *unit;    // that amounts are told in: "MB"
  double in_unit;      // of what progress_show counts: 1e6 bytes
  double start, shown; // seconds; shown = 0 until the first line
  bool terminal;       // the line is drawn over itself
} Progress;

Progress progress_begin(const char *unit, double in_unit);
// done of total; total = 0: nobody knows. amount: what was worked on so far, or 0: not told.
void progress_show(Progress *progress, uint64_t done, uint64_t total, uint64_t amount);
void progress_end(const Progress *progress); // takes the line away
