#include "data/folder/checksums.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"

#define CHECKSUM_KEY "xxh3"

// Of a file without tensors: a tokenizer's have some 10 MB.
enum { SUMS_MAX_BYTES = 1 << 20, SMALL_MAX_BYTES = 256 << 20 };

static bool has_tensors(const char *name) {
  return name_ends_with(name, ".safetensors");
}

void sums_add(FileSums *sums, const char *name, uint64_t bytes, uint64_t checksum) {
  sums->files = xrealloc(sums->files, (size_t)(sums->count + 1) * sizeof *sums->files);
  FileSum *sum = &sums->files[sums->count++];
  *sum = (FileSum){.bytes = bytes, .checksum = hex_text(checksum)};
  snprintf(sum->name, sizeof sum->name, "%s", name);
}

const FileSum *sums_find(const FileSums *sums, const char *name) {
  for (int i = 0; i < sums->count; i++)
    if (strcmp(sums->files[i].name, name) == 0) return &sums->files[i];
  return NULL;
}

void sums_free(FileSums *sums) {
  free(sums->files);
  *sums = (FileSums){0};
}

static uint64_t checksum_of(const char *data, size_t bytes) {
  Checksum c;
  checksum_begin(&c);
  checksum_add(&c, data, bytes);
  return checksum_end(&c);
}

static int small_checksum(const char *path, uint64_t *bytes, uint64_t *checksum, Error *err) {
  char *data;
  size_t count;
  if (file_read(path, SMALL_MAX_BYTES, &data, &count, err) != 0) return -1;
  *checksum = checksum_of(data, count);
  *bytes = count;
  free(data);
  return 0;
}

// ---- Writing

static int add_others(FileSums *sums, const char *folder, Error *err) {
  DIR *dir = opendir(folder);
  if (!dir) return error_set(err, "cannot open the folder '%s': %s", folder, strerror(errno));
  int status = 0;
  struct dirent *entry;
  while (status == 0 && (errno = 0, entry = readdir(dir))) {
    const char *name = entry->d_name;
    const PathText path = path_text("%s/%s", folder, name);
    uint64_t bytes, checksum;
    if (sums_find(sums, name) || path_is_directory(path.text)) continue;
    status = small_checksum(path.text, &bytes, &checksum, err);
    if (status == 0) sums_add(sums, name, bytes, checksum);
  }
  const int why = status == 0 ? errno : 0;
  closedir(dir);
  if (why == 0) return status;
  return error_set(err, "cannot list the folder '%s': %s", folder, strerror(why));
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const FileSum *)a)->name, ((const FileSum *)b)->name);
}

// The text of checksums.json, in fresh memory. own: with its own checksum.
static JsonWriter sums_json(const FileSums *sums, bool own) {
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  json_whole(&w, "step", sums->step);
  json_open(&w, "files", '{');
  for (int i = 0; i < sums->count; i++) {
    json_open(&w, sums->files[i].name, '{');
    json_whole(&w, "bytes", (int64_t)sums->files[i].bytes);
    json_string(&w, CHECKSUM_KEY, sums->files[i].checksum.text);
    json_close(&w, '}');
  }
  json_close(&w, '}');
  if (own) json_string(&w, CHECKSUM_KEY, hex_text(checksum_of(w.text, w.used)).text);
  json_close(&w, '}');
  return w;
}

int sums_write(FileSums *sums, const char *folder, Error *err) {
  if (add_others(sums, folder, err) != 0) return -1;
  qsort(sums->files, (size_t)sums->count, sizeof *sums->files, by_name);
  const JsonWriter w = sums_json(sums, true);
  const PathText path = path_text("%s/" CHECKSUMS_FILE, folder);
  const int status = file_write(path.text, w.text, w.used, err);
  free(w.text);
  return status;
}

// ---- Reading

static int read_file(FileSums *sums, const cJSON *entry, Error *err) {
  static const char *const names[] = {"bytes", CHECKSUM_KEY};
  const cJSON *fields[2];
  int64_t bytes;
  if (json_fields(entry, names, 2, fields, err) != 0) return -1;
  const char *checksum = cJSON_GetStringValue(fields[1]);
  if (json_integer(fields[0], &bytes) != 0 || bytes < 0 || !checksum || strlen(checksum) != 16 ||
      strlen(entry->string) > NAME_BYTES || strchr(entry->string, '/'))
    return error_set(err, "'%.200s' has no bytes and xxh3 of a file", entry->string);
  sums_add(sums, entry->string, (uint64_t)bytes, 0);
  strcpy(sums->files[sums->count - 1].checksum.text, checksum);
  return 0;
}

static int read_tree(FileSums *sums, const cJSON *root, Error *err) {
  static const char *const names[] = {"step", "files"};
  const cJSON *fields[2];
  if (json_fields(root, names, 2, fields, err) != 0) return -1;
  if (json_integer(fields[0], &sums->step) != 0 || !cJSON_IsObject(fields[1]) || !fields[1]->child)
    return error_set(err, "'step' is no whole number, or 'files' names none");
  for (const cJSON *entry = fields[1]->child; entry; entry = entry->next)
    if (read_file(sums, entry, err) != 0) return -1;
  return 0;
}

// It must have every byte of the text that a save writes of its values.
static int check_text(const FileSums *sums, const char *path, bool own, Error *err) {
  char *data;
  size_t bytes;
  if (file_read(path, SUMS_MAX_BYTES, &data, &bytes, err) != 0) return -1;
  const JsonWriter w = sums_json(sums, own);
  const bool same = bytes == w.used && memcmp(data, w.text, bytes) == 0;
  free(data);
  free(w.text);
  return same ? 0 : error_set(err, "it is not as it was saved");
}

int sums_read(FileSums *sums, const char *folder, Error *err) {
  const PathText path = path_text("%s/" CHECKSUMS_FILE, folder);
  *sums = (FileSums){0};
  if (!path_exists(path.text)) return 0;
  cJSON *root = json_read(path.text, SUMS_MAX_BYTES, err);
  if (!root) return -1;
  cJSON *own = cJSON_DetachItemFromObjectCaseSensitive(root, CHECKSUM_KEY);
  int status = read_tree(sums, root, err);
  if (status == 0) status = check_text(sums, path.text, own != NULL, err);
  cJSON_Delete(own);
  cJSON_Delete(root);
  if (status == 0) return 0;
  error_prefix(err, "'%s'", path.text);
  return error_append(err, " (without it the folder's other files are taken unchecked)");
}

int sums_compare(const FileSum *saved, const char *path, uint64_t bytes, uint64_t checksum,
                 Error *err) {
  if (saved->bytes != bytes)
    return error_set(err,
                     "'%s' has %llu bytes, but was saved with %llu (if it was changed on purpose, "
                     "remove " CHECKSUMS_FILE " beside it)",
                     path, (unsigned long long)bytes, (unsigned long long)saved->bytes);
  if (strcmp(saved->checksum.text, hex_text(checksum).text) == 0) return 0;
  return error_set(err,
                   "'%s' is not what was saved: its checksum is another (if it was changed on "
                   "purpose, remove " CHECKSUMS_FILE " beside it)",
                   path);
}

int sums_check_small(const FileSums *sums, const char *folder, bool whole, Error *err) {
  for (int i = 0; i < sums->count; i++) {
    const FileSum *sum = &sums->files[i];
    const PathText path = path_text("%s/%s", folder, sum->name);
    const bool of_run =
        strcmp(sum->name, RUN_CONFIG_FILE) == 0 || strcmp(sum->name, STATE_FILE) == 0;
    uint64_t bytes, checksum;
    if (has_tensors(sum->name) || (of_run && !whole)) continue;
    if (!path_exists(path.text))
      return error_set(err, "'%s' has no %s, with which it was saved", folder, sum->name);
    if (small_checksum(path.text, &bytes, &checksum, err) != 0 ||
        sums_compare(sum, path.text, bytes, checksum, err) != 0)
      return -1;
  }
  return 0;
}
