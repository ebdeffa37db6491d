// What data.train may be: a path, or a JSON list of paths, which are one source of windows; or a
// list of {"path": ..., "weight": ...}, each of which is a source with its share of the tokens that
// count.
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

// Windows drawn so far: in all, of each source, and of each source since the weights hold.
typedef struct Draws {
  uint64_t windows, of[MOST_SOURCES], since[MOST_SOURCES];
} Draws;

// The source of the next window: of those that are behind their share, counting the window to come,
// the one whose next window is due first. So after each draw, since[i] differs from its share of
// their sum by less than 1.
int mixture_next(const double *weights, int count, const uint64_t *since);
