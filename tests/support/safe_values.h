// Values of safetensors files in memory, which need no checksums.
#pragma once
#include "base/memory.h"
#include "data/safetensors.h"
#include "tests/support/test.h"

// Reads the whole file; its tensors' data can be looked at until safetensors_close.
static inline void safe_open(SafeFile *file, const char *path) {
  Error err = {""};
  char *bytes;
  size_t count;
  if (file_read(path, SIZE_MAX, &bytes, &count, &err) != 0 ||
      safetensors_parse(file, path, (unsigned char *)bytes, count, &err) != 0)
    fail_msg("%s", err.text);
  file->header = (unsigned char *)bytes; // which safetensors_close frees
}

static inline void safe_floats(const SafeTensor *t, int64_t first, int64_t count, float *values) {
  safetensors_floats(t->dtype, t->data + (uint64_t)first * safetensors_element(t->dtype), count,
                     values);
}
