// A file that remembers what was fastest. Text: a line that names what it holds for (GPU, driver,
// library), one line a choice, and a checksum of all before it. A file that differs in the first
// line or in the checksum counts as empty.
#pragma once
#include <stddef.h>
#include "base/error.h"

// ${XDG_CACHE_HOME:-~/.cache}/coda/KIND-GPU-DRIVER-LIBRARY.txt in fresh memory, or NULL where there
// is no home. What is neither letter nor digit in the GPU's name becomes '-'.
char *choices_path(const char *kind, const char *gpu, int driver, size_t library);

// The lines between the first, which is `first` with its newline, and the checksum, in fresh
// memory; NULL where there is nothing to be had, which is never an error.
char *choices_read(const char *path, const char *first);

// Writes a file of these lines, atomically, and its folder where that is missing.
int choices_write(const char *path, const char *first, const char *lines, Error *err);
