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
  HEADER_MAX_BYTES = 16 * 1000 * 1000, // some 100,000 tensors; it takes 10 times that in memory
  HEADER_MAX_DEPTH = 3,                // the file, a tensor, its shape
  FIRST_BYTES = 4096,                  // which tell what kind of file it is
};

#define NAME(name, bytes) #name,
#define BYTES(name, bytes) bytes,
static const char *const dtype_names[] = {SAFE_DTYPES(NAME)};
static const uint8_t dtype_bytes[] = {SAFE_DTYPES(BYTES)};

ShapeText safetensors_shape_text(const SafeTensor *t) {
  ShapeText s = {"["};
  size_t used = 1;
  for (int i = 0; i < t->rank; i++) {
    const int n = snprintf(s.text + used, sizeof s.text - used, i ? ", %lld" : "%lld",
                           (long long)t->shape[i]);
    assert(n > 0 && used + (size_t)n + 2 <= sizeof s.text);
    used += (size_t)n;
  }
  memcpy(s.text + used, "]", 2);
  return s;
}

// ---- The header's text

// cJSON is more lenient than the format: it takes 1.5, 1e3, 007 and -0 for numbers, skips control
// bytes and ends a name at \u0000. Outside its strings a legal header needs nothing but {}[]:, and
// digits, so everything else is refused before cJSON sees it. The limits on nesting and on array
// length also bound the memory that a hostile header can make cJSON take.
static int scan_header(const char *header, size_t count, Error *err) {
  bool in_string = false, in_array = false;
  int depth = 0, commas = 0;
  for (size_t i = 0; i < count; i++) {
    const char c = header[i];
    const size_t at = LENGTH_BYTES + i;
    if ((unsigned char)c < 0x20 && c != '\t' && c != '\n' && c != '\r')
      return error_set(err, "the header has a control byte %d at byte %zu", c, at);
    if (in_string) {
      if (c == '\\') i++;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      in_array = c == '[';
      commas = 0;
      if (++depth > HEADER_MAX_DEPTH)
        return error_set(err, "the header is nested too deeply at byte %zu", at);
    } else if (c == '}' || c == ']') {
      in_array = false;
      depth--;
    } else if (c == ',') {
      if (in_array && ++commas >= SAFE_MAX_RANK)
        return error_set(err, "the header has an array of more than %d numbers at byte %zu",
                         SAFE_MAX_RANK, at);
    } else if (c >= '0' && c <= '9') {
      const bool begins = i == 0 || header[i - 1] < '0' || header[i - 1] > '9';
      if (begins && c == '0' && i + 1 < count && header[i + 1] >= '0' && header[i + 1] <= '9')
        return error_set(err, "a number in the header begins with 0 at byte %zu", at);
    } else if (!strchr(": \t\r\n", c)) {
      return error_set(err,
                       "the header has a byte 0x%02x outside any string at byte %zu, where only "
                       "objects, strings, arrays and whole numbers from 0 up are allowed",
                       (unsigned char)c, at);
    }
  }
  return 0;
}

// The header as a cJSON object, or NULL and a sentence.
static cJSON *parse_header(const unsigned char *bytes, size_t count, Error *err) {
  // A copy with NULs behind it: cJSON before 1.7.18 reads a byte past a text that ends too early.
  enum { SLACK = 8 };
  char *text = xcalloc(count + SLACK, 1);
  memcpy(text, bytes, count);
  cJSON *root =
      scan_header(text, count, err) == 0 ? json_parse("the header", text, count, err) : NULL;
  free(text);
  return root;
}

// ---- One tensor of the header

// Whole numbers below 2^53, at most `most` of them, into values[*count].
static int parse_numbers(const char *field, const cJSON *array, int most, int64_t *values,
                         int *count, Error *err) {
  *count = 0;
  if (!cJSON_IsArray(array)) return error_set(err, "%s is not an array", field);
  for (const cJSON *item = array->child; item; item = item->next) {
    if (*count == most) return error_set(err, "%s has more than %d numbers", field, most);
    if (json_integer(item, &values[*count]) != 0 || values[*count] < 0)
      return error_set(err, "number %d of %s is not a whole number below 2^53", *count, field);
    ++*count;
  }
  return 0;
}

static int parse_offsets(SafeTensor *t, const cJSON *offsets, uint64_t data_bytes, Error *err) {
  int64_t ends[2];
  int count;
  if (parse_numbers("data_offsets", offsets, 2, ends, &count, err) != 0) return -1;
  if (count != 2) return error_set(err, "data_offsets has only %d of its two numbers", count);
  t->begin = (uint64_t)ends[0];
  t->end = (uint64_t)ends[1];
  if (t->begin <= t->end && t->end <= data_bytes) return 0;
  return error_set(err,
                   "data_offsets [%" PRIu64 ", %" PRIu64 "] do not lie in order within the %" PRIu64
                   " bytes of data in the file",
                   t->begin, t->end, data_bytes);
}

int safetensors_bytes(const SafeTensor *t, uint64_t *bytes, Error *err) {
  *bytes = dtype_bytes[t->dtype];
  for (int i = 0; i < t->rank; i++)
    if (t->shape[i] < 0 || __builtin_mul_overflow(*bytes, (uint64_t)t->shape[i], bytes))
      return error_set(err, "the size of shape %s is negative or overflows 64 bits",
                       safetensors_shape_text(t).text);
  return 0;
}

// Fills all of t but its name and data.
static int parse_tensor(SafeTensor *t, const cJSON *entry, uint64_t data_bytes, Error *err) {
  static const char *const names[] = {"dtype", "shape", "data_offsets"};
  const cJSON *fields[3];
  if (json_fields(entry, names, 3, fields, err) != 0) return -1;
  const char *dtype = cJSON_GetStringValue(fields[0]);
  if (!dtype) return error_set(err, "dtype is not a string");
  while (t->dtype < SAFE_DTYPE_COUNT && strcmp(dtype_names[t->dtype], dtype) != 0) t->dtype++;
  if (t->dtype == SAFE_DTYPE_COUNT) return error_set(err, "the dtype '%.100s' is unknown", dtype);
  uint64_t bytes = 0;
  if (parse_numbers("shape", fields[1], SAFE_MAX_RANK, t->shape, &t->rank, err) != 0 ||
      parse_offsets(t, fields[2], data_bytes, err) != 0 || safetensors_bytes(t, &bytes, err) != 0)
    return -1;
  if (bytes == t->end - t->begin) return 0;
  return error_set(err,
                   "dtype %s and shape %s need %" PRIu64 " bytes, but data_offsets [%" PRIu64
                   ", %" PRIu64 "] hold %" PRIu64,
                   dtype, safetensors_shape_text(t).text, bytes, t->begin, t->end,
                   t->end - t->begin);
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

static int read_tensors(SafeFile *file, const cJSON *root, const unsigned char *data,
                        uint64_t data_bytes, Error *err) {
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
    if (parse_tensor(t, entry, data_bytes, err) != 0)
      return error_prefix(err, "tensor '%.200s'", entry->string);
    t->data = data ? data + t->begin : NULL;
    t->name = xstrdup(entry->string);
    file->count++;
  }
  qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_offsets);
  return 0;
}

static int check_contiguous(const SafeFile *file, uint64_t data_bytes, Error *err) {
  uint64_t at = 0;
  for (const SafeTensor *t = file->tensors; t < file->tensors + file->count; t++) {
    if (t->begin != at)
      return error_set(
          err,
          "tensor '%.200s' begins at byte %" PRIu64 " of the data, %s byte %" PRIu64
          ", where the tensor before it ends",
          t->name, t->begin,
          t->begin < at ? "which overlaps others: before" : "which leaves a hole after", at);
    at = t->end;
  }
  if (at == data_bytes) return 0;
  return error_set(
      err, "the tensors end at byte %" PRIu64 " of the data, but the file has %" PRIu64 " bytes",
      at, data_bytes);
}

// bytes: the file's first ones, with the whole header where that is possible; whole: all [count].
static int parse(SafeFile *file, const char *name, const unsigned char *bytes, uint64_t count,
                 bool whole, Error *err) {
  // Where a header begins, a length may look like another format's first bytes.
  const bool begins = count > LENGTH_BYTES && bytes[LENGTH_BYTES] == '{';
  if (!begins && file_refuse_packed(name, bytes,
                                    (size_t)(count < FIRST_BYTES ? count : FIRST_BYTES), err) != 0)
    return -1;
  if (count < LENGTH_BYTES)
    return error_set(err,
                     "'%s' is not a safetensors file: it has %d bytes, not even the %d that "
                     "tell the length of its header",
                     name, (int)count, LENGTH_BYTES);
  uint64_t length;
  memcpy(&length, bytes, LENGTH_BYTES);
  if (length > HEADER_MAX_BYTES)
    return error_set(err,
                     "'%s' is not a safetensors file of a model: its header would have %" PRIu64
                     " bytes, more than the %d allowed",
                     name, length, HEADER_MAX_BYTES);
  if (length > count - LENGTH_BYTES)
    return error_set(err,
                     "'%s' is cut off: its header should have %" PRIu64 " bytes, but only %" PRIu64
                     " follow",
                     name, length, count - LENGTH_BYTES);
  if (length == 0 || !begins)
    return error_set(err, "'%s' is not a safetensors file: the header does not begin with '{'",
                     name);
  file->bytes = count;
  file->start = LENGTH_BYTES + length;
  const uint64_t data_bytes = count - file->start;
  cJSON *root = parse_header(bytes + LENGTH_BYTES, (size_t)length, err);
  const bool failed =
      !root || read_tensors(file, root, whole ? bytes + file->start : NULL, data_bytes, err) != 0 ||
      check_contiguous(file, data_bytes, err) != 0;
  cJSON_Delete(root);
  if (!failed) return 0;
  safetensors_close(file);
  return error_prefix(err, "'%s'", name);
}

int safetensors_parse(SafeFile *file, const char *name, const unsigned char *bytes, size_t count,
                      Error *err) {
  *file = (SafeFile){.step = -1};
  return parse(file, name, bytes, count, true, err);
}

// Reads the file's first bytes, up to the end of its header where there can be one.
static int read_header(SafeFile *file, size_t bytes, Error *err) {
  size_t held = bytes < FIRST_BYTES ? bytes : FIRST_BYTES;
  uint64_t length = 0;
  file->header = xmalloc(held + 1);
  if (file_read_at(file->fd, file->path, 0, file->header, held, err) != 0) return -1;
  if (held >= LENGTH_BYTES) memcpy(&length, file->header, LENGTH_BYTES);
  if (length > HEADER_MAX_BYTES || LENGTH_BYTES + length > bytes || LENGTH_BYTES + length <= held)
    return 0;
  const size_t more = LENGTH_BYTES + (size_t)length - held;
  file->header = xrealloc(file->header, held + more);
  return file_read_at(file->fd, file->path, held, file->header + held, more, err);
}

int safetensors_open(SafeFile *file, const char *path, Error *err) {
  size_t bytes;
  *file = (SafeFile){.step = -1, .fd = file_open(path, &bytes, err)};
  if (file->fd < 0) return -1;
  file->path = xstrdup(path);
  if (read_header(file, bytes, err) == 0 && parse(file, path, file->header, bytes, false, err) == 0)
    return 0;
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
static int write_tensor(JsonWriter *w, const SafeTensor *t, uint64_t *end, Error *err) {
  for (const char *c = t->name; *c; c++)
    if ((unsigned char)*c < 0x20 || *c == '"' || *c == '\\')
      return error_set(err, "the tensor name '%.200s' has a character that a file may not have",
                       t->name);
  const uint64_t begin = *end;
  uint64_t bytes = 0;
  if (safetensors_bytes(t, &bytes, err) != 0) return error_prefix(err, "tensor '%.200s'", t->name);
  if (__builtin_add_overflow(begin, bytes, end) || *end > JSON_MAX_INTEGER)
    return error_set(err, "the tensors up to '%.200s' have more than 2^53 bytes", t->name);
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
  return 0;
}

// A writer that has failed holds no memory.
static int put(SafeWriter *w, const void *data, size_t bytes, Error *err) {
  if (writer_append(&w->file, data, bytes, err) != 0) {
    checksum_abandon(&w->hash);
    return -1;
  }
  checksum_add(&w->hash, data, bytes);
  return 0;
}

int safetensors_create(SafeWriter *w, const char *path, int64_t step, int count,
                       const SafeTensor *tensors, Error *err) {
  *w = (SafeWriter){.file.fd = -1};
  JsonWriter header = {0};
  json_open(&header, NULL, '{');
  json_open(&header, "__metadata__", '{');
  json_string(&header, "format", "pt");
  if (step >= 0) json_string(&header, "step", digits_text((uint64_t)step).text);
  json_close(&header, '}');
  int status = 0;
  for (int i = 0; i < count && status == 0; i++)
    status = write_tensor(&header, &tensors[i], &w->expected, err);
  json_close(&header, '}');
  // Spaces up to a multiple of 8 bytes, so that data that others map is aligned.
  const size_t padding = (8 - header.used % 8) % 8;
  const uint64_t length = header.used + padding;
  if (status == 0) status = writer_open(&w->file, path, err);
  if (status == 0) {
    checksum_begin(&w->hash);
    status = put(w, &length, sizeof length, err);
  }
  if (status == 0) status = put(w, header.text, header.used, err);
  if (status == 0) status = put(w, "       ", padding, err);
  w->header = w->file.total;
  free(header.text);
  return status;
}

int safetensors_append(SafeWriter *w, const void *data, size_t bytes, Error *err) {
  return put(w, data, bytes, err);
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
  const uint64_t written = w->file.total - w->header;
  if (w->file.fd >= 0 && written != w->expected) {
    error_set(err, "'%s' got %" PRIu64 " bytes of data, but its tensors have %" PRIu64,
              w->file.path, written, w->expected);
    writer_abandon(&w->file);
  } else if (writer_finish(&w->file, err) == 0) {
    w->checksum = checksum_end(&w->hash);
    return 0;
  }
  checksum_abandon(&w->hash);
  return -1;
}
