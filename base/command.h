// The command line: its options, the commands that a program prints, and its progress.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

// An option is --name VALUE or --name=VALUE; a flag has no value. Sets the one pointer of the four
// that is not NULL. Numbers lie in a range.
typedef struct Option {
  const char *name;  // "--tokens"
  const char *needs; // of a text: "a file to write to"
  double low, high, *number;
  const char **text;
  int64_t *whole; // high: JSON_MAX_INTEGER at most
  bool *flag;
} Option;

// Reads the option argv[*at] of `command` ("--bench") and its value, and moves *at to the last
// argument that it read. The sentence for an unknown name suggests the likeliest one.
int option_read(const Option *list, int count, const char *command, int argc, char *const *argv,
                int *at, Error *err);

// A word of a command that a program prints, as the shell reads it back, in fresh memory: itself
// where nothing in it is special to a shell, else in single quotes.
char *shell_word(const char *text);

// A line on standard error that shows the progress of a long piece of work, after its first second.
typedef struct Progress {
  const char *unit;    // of amounts: "MB"
  double in_unit;      // in progress_show's counts: 1e6 bytes
  double start, shown; // seconds; shown = 0 until the first line
  bool terminal;       // the line is drawn over itself
} Progress;

Progress progress_begin(const char *unit, double in_unit);
// done of total; total = 0: unknown. amount: the work so far; 0: not shown.
void progress_show(Progress *progress, uint64_t done, uint64_t total, uint64_t amount);
void progress_end(const Progress *progress); // erases the line
