// Options of a command line: --name VALUE or --name=VALUE, and flags, which have no value.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

// Sets the one of the four that is not NULL. Numbers lie in a range.
typedef struct Option {
  const char *name;  // "--tokens"
  const char *needs; // of a text: "a file to write to"
  double low, high, *number;
  const char **text;
  int64_t *whole; // high: JSON_MAX_INTEGER at most
  bool *flag;
} Option;

// Reads the option argv[*at] of `command` ("--bench") and its value, and moves *at to the last
// argument that it took. The sentence for a name that is not in the list says which one may be
// meant.
int option_read(const Option *list, int count, const char *command, int argc, char *const *argv,
                int *at, Error *err);
