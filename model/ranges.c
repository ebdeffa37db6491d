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

void operation_begin(const Llama *llama, Operation operation) {
  Backend *be = llama->be;
  range_push(range_name(operation, be->kinds[operation]));
  if (be->observed >= OBSERVE_OPERATIONS) be->services.mark(be, operation);
}

void operation_end(const Llama *llama) {
  Backend *be = llama->be;
  if (be->observed >= OBSERVE_OPERATIONS) be->services.mark(be, MARK_END);
  range_pop();
}

void layer_begin(const Llama *llama, int64_t l) {
  Backend *be = llama->be;
  range_push_number("layer", l);
  if (be->observed) be->services.mark(be, MARK_LAYER);
}

void layer_end(const Llama *llama) {
  Backend *be = llama->be;
  if (be->observed) be->services.mark(be, MARK_LAYER_END);
  range_pop();
}
