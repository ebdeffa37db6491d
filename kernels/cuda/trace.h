// Everything the GPU does between trace_begin and trace_end, by CUPTI's activity records. Kernels
// of a graph that is replayed have records of their own. Outside CUPTI records nothing.
#pragma once
#include "base/error.h"
#include "kernels/activity.h"

typedef struct Trace Trace;

// Loads CUPTI (as cupti_open in cupti_api.h does) and tries whether it can record. One trace can be
// open in a process at a time. NULL with a sentence where it cannot.
Trace *trace_open(const char *library, int cuda_major, Error *err);
void trace_close(Trace *trace); // NULL: nothing

// The GPU must be at rest at both. After an error nothing is recorded.
int trace_begin(Trace *trace, Error *err);
// Valid until the next trace_begin or trace_close.
int trace_end(Trace *trace, Activities *activities, Error *err);
