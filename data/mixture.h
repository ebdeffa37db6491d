// What data.train may be: a path, or a JSON list of paths, which are one source of windows; or a
// list of {"path": ..., "weight": ...}, each of which is a source with its share of the windows.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

enum { MOST_SOURCES = 64 };

typedef struct MixtureSource {
  char **paths; // [count]: a path, a glob or a folder each
  int count;
  double weight; // the shares of all sources have the sum 1
} MixtureSource;

typedef struct Mixture {
  MixtureSource sources[MOST_SOURCES];
  int count;
} Mixture;

// Whether the text is meant as a list: it begins with [" or [{, white space aside.
bool mixture_is_list(const char *text);
int mixture_parse(Mixture *mixture, const char *text, Error *err);
void mixture_free(Mixture *mixture); // zeros are fine

// Windows that were drawn since the weights hold: of each source, and in all.
typedef struct Draws {
  uint64_t of[MOST_SOURCES], total;
} Draws;

// The source of the next window: of those that are behind their share, counting the window to come,
// the one whose next window is due first. So after each draw, of[i] differs from its share of the
// total by less than 1.
int mixture_next(const double *weights, int count, const Draws *draws);
