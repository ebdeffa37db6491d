// Arbitrary bytes as model.safetensors.index.json: refused with a sentence, or names of files that
// lie in the index's own folder, each once.
#undef NDEBUG
#include <assert.h>

#include "model/run/checkpoint/files.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  ShardNames shards;
  Error err = {""};
  fuzz_write(WEIGHTS_INDEX_FILE, bytes, size);
  if (shard_names_read(&shards, fuzz_folder(), &err) != 0) {
    assert(err.text[0] != '\0' && shards.count == 0);
    return 0;
  }
  assert(shards.count > 0);
  for (int i = 0; i < shards.count; i++) {
    assert(shards.names[i][0] != '\0' && !strchr(shards.names[i], '/'));
    for (int j = 0; j < i; j++) assert(strcmp(shards.names[j], shards.names[i]) != 0);
  }
  shard_names_free(&shards);
  return 0;
}
