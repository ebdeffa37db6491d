// A line on standard error that says how far a long piece of work is, once it has taken a second.
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct Progress {
  double start, shown; // seconds; shown = 0 until the first line
  bool terminal;       // the line is drawn over itself
} Progress;

Progress progress_begin(void);
// done of total; total = 0: nobody knows. text_bytes: what the MB/s are of, or 0.
void progress_show(Progress *progress, uint64_t done, uint64_t total, uint64_t text_bytes);
void progress_end(const Progress *progress); // takes the line away
