// Two kinds of blocks in one launch: each keeps its own order, and both end together.
#pragma once
#include <stdbool.h>
#include <stdint.h>

// The place in a launch of `all` blocks of block k of its kind, which has `kind` of them, spread
// evenly. `first`: of the kind that the launch starts with. Alone, a kind has places 0, 1, 2 ...
static inline int64_t interleaved_place(bool first, int64_t k, int64_t kind, int64_t all) {
  return first ? k * all / kind : ((k + 1) * all - 1) / kind;
}
