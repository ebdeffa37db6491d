// The ranges of operations on a profiler's time line: their names say what runs them, "gate_up
// (fused)". forward.c, backward.c and trainer.c open the ranges around them.
#pragma once
#include "base/range.h"
#include "kernels/ops.h"

const char *operation_range(const Backend *be, Operation operation);

// Calls an operation of `be` inside its range.
#define RANGED(be, operation, call)                                                                \
  do {                                                                                             \
    range_push(operation_range(be, operation));                                                    \
    call;                                                                                          \
    range_pop();                                                                                   \
  } while (0)
