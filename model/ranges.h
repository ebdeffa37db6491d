// How forward.c and backward.c call an operation: by name, inside its range on a profiler's time
// line. The range names the kernel kind: "gate_up (fused)".
#pragma once
#include "model/llama.h"

// False where the operation is skipped. Else tells the backend the operation and opens its range.
bool operation_begin(const Llama *llama, Operation operation);

// The ranges around operations: "forward", "layer 3" (a negative number is
// not printed). A silent backend gets no ranges.
void part_begin(const Llama *llama, const char *name, int64_t number);
void part_end(const Llama *llama);

// Calls be->name(be, ...).
#define RUN(llama, name, ...)                                                                      \
  do {                                                                                             \
    if (!operation_begin((llama), OP_##name)) break;                                               \
    (llama)->be->name((llama)->be, __VA_ARGS__);                                                   \
    part_end(llama);                                                                               \
  } while (0)
