// Options of a command line that take a value: --name VALUE.
#pragma once
#include "base/error.h"

// A number in a range, or, where `text` is not NULL, a text.
typedef struct Option {
  const char *name;  // "--tokens"
  const char *needs; // of a text: "a file to write to"
  double low, high, *number;
  const char **text;
} Option;

// Reads the option argv[*at] of `command` ("--bench") and its value, and moves *at to the value.
// The sentence for a name that is not in the list says which one may be meant.
int option_read(const Option *list, int count, const char *command, int argc, char *const *argv,
                int *at, Error *err);
