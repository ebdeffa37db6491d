// Where the GPU's time in one step went, from what it did in it (kernels/activity.h).
#pragma once
#include <stdio.h>
#include "kernels/activity.h"

typedef struct BreakdownPart {
  double ms;
  int64_t count;
} BreakdownPart;

typedef struct BreakdownKernel {
  ActivityLabel label;
  ActivityGroup group;
  BreakdownPart part; // ms: the sum of its durations
} BreakdownKernel;

typedef struct Breakdown {
  double step_ms;        // the traced step as the host saw it
  double other_steps_ms; // mean of those before it that were not traced; NAN: there were none
  double gpu_ms;  // from the first kernel's, copy's or memset's beginning to the last one's end
  double gaps_ms; // of that: nothing ran
  // Where two overlap the time counts for the one that began first: the groups and the gaps add up
  // to gpu_ms.
  BreakdownPart groups[GROUP_COUNT];
  BreakdownKernel *kernels; // by time, the longest first; copies and memsets are two of them
  int kernel_count;
  int64_t lost; // activities of which nothing is known
} Breakdown;

// Sums up everything but step_ms and other_steps_ms, which stay as they are.
void breakdown_make(Breakdown *b, const Activities *activities);
void breakdown_free(Breakdown *b);
// A heading, and a line for each group and the gaps, with the longest kernels beside them.
void breakdown_print(const Breakdown *b, int64_t step, int64_t steps, FILE *out);
