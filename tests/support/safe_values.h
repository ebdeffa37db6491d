// Values of whole safetensors files, which need no checksums.
#pragma once
#include "base/memory.h"
#include "data/safetensors.h"
#include "tests/support/test.h"

// Reads the whole file; its tensors' data can be looked at until safetensors_close.
static inline void safe_open(SafeFile *file, const char *path) {
  Error err = {""};
  char *bytes;
  size_t count;
  if (safetensors_open(file, path, &err) != 0 ||
      file_read(path, SIZE_MAX, &bytes, &count, &err) != 0)
    fail_msg("%s", err.text);
  free(file->header);
  file->header = (unsigned char *)bytes; // which safetensors_close frees
}

static inline const unsigned char *safe_data(const SafeFile *file, const SafeTensor *t) {
  return file->header + file->start + t->begin;
}

static inline void safe_floats(const SafeFile *file, const SafeTensor *t, int64_t first,
                               int64_t count, float *values) {
  const unsigned char *from = safe_data(file, t) + (uint64_t)first * safetensors_element(t->dtype);
  safetensors_floats(t->dtype, from, count, values);
}
