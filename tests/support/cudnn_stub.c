// A library that says it is cuDNN 8.
#include <stddef.h>

__attribute__((visibility("default"))) size_t cudnnGetVersion(void);

size_t cudnnGetVersion(void) {
  return 8907;
}
