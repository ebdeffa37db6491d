// How forward.c and backward.c call an operation: by name, inside its range on a profiler's time
// line. The range says what runs it: "gate_up (fused)".
#pragma once
#include "base/range.h"
#include "model/llama.h"

const char *operation_name(Operation operation);

// False where the operation is left out. Else tells the backend which one it is, and opens its
// range.
bool operation_begin(const Llama *llama, Operation operation);

#define RUN(llama, operation, call)                                                                \
  do {                                                                                             \
    if (!operation_begin((llama), (operation))) break;                                             \
    call;                                                                                          \
    range_pop();                                                                                   \
  } while (0)
