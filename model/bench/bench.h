// ./train --bench: what fusing buys on this machine's GPU, operation by operation, for layers, and
// for the whole step.
#pragma once
#include "kernels/operations.h"
#include "model/config/config.h"

typedef struct BenchArgs {
  const char *config;
  const char *json; // NULL: the tables alone
  Operation only;   // OPERATION_COUNT: all, and layers and steps
  double seconds;   // of measuring; 0: as many as usual
  int override_count;
  char **overrides;
} BenchArgs;

// What follows --bench on the command line; argv is reordered.
int bench_parse(BenchArgs *args, int argc, char **argv, Error *err);
// Measures, prints, and writes the file.
int bench_run(const BenchArgs *args, Error *err);
