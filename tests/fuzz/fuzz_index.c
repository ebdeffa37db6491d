// Arbitrary bytes as model.safetensors.index.json: refused with a sentence, or names of files that
// lie in the index's own folder, each once.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/checkpoint/files.h"

static void check(int holds) {
  if (!holds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  ShardNames shards;
  Error err = {""};
  char *json = xmalloc(size + 1); // exactly as large, so that ASan sees a byte too far
  memcpy(json, data, size);
  json[size] = '\0';
  if (shard_names_parse(&shards, "fuzz", json, size, &err) != 0) {
    check(err.text[0] != '\0' && shards.count == 0);
  } else {
    check(shards.count > 0);
    for (int i = 0; i < shards.count; i++) {
      check(shards.names[i][0] != '\0' && !strchr(shards.names[i], '/'));
      check(i == 0 || strcmp(shards.names[i - 1], shards.names[i]) < 0);
    }
  }
  shard_names_free(&shards);
  free(json);
  return 0;
}
