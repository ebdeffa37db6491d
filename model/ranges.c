#include "model/ranges.h"

#include "base/range.h"

// By operation and kind, so that a step formats no text.
static const char *range_name(Operation operation, KernelKind kind) {
#define OP(name, ...)                                                                              \
  {[KERNEL_CPU] = #name " (cpu)",                                                                  \
   [KERNEL_UNFUSED] = #name " (unfused)",                                                          \
   [KERNEL_FUSED] = #name " (fused)"},
  static const char *const names[OPERATION_COUNT][KERNEL_FUSED + 1] = {
#include "kernels/ops.def"
  };
#undef OP
  return names[operation][kind];
}

bool operation_begin(const Llama *llama, Operation operation) {
  Backend *be = llama->be;
  if (llama->left_out >> operation & 1) return false;
  be->operation = operation;
  part_begin(llama, range_name(operation, be->kinds[operation]), -1);
  return true;
}

void part_begin(const Llama *llama, const char *name, int64_t number) {
  if (llama->be->silent) return;
  if (number < 0)
    range_push(name);
  else
    range_push_number(name, number);
}

void part_end(const Llama *llama) {
  if (!llama->be->silent) range_pop();
}
