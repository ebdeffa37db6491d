#include "data/safetensors.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/bf16.h"
#include "base/memory.h"
#include "base/json.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the format is little-endian, and no bytes are swapped here"
#endif

enum {
  LENGTH_BYTES = 8,                    // the header's length, in front of the header
  HEADER_MAX_BYTES = 16 * 1000 * 1000, // some 100,000 tensors; a tree of it takes more memory
};

#define NAME(name, bytes) #name,
#define BYTES(name, bytes) bytes,
static const char *const dtype_names[] = {SAFE_DTYPES(NAME)};
static const uint8_t dtype_bytes[] = {SAFE_DTYPES(BYTES)};

ShortText safetensors_shape_text(const SafeTensor *t) {
  ShortText s = {"["};
  for (int i = 0; i < t->rank; i++) short_append(&s, i ? ", %lld" : "%lld", (long long)t->shape[i]);
  short_append(&s, "]");
  return s;
}

uint64_t safetensors_bytes(const SafeTensor *t) {
  uint64_t bytes = dtype_bytes[t->dtype];
  for (int i = 0; i < t->rank; i++)
    if (__builtin_mul_overflow(bytes, (uint64_t)t->shape[i], &bytes)) return UINT64_MAX;
  return bytes;
}

// ---- One tensor of the header

// How many numbers an array has; -1 unless they are `least` to `most` whole ones from 0 up.
static int read_numbers(const cJSON *array, int least, int most, int64_t *values) {
  const int count = cJSON_IsArray(array) ? cJSON_GetArraySize(array) : -1;
  if (count < least || count > most) return -1;
  const cJSON *item = array->child;
  for (int i = 0; i < count; i++, item = item->next)
    if (json_integer(item, &values[i]) != 0 || values[i] < 0) return -1;
  return count;
}

// Fills all of t but its name.
static int parse_tensor(SafeTensor *t, const cJSON *entry, Error *err) {
  static const char *const names[] = {"dtype", "shape", "data_offsets"};
  const cJSON *fields[3];
  int64_t ends[2];
  if (json_fields(entry, names, 3, fields, err) != 0) return -1;
  const char *dtype = cJSON_GetStringValue(fields[0]);
  if (!dtype) return error_set(err, "dtype is not a string");
  while (t->dtype < SAFE_DTYPE_COUNT && strcmp(dtype_names[t->dtype], dtype) != 0) t->dtype++;
  if (t->dtype == SAFE_DTYPE_COUNT) return error_set(err, "the dtype '%.100s' is unknown", dtype);
  t->rank = read_numbers(fields[1], 0, SAFE_MAX_RANK, t->shape);
  if (t->rank < 0)
    return error_set(err, "shape is not a list of at most %d whole numbers from 0 to 2^53 - 1",
                     SAFE_MAX_RANK);
  if (read_numbers(fields[2], 2, 2, ends) < 0)
    return error_set(err, "data_offsets is not a list of two whole numbers from 0 to 2^53 - 1");
  t->begin = (uint64_t)ends[0];
  t->end = (uint64_t)ends[1];
  const uint64_t bytes = safetensors_bytes(t);
  if (bytes == UINT64_MAX)
    return error_set(err, "the size of shape %s overflows 64 bits", safetensors_shape_text(t).text);
  if (t->begin <= t->end && bytes == t->end - t->begin) return 0;
  return error_set(err,
                   "dtype %s and shape %s need %" PRIu64 " bytes, but data_offsets are [%" PRIu64
                   ", %" PRIu64 "]",
                   dtype, safetensors_shape_text(t).text, bytes, t->begin, t->end);
}

// ---- The whole header

// Others may mean something else by a "step": a value that is not a whole number counts as none.
static int64_t metadata_step(const cJSON *metadata) {
  const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, "step"));
  char *end;
  const long long step = text ? strtoll(text, &end, 10) : -1;
  return text && *text && !*end && step >= 0 ? step : -1;
}

static int check_metadata(const cJSON *metadata, Error *err) {
  if (!cJSON_IsObject(metadata))
    return error_set(err, "__metadata__ in the header is not an object");
  for (const cJSON *item = metadata->child; item; item = item->next)
    if (!cJSON_IsString(item))
      return error_set(err, "the value of '%.200s' in __metadata__ is not a string", item->string);
  return 0;
}

static int compare_offsets(const void *a, const void *b) {
  const SafeTensor *s = a, *t = b;
  if (s->begin != t->begin) return s->begin < t->begin ? -1 : 1;
  if (s->end != t->end) return s->end < t->end ? -1 : 1;
  return strcmp(s->name, t->name);
}

static int read_tensors(SafeFile *file, const cJSON *root, Error *err) {
  file->tensors = xcalloc((size_t)cJSON_GetArraySize(root) + 1, sizeof *file->tensors);
  for (const cJSON *entry = root->child; entry; entry = entry->next) {
    if (strcmp(entry->string, "__metadata__") == 0) {
      if (check_metadata(entry, err) != 0) return -1;
      file->step = metadata_step(entry);
      continue;
    }
    for (const char *c = entry->string; *c; c++)
      if ((unsigned char)*c < 0x20)
        return error_set(err, "the name of a tensor has a control character");
    SafeTensor *t = &file->tensors[file->count];
    if (parse_tensor(t, entry, err) != 0)
      return error_prefix(err, "tensor '%.200s'", entry->string);
    t->name = xstrdup(entry->string);
    file->count++;
  }
  qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_offsets);
  return 0;
}

static int check_contiguous(const SafeFile *file, Error *err) {
  const uint64_t data_bytes = file->bytes - file->start;
  uint64_t at = 0;
  for (const SafeTensor *t = file->tensors; t < file->tensors + file->count; t++) {
    if (t->begin != at)
      return error_set(err,
                       "tensor '%.200s' begins at byte %" PRIu64
                       " of the data, but the one before it ends at %" PRIu64,
                       t->name, t->begin, at);
    at = t->end;
  }
  if (at == data_bytes) return 0;
  return error_set(
      err, "the tensors end at byte %" PRIu64 " of the data, but the file has %" PRIu64 " bytes",
      at, data_bytes);
}

// Of the open file.
static int read_header(SafeFile *file, Error *err) {
  unsigned char first[64]; // they tell what kind of file it is
  uint64_t length;
  const size_t held = file->bytes < sizeof first ? (size_t)file->bytes : sizeof first;
  if (file_read_at(file->fd, file->path, 0, first, held, err) != 0) return -1;
  if (held <= LENGTH_BYTES || first[LENGTH_BYTES] != '{') {
    if (file_refuse_packed(file->path, first, held, err) != 0) return -1;
    return error_set(err, "'%s' is not a safetensors file: its header does not begin with '{'",
                     file->path);
  }
  memcpy(&length, first, LENGTH_BYTES);
  if (length > HEADER_MAX_BYTES)
    return error_set(err,
                     "'%s' is not a safetensors file of a model: its header would have %" PRIu64
                     " bytes, more than the %d allowed",
                     file->path, length, HEADER_MAX_BYTES);
  if (length > file->bytes - LENGTH_BYTES)
    return error_set(err,
                     "'%s' is cut off: its header should have %" PRIu64 " bytes, but only %" PRIu64
                     " follow",
                     file->path, length, file->bytes - LENGTH_BYTES);
  file->start = LENGTH_BYTES + length;
  file->header = xcalloc(file->start + 1, 1);
  return file_read_at(file->fd, file->path, 0, file->header, (size_t)file->start, err);
}

static int parse_header(SafeFile *file, Error *err) {
  const char *text = (const char *)file->header + LENGTH_BYTES;
  cJSON *root = json_parse("the header", text, (size_t)file->start - LENGTH_BYTES, err);
  const bool failed =
      !root || read_tensors(file, root, err) != 0 || check_contiguous(file, err) != 0;
  cJSON_Delete(root);
  return failed ? error_prefix(err, "'%s'", file->path) : 0;
}

int safetensors_open(SafeFile *file, const char *path, Error *err) {
  size_t bytes;
  *file = (SafeFile){.step = -1, .fd = file_open(path, &bytes, err)};
  if (file->fd < 0) return -1;
  file->path = xstrdup(path);
  file->bytes = bytes;
  if (read_header(file, err) == 0 && parse_header(file, err) == 0) return 0;
  safetensors_close(file);
  return -1;
}

int safetensors_read(const SafeFile *file, size_t portion, unsigned char *room, Error *err) {
  const uint64_t at = (uint64_t)portion * SAFE_PORTION, left = file->bytes - at;
  const size_t all = left < SAFE_PORTION + SAFE_SLACK ? (size_t)left : SAFE_PORTION + SAFE_SLACK,
               own = all < SAFE_PORTION ? all : SAFE_PORTION;
  if (file_read_at(file->fd, file->path, at, room, all, err) != 0) return -1;
  // The header is the one that was read first.
  if (at < file->start)
    memcpy(room, file->header + at, file->start - at < all ? (size_t)(file->start - at) : all);
  if (!file->sums || XXH3_64bits(room, own) == file->sums[portion]) return 0;
  return error_set(err, "'%s' was changed while it was read: make it whole, and start again",
                   file->path);
}

void safetensors_close(SafeFile *file) {
  for (int i = 0; i < file->count; i++) free(file->tensors[i].name);
  free(file->tensors);
  free(file->header);
  free(file->sums);
  if (file->path) close(file->fd);
  free(file->path);
  *file = (SafeFile){0};
}

const SafeTensor *safetensors_find(const SafeFile *file, const char *name) {
  for (int i = 0; i < file->count; i++)
    if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
  return NULL;
}

// ---- Values

static float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// IEEE 754 binary16: 1 sign bit, 5 of exponent (bias 15), 10 of fraction.
static float float_of_half(uint16_t half) {
  const uint32_t sign = (uint32_t)(half >> 15) << 31;
  const uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000u | fraction << 13);
  if (exponent > 0) return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
  const float subnormal = (float)fraction * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

uint64_t safetensors_element(SafeDtype dtype) {
  return dtype_bytes[dtype];
}

void safetensors_floats(SafeDtype dtype, const unsigned char *from, int64_t count, float *values) {
  assert(dtype == SAFE_F32 || dtype == SAFE_BF16 || dtype == SAFE_F16);
  if (dtype == SAFE_F32) {
    if (count > 0) memcpy(values, from, (size_t)count * sizeof *values);
    return;
  }
  const bool half = dtype == SAFE_F16;
  for (int64_t i = 0; i < count; i++) {
    uint16_t bits; // the data of a file need not be aligned
    memcpy(&bits, from + (size_t)i * sizeof bits, sizeof bits);
    values[i] = half ? float_of_half(bits) : float_of_bits((uint32_t)bits << 16);
  }
}

// ---- Writing

// Adds a tensor to the header, and its bytes to *end, where the one before it ended.
static void write_tensor(JsonWriter *w, const SafeTensor *t, uint64_t *end) {
  const uint64_t begin = *end, bytes = safetensors_bytes(t);
  assert(bytes <= JSON_MAX_INTEGER - begin);
  *end += bytes;
  json_open(w, t->name, '{');
  json_string(w, "dtype", dtype_names[t->dtype]);
  json_open(w, "shape", '[');
  for (int i = 0; i < t->rank; i++) json_whole(w, NULL, t->shape[i]);
  json_close(w, ']');
  json_open(w, "data_offsets", '[');
  json_whole(w, NULL, (int64_t)begin);
  json_whole(w, NULL, (int64_t)*end);
  json_close(w, ']');
  json_close(w, '}');
}

int safetensors_append(SafeWriter *w, const void *data, size_t bytes, Error *err) {
  if (writer_append(&w->file, data, bytes, err) != 0) {
    checksum_abandon(&w->hash); // a writer that has failed holds no memory
    return -1;
  }
  checksum_add(&w->hash, data, bytes);
  return 0;
}

int safetensors_create(SafeWriter *w, const char *path, int64_t step, int count,
                       const SafeTensor *tensors, Error *err) {
  *w = (SafeWriter){.file.fd = -1};
  if (writer_open(&w->file, path, err) != 0) return -1;
  checksum_begin(&w->hash);
  JsonWriter header = {0};
  json_open(&header, NULL, '{');
  json_open(&header, "__metadata__", '{');
  json_string(&header, "format", "pt");
  if (step >= 0) json_string(&header, "step", digits_text((uint64_t)step).text);
  json_close(&header, '}');
  for (int i = 0; i < count; i++) write_tensor(&header, &tensors[i], &w->expected);
  json_close(&header, '}');
  // Spaces up to a multiple of 8 bytes, so that data that others map is aligned.
  const size_t padding = (8 - header.used % 8) % 8;
  const uint64_t length = header.used + padding;
  const int status = safetensors_append(w, &length, sizeof length, err) ||
                             safetensors_append(w, header.text, header.used, err) ||
                             safetensors_append(w, "       ", padding, err)
                         ? -1
                         : 0;
  w->header = w->file.total;
  free(header.text);
  return status;
}

int safetensors_append_f32(SafeWriter *w, SafeDtype dtype, const float *values, int64_t count,
                           Error *err) {
  enum { AT_ONCE = 4096 };
  uint16_t rounded[AT_ONCE];
  assert(dtype == SAFE_F32 || dtype == SAFE_BF16);
  if (dtype == SAFE_F32) return safetensors_append(w, values, (size_t)count * sizeof *values, err);
  for (int64_t first = 0, n; first < count; first += n) {
    n = count - first < AT_ONCE ? count - first : AT_ONCE;
    for (int64_t i = 0; i < n; i++) rounded[i] = bf16_of_float(values[first + i]);
    if (safetensors_append(w, rounded, (size_t)n * sizeof *rounded, err) != 0) return -1;
  }
  return 0;
}

int safetensors_finish(SafeWriter *w, Error *err) {
  assert(w->file.fd < 0 || w->file.total == w->header + w->expected);
  const int status = writer_finish(&w->file, err);
  if (status == 0) w->checksum = checksum_end(&w->hash);
  checksum_abandon(&w->hash);
  return status;
}
