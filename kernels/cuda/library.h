// Functions of a library that is loaded at run time.
#pragma once
#include <stddef.h>

typedef struct LibraryFunction {
  const char *name;
  size_t offset; // of the pointer to it in `functions`
} LibraryFunction;

// Writes the addresses of all in `list` into the struct `functions`. NULL, or the name of the first
// that the library (dlopen's) does not have; its pointer and those after it stay as they are.
const char *library_functions(void *library, const LibraryFunction *list, size_t count,
                              void *functions);
