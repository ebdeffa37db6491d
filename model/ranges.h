// How forward.c and backward.c call an operation: by name, inside its range on a profiler's time
// line, which names the kernel kind ("gate_up (fused)"). For a bench the backend marks the time.
#pragma once
#include "base/range.h"
#include "model/llama.h"

void operation_begin(const Llama *llama, Operation operation);
void operation_end(const Llama *llama);
void layer_begin(const Llama *llama, int64_t l);
void layer_end(const Llama *llama);

// Calls be->name(be, ...).
#define RUN(llama, name, ...)                                                                      \
  do {                                                                                             \
    operation_begin((llama), OP_##name);                                                           \
    (llama)->be->name((llama)->be, __VA_ARGS__);                                                   \
    operation_end(llama);                                                                          \
  } while (0)
