#include "base/range.h"

#include "base/memory.h"
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else
#define nvtxRangePushA(name) (name)
#define nvtxRangePop() 0
#endif

// They return the depth, or a code for "no profiler": no errors.
void range_push(const char *name) {
  (void)nvtxRangePushA(name);
}

void range_push_number(const char *name, int64_t number) {
  range_push(short_text("%s %lld", name, (long long)number).text);
}

void range_pop(void) {
  (void)nvtxRangePop();
}
