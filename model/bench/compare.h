// Do fused, unfused and fp32 agree? Every operation of a bench once on the same inputs with each.
#pragma once
#include "model/bench/report.h"
#include "model/llama.h"

// Fills in the differences of result's operations, on few rows, so that the CPU's share takes
// seconds, and fails where one is too large to be rounding: what computes something else need not
// be timed. Overwrites activations and gradients, not weights. Comes before any step: the update's
// own tables are built for another list of parameters here.
int bench_compare(BenchResult *result, Llama *const gpu[BENCH_KINDS], int threads, Error *err);
