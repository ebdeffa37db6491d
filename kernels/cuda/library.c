#include "kernels/cuda/library.h"

#include <dlfcn.h>
#include <string.h>

const char *library_functions(void *library, const LibraryFunction *list, size_t count,
                              void *functions) {
  for (size_t i = 0; i < count; i++) {
    void *address = dlsym(library, list[i].name);
    if (!address) return list[i].name;
    memcpy((char *)functions + list[i].offset, &address, sizeof address);
  }
  return NULL;
}
