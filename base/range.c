#include "base/range.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>

// What they return is the depth, or that no profiler is there: nothing to act on.
void range_push(const char *name) {
  (void)nvtxRangePushA(name);
}

void range_push_number(const char *name, int64_t number) {
  char text[64];
  snprintf(text, sizeof text, "%s %lld", name, (long long)number);
  range_push(text);
}

void range_pop(void) {
  (void)nvtxRangePop();
}

#else

void range_push(const char *name) {
  (void)name;
}

void range_push_number(const char *name, int64_t number) {
  (void)name;
  (void)number;
}

void range_pop(void) {}

#endif
