#include "tests/support/dataset_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "data/prepare/dataset.h"
#include "data/tokenizer/tokenizer.h"

enum { MAX_DATASET_BYTES = 1 << 24, FORMAT = 1 };

static int read_hex(const cJSON *item, uint64_t *value, Error *err) {
  const char *text = cJSON_GetStringValue(item);
  if (text && strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16 &&
      sscanf(text, "%16" SCNx64, value) == 1)
    return 0;
  return error_set(err, "%s is not a number of 16 hexadecimal digits", json_shown(item).text);
}

static int read_whole(const cJSON *item, int64_t low, int64_t high, int64_t *value, Error *err) {
  if (json_integer(item, value) == 0 && *value >= low && *value <= high) return 0;
  return error_set(err, "%s is not a whole number from %" PRId64 " to %" PRId64,
                   json_shown(item).text, low, high);
}

static int read_token(const cJSON *item, int32_t *id, Error *err) {
  int64_t value = NO_TOKEN;
  if (!cJSON_IsNull(item) && read_whole(item, 0, INT32_MAX, &value, err) != 0) return -1;
  *id = (int32_t)value;
  return 0;
}

static int read_tokenizer(const cJSON *object, Dataset *d, Error *err) {
  static const char *const names[] = {"name", "fingerprint", "vocab_size", "begin", "end"};
  const cJSON *f[5];
  if (json_fields(object, names, 5, f, err) != 0) return -1;
  if (!cJSON_IsString(f[0])) return error_set(err, "the name is no text");
  d->tokenizer = xstrdup(f[0]->valuestring);
  return read_hex(f[1], &d->fingerprint, err) ||
                 read_whole(f[2], 1, INT32_MAX, &d->vocab_size, err) ||
                 read_token(f[3], &d->begin, err) || read_token(f[4], &d->end, err)
             ? -1
             : 0;
}

// A list with a checksum for each file: [files].
static int read_sums(const cJSON *list, const char *name, int files, uint64_t *sums, Error *err) {
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != files)
    return error_set(err, "%s must have a checksum for each of the %d files", name, files);
  for (const cJSON *item = list->child; item; item = item->next)
    if (read_hex(item, sums++, err) != 0) return -1;
  return 0;
}

static int read_part(const cJSON *object, DatasetPart *part, Error *err) {
  static const char *const names[] = {"files", "tokens", "documents",
                                      "bytes", "xxh3",   "documents_xxh3"};
  const cJSON *f[6];
  int64_t files;
  if (json_fields(object, names, 6, f, err) != 0 || read_whole(f[0], 1, SHARDS_MAX, &files, err) ||
      read_whole(f[1], 1, JSON_MAX_INTEGER, &part->tokens, err) ||
      read_whole(f[2], 1, JSON_MAX_INTEGER, &part->documents, err) ||
      read_whole(f[3], 1, JSON_MAX_INTEGER, &part->bytes, err))
    return -1;
  part->files = (int)files;
  part->checksums = xcalloc((size_t)files, sizeof *part->checksums);
  uint64_t *tokens = xcalloc(2 * (size_t)files, sizeof *tokens), *documents = tokens + files;
  const int status = read_sums(f[4], names[4], part->files, tokens, err) ||
                             read_sums(f[5], names[5], part->files, documents, err)
                         ? -1
                         : 0;
  for (int i = 0; i < part->files; i++) part->checksums[i] = (ShardSums){tokens[i], documents[i]};
  free(tokens);
  return status;
}

static int read_split(const cJSON *object, Dataset *d, Error *err) {
  static const char *const names[] = {"val", "fraction", "seed"};
  const cJSON *f[3];
  if (json_fields(object, names, 3, f, err) != 0) return -1;
  const char *rule = cJSON_GetStringValue(f[0]);
  while (rule && d->split <= SPLIT_NONE && strcmp(rule, dataset_split_name(d->split)) != 0)
    d->split++;
  if (!rule || d->split > SPLIT_NONE)
    return error_set(err, "%s is no way to split", json_shown(f[0]).text);
  if (!cJSON_IsNumber(f[1])) return error_set(err, "the fraction is no number");
  d->val_fraction = f[1]->valuedouble;
  return read_whole(f[2], 0, JSON_MAX_INTEGER, &d->seed, err);
}

static int read_all(const cJSON *tree, Dataset *d, Error *err) {
  static const char *const names[] = {"format", "tokenizer", "train", "val", "split"};
  const cJSON *f[5];
  int64_t format;
  return json_fields(tree, names, 5, f, err) || read_whole(f[0], FORMAT, FORMAT, &format, err) ||
                 read_tokenizer(f[1], d, err) || read_part(f[2], &d->train, err) ||
                 read_part(f[3], &d->val, err) || read_split(f[4], d, err)
             ? -1
             : 0;
}

int dataset_read(Dataset *d, const char *folder, Error *err) {
  *d = (Dataset){0};
  const PathText path = path_text("%s/%s", folder, DATASET_FILE);
  if (!path_exists(path.text)) return 0;
  cJSON *tree = json_read(path.text, MAX_DATASET_BYTES, err);
  if (!tree) return -1;
  const int status = read_all(tree, d, err);
  cJSON_Delete(tree);
  if (status == 0) return 1;
  dataset_free(d);
  error_prefix(err, "'%s' is not as ./prepare writes it", path.text);
  return -1;
}

void dataset_free(Dataset *d) {
  free((void *)(uintptr_t)d->tokenizer);
  free(d->train.checksums);
  free(d->val.checksums);
  *d = (Dataset){0};
}
