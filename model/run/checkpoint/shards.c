// model.safetensors.index.json: which file of a sharded model has which tensor.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "model/run/checkpoint/files.h"

enum { INDEX_MAX_BYTES = 16 << 20, MOST_SHARDS = 4096 }; // the largest models' have 10 MB and 200

// The names in the map, each once; they stay the map's.
static int collect(ShardNames *shards, const cJSON *weight_map, Error *err) {
  if (!cJSON_IsObject(weight_map)) return error_set(err, "there is no object 'weight_map'");
  shards->names = xcalloc((size_t)cJSON_GetArraySize(weight_map) + 1, sizeof *shards->names);
  for (const cJSON *item = weight_map->child; item; item = item->next) {
    char *name = cJSON_GetStringValue(item);
    int i = 0;
    if (!name || strchr(name, '/') || strlen(name) > NAME_BYTES || name[0] == '\0')
      return error_set(err, "weight_map gives '%.200s' something that is not a file's name",
                       item->string);
    while (i < shards->count && strcmp(shards->names[i], name) != 0) i++;
    if (i == MOST_SHARDS) return error_set(err, "weight_map names more than %d files", MOST_SHARDS);
    if (i == shards->count) shards->names[shards->count++] = name;
  }
  return shards->count > 0 ? 0 : error_set(err, "weight_map is empty");
}

int shard_names_read(ShardNames *shards, const char *folder, Error *err) {
  const PathText path = path_text("%s/%s", folder, WEIGHTS_INDEX_FILE);
  cJSON *tree = json_read(path.text, INDEX_MAX_BYTES, err);
  *shards = (ShardNames){.tree = tree, .step = -1};
  if (!tree) return -1;
  // Others may mean something else by a "step", so anything but a whole number counts as none.
  const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(tree, "metadata");
  int64_t step;
  if (json_integer(cJSON_GetObjectItemCaseSensitive(metadata, "step"), &step) == 0)
    shards->step = step;
  if (collect(shards, cJSON_GetObjectItemCaseSensitive(tree, "weight_map"), err) == 0) return 0;
  shard_names_free(shards);
  return error_prefix(err, "'%s'", path.text);
}

void shard_names_free(ShardNames *shards) {
  free(shards->names);
  cJSON_Delete(shards->tree);
  *shards = (ShardNames){0};
}

// ---- Writing

int shards_plan(const TensorList *list, uint64_t most_bytes, int *first) {
  int count = 0;
  uint64_t used = 0;
  for (int i = 0; i < list->count; i++) {
    const uint64_t bytes = safetensors_bytes(&list->tensors[i]);
    if (i == 0 || used + bytes > most_bytes) {
      first[count++] = i;
      used = 0;
    }
    used += bytes;
  }
  first[count] = list->count;
  return count;
}

PathText shard_name(int i, int count) {
  if (count == 1) return path_text(WEIGHTS_FILE);
  return path_text("model-%05d-of-%05d.safetensors", i + 1, count);
}

typedef struct Entry {
  const char *name;
  int shard;
} Entry;

static int by_name(const void *a, const void *b) {
  return strcmp(((const Entry *)a)->name, ((const Entry *)b)->name);
}

char *shards_json(const TensorList *list, const int *first, int count, int64_t step) {
  Entry *entries = xcalloc((size_t)list->count, sizeof *entries);
  uint64_t total = 0;
  for (int i = 0, shard = 0; i < list->count; i++) {
    if (i == first[shard + 1]) shard++;
    entries[i] = (Entry){list->tensors[i].name, shard};
    total += safetensors_bytes(&list->tensors[i]);
  }
  qsort(entries, (size_t)list->count, sizeof *entries, by_name);
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  json_open(&w, "metadata", '{');
  json_whole(&w, "total_size", (int64_t)total);
  json_whole(&w, "step", step);
  json_close(&w, '}');
  json_open(&w, "weight_map", '{');
  for (int i = 0; i < list->count; i++)
    json_string(&w, entries[i].name, shard_name(entries[i].shard, count).text);
  json_close(&w, '}');
  json_close(&w, '}');
  free(entries);
  return w.text;
}
