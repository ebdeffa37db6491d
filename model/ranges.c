#include "model/ranges.h"

// By operation and kind, so that a step makes no text.
#define NAMES(enumerator, name)                                                                    \
  [OP_##enumerator] = {[KERNEL_CPU] = name " (cpu)",                                               \
                       [KERNEL_UNFUSED] = name " (unfused)",                                       \
                       [KERNEL_FUSED] = name " (fused)"},
static const char *const names[OPERATION_COUNT][KERNEL_FUSED + 1] = {OPERATIONS(NAMES)};

const char *operation_range(const Backend *be, Operation operation) {
  return names[operation][be->kinds[operation]];
}
