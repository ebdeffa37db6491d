// Any bytes: the parser either refuses them with a sentence or gives tensors that can all be read.
#include <assert.h>

#include "data/safetensors.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
  Error err = {""};
  SafeFile file;
  fuzz_write("fuzzed", bytes, count);
  if (safetensors_open(&file, path_text("%s/fuzzed", fuzz_folder()).text, &err) != 0) {
    assert(err.text[0] != '\0' && file.tensors == NULL && file.count == 0);
    return 0;
  }
  uint64_t total = 0;
  for (int i = 0; i < file.count; i++) {
    const SafeTensor *t = &file.tensors[i];
    assert(safetensors_find(&file, t->name) == t);
    assert(t->begin == total && file.start + t->end <= count);
    total = t->end;
    float value;
    int64_t elements = 1;
    for (int j = 0; j < t->rank; j++) elements *= t->shape[j];
    const bool floats = t->dtype == SAFE_F32 || t->dtype == SAFE_BF16 || t->dtype == SAFE_F16;
    if (floats && elements > 0)
      safetensors_floats(t->dtype, bytes + file.start + t->end - safetensors_element(t->dtype), 1,
                         &value);
  }
  assert(file.start + total == count);
  safetensors_close(&file);
  return 0;
}
