#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "model/checkpoint/files.h"

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

static int small_checksum(const char *path, uint64_t *bytes, uint64_t *checksum, Error *err) {
  char *data;
  size_t count;
  Checksum c;
  if (file_read(path, SMALL_MAX_BYTES, &data, &count, err) != 0) return -1;
  checksum_begin(&c);
  checksum_add(&c, data, count);
  *checksum = checksum_end(&c);
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

// What checksums.json holds, in fresh memory.
static JsonWriter sums_json(const FileSums *sums) {
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  json_whole(&w, "step", sums->step);
  json_open(&w, "files", '{');
  for (int i = 0; i < sums->count; i++) {
    json_open(&w, sums->files[i].name, '{');
    json_whole(&w, "bytes", (int64_t)sums->files[i].bytes);
    json_string(&w, "xxh3", sums->files[i].checksum.text);
    json_close(&w, '}');
  }
  json_close(&w, '}');
  json_close(&w, '}');
  return w;
}

int sums_write(FileSums *sums, const char *folder, Error *err) {
  if (add_others(sums, folder, err) != 0) return -1;
  qsort(sums->files, (size_t)sums->count, sizeof *sums->files, by_name);
  const JsonWriter w = sums_json(sums);
  const PathText path = path_text("%s/" CHECKSUMS_FILE, folder);
  const int status = file_write(path.text, w.text, w.used, err);
  free(w.text);
  return status;
}

// ---- Reading

static int read_file(FileSums *sums, const cJSON *entry, Error *err) {
  static const char *const names[] = {"bytes", "xxh3"};
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

// It has no checksum of its own: it must have every byte of what was read from it, as it was saved.
static int check_text(const FileSums *sums, const char *path, Error *err) {
  char *data;
  size_t bytes;
  if (file_read(path, SUMS_MAX_BYTES, &data, &bytes, err) != 0) return -1;
  const JsonWriter w = sums_json(sums);
  const bool same = bytes == w.used && memcmp(data, w.text, bytes) == 0;
  free(data);
  free(w.text);
  return same ? 0 : error_set(err, "'%s' is not as it was saved", path);
}

int sums_read(FileSums *sums, const char *folder, Error *err) {
  const PathText path = path_text("%s/" CHECKSUMS_FILE, folder);
  *sums = (FileSums){0};
  if (!path_exists(path.text)) return 0;
  cJSON *root = json_read(path.text, SUMS_MAX_BYTES, err);
  int status = root ? 0 : -1;
  if (root && read_tree(sums, root, err) != 0) status = error_prefix(err, "'%s'", path.text);
  cJSON_Delete(root);
  return status == 0 ? check_text(sums, path.text, err) : status;
}

int sums_compare(const FileSum *saved, const char *path, uint64_t bytes, uint64_t checksum,
                 Error *err) {
  if (saved->bytes != bytes)
    return error_set(err, "'%s' has %llu bytes, but was saved with %llu", path,
                     (unsigned long long)bytes, (unsigned long long)saved->bytes);
  if (strcmp(saved->checksum.text, hex_text(checksum).text) == 0) return 0;
  return error_set(err,
                   "'%s' is not what was saved: its checksum is another (if it was changed on "
                   "purpose, remove " CHECKSUMS_FILE ")",
                   path);
}

int sums_check_small(const FileSums *sums, const char *folder, Error *err) {
  for (int i = 0; i < sums->count; i++) {
    const FileSum *sum = &sums->files[i];
    const PathText path = path_text("%s/%s", folder, sum->name);
    uint64_t bytes, checksum;
    if (has_tensors(sum->name)) continue;
    if (small_checksum(path.text, &bytes, &checksum, err) != 0 ||
        sums_compare(sum, path.text, bytes, checksum, err) != 0)
      return -1;
  }
  return 0;
}
