#include "data/safetensors.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/json.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensor data is little-endian and is read here without swapping bytes"
#endif

enum {
  LENGTH_BYTES = 8, // the header's length, in front of the header
  HEADER_MAX_BYTES = 100 * 1000 * 1000,
  HEADER_MAX_DEPTH = 3, // the file, a tensor, its shape
};

static const struct {
  const char *name;
  SafeDtype dtype;
  uint64_t bytes; // of one element
} dtypes[] = {
    {"F32", SAFE_F32, 4},   {"F64", SAFE_F64, 8},       {"BF16", SAFE_BF16, 2},
    {"F16", SAFE_F16, 2},   {"I32", SAFE_I32, 4},       {"I64", SAFE_I64, 8},
    {"U8", SAFE_U8, 1},     {"BOOL", SAFE_OTHER, 1},    {"I8", SAFE_OTHER, 1},
    {"I16", SAFE_OTHER, 2}, {"U16", SAFE_OTHER, 2},     {"U32", SAFE_OTHER, 4},
    {"U64", SAFE_OTHER, 8}, {"F8_E5M2", SAFE_OTHER, 1}, {"F8_E4M3", SAFE_OTHER, 1},
};
enum { DTYPE_COUNT = sizeof dtypes / sizeof dtypes[0] };

const char *safetensors_dtype_name(SafeDtype dtype) {
  if (dtype == SAFE_OTHER) return NULL;
  for (int i = 0; i < DTYPE_COUNT; i++)
    if (dtypes[i].dtype == dtype) return dtypes[i].name;
  return NULL;
}

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
static int scan_header(const char *name, const char *header, size_t count, Error *err) {
  bool in_string = false, in_array = false;
  int depth = 0, commas = 0;
  for (size_t i = 0; i < count; i++) {
    const char c = header[i];
    const size_t at = LENGTH_BYTES + i;
    if ((unsigned char)c < 0x20 && c != '\t' && c != '\n' && c != '\r')
      return error_set(err, "'%s': the header has a control byte %d at byte %zu", name, c, at);
    if (in_string) {
      if (c == '\\' && count - i > 5 && memcmp(header + i, "\\u0000", 6) == 0)
        return error_set(err, "'%s': a string in the header has a NUL character at byte %zu", name,
                         at);
      if (c == '\\') i++;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      in_array = c == '[';
      commas = 0;
      if (++depth > HEADER_MAX_DEPTH)
        return error_set(err, "'%s': the header is nested too deeply at byte %zu", name, at);
    } else if (c == '}' || c == ']') {
      in_array = false;
      depth--;
    } else if (c == ',') {
      if (in_array && ++commas >= SAFE_MAX_RANK)
        return error_set(err, "'%s': the header has an array of more than %d numbers at byte %zu",
                         name, SAFE_MAX_RANK, at);
    } else if (c >= '0' && c <= '9') {
      const bool begins = i == 0 || header[i - 1] < '0' || header[i - 1] > '9';
      if (begins && c == '0' && i + 1 < count && header[i + 1] >= '0' && header[i + 1] <= '9')
        return error_set(err, "'%s': a number in the header begins with 0 at byte %zu", name, at);
    } else if (!strchr(": \t\r\n", c)) {
      return error_set(err,
                       "'%s': the header has a byte 0x%02x outside any string at byte %zu, where "
                       "only objects, strings, arrays and whole numbers from 0 up are allowed",
                       name, (unsigned char)c, at);
    }
  }
  return 0;
}

// The header as a cJSON object, or NULL and a sentence.
static cJSON *parse_header(const char *name, const unsigned char *bytes, size_t count, Error *err) {
  if (count == 0 || bytes[0] != '{') {
    error_set(err, "'%s' is not a safetensors file: the header does not begin with '{'", name);
    return NULL;
  }
  // A copy with NULs behind it: cJSON before 1.7.18 reads a byte past a text that ends too early.
  enum { SLACK = 8 };
  char *text = xcalloc(count + SLACK, 1);
  memcpy(text, bytes, count);
  cJSON *root = NULL;
  if (scan_header(name, text, count, err) == 0) {
    const char *end = NULL;
    root = cJSON_ParseWithLengthOpts(text, count, &end, 0);
    if (!root) {
      error_set(err, "'%s': the header is not valid JSON at byte %zu", name,
                LENGTH_BYTES + (size_t)(end - text));
    } else {
      while (end < text + count && strchr(" \t\r\n", *end)) end++;
      if (end < text + count) {
        error_set(err, "'%s': the header goes on after its object at byte %zu", name,
                  LENGTH_BYTES + (size_t)(end - text));
        cJSON_Delete(root);
        root = NULL;
      }
    }
  }
  free(text);
  return root;
}

// ---- One tensor of the header

static int whole_number(const cJSON *item, uint64_t *value) {
  int64_t number;
  if (json_integer(item, &number) != 0 || number < 0) return -1;
  *value = (uint64_t)number;
  return 0;
}

static int parse_shape(SafeTensor *t, const cJSON *shape, Error *err) {
  if (!cJSON_IsArray(shape)) return error_set(err, "shape is not an array");
  const cJSON *item;
  cJSON_ArrayForEach(item, shape) {
    uint64_t size;
    if (t->rank == SAFE_MAX_RANK)
      return error_set(err, "shape has more than %d dimensions", SAFE_MAX_RANK);
    if (whole_number(item, &size) != 0)
      return error_set(err, "dimension %d of shape is not a whole number below 2^53", t->rank);
    t->shape[t->rank++] = (int64_t)size;
  }
  return 0;
}

static int parse_offsets(SafeTensor *t, const cJSON *offsets, uint64_t data_bytes, Error *err) {
  const cJSON *begin = cJSON_IsArray(offsets) ? offsets->child : NULL;
  const cJSON *end = begin ? begin->next : NULL;
  if (!end || end->next) return error_set(err, "data_offsets is not an array of two numbers");
  if (whole_number(begin, &t->begin) != 0 || whole_number(end, &t->end) != 0)
    return error_set(err, "data_offsets has an entry that is not a whole number below 2^53");
  if (t->begin > t->end || t->end > data_bytes)
    return error_set(err,
                     "data_offsets [%llu, %llu] do not lie in order within the %llu bytes of "
                     "data in the file",
                     (unsigned long long)t->begin, (unsigned long long)t->end,
                     (unsigned long long)data_bytes);
  return 0;
}

static int check_size(const SafeTensor *t, uint64_t element_bytes, const char *dtype, Error *err) {
  uint64_t bytes = element_bytes;
  for (int i = 0; i < t->rank; i++)
    if (__builtin_mul_overflow(bytes, (uint64_t)t->shape[i], &bytes))
      return error_set(err, "the size of shape %s overflows 64 bits",
                       safetensors_shape_text(t).text);
  if (bytes != t->end - t->begin)
    return error_set(err,
                     "dtype %s and shape %s need %llu bytes, but data_offsets [%llu, %llu] "
                     "hold %llu",
                     dtype, safetensors_shape_text(t).text, (unsigned long long)bytes,
                     (unsigned long long)t->begin, (unsigned long long)t->end,
                     (unsigned long long)(t->end - t->begin));
  return 0;
}

// Fills all of t but its name.
static int parse_tensor(SafeTensor *t, const cJSON *entry, uint64_t data_bytes, Error *err) {
  if (!cJSON_IsObject(entry)) return error_set(err, "it is not an object");
  const char *twice = json_duplicate_key(entry);
  if (twice) return error_set(err, "the field '%.100s' is there twice", twice);
  const cJSON *dtype = NULL, *shape = NULL, *offsets = NULL, *field;
  cJSON_ArrayForEach(field, entry) {
    if (strcmp(field->string, "dtype") == 0)
      dtype = field;
    else if (strcmp(field->string, "shape") == 0)
      shape = field;
    else if (strcmp(field->string, "data_offsets") == 0)
      offsets = field;
    else
      return error_set(err,
                       "the field '%.100s' is unknown (a tensor has dtype, shape and data_offsets)",
                       field->string);
  }
  const char *missing = !dtype ? "dtype" : !shape ? "shape" : !offsets ? "data_offsets" : NULL;
  if (missing) return error_set(err, "the field '%s' is missing", missing);
  if (!cJSON_IsString(dtype)) return error_set(err, "dtype is not a string");
  int kind = 0;
  while (kind < DTYPE_COUNT && strcmp(dtypes[kind].name, dtype->valuestring) != 0) kind++;
  if (kind == DTYPE_COUNT)
    return error_set(err, "the dtype '%.100s' is unknown", dtype->valuestring);
  t->dtype = dtypes[kind].dtype;
  if (parse_shape(t, shape, err) != 0 || parse_offsets(t, offsets, data_bytes, err) != 0) return -1;
  return check_size(t, dtypes[kind].bytes, dtypes[kind].name, err);
}

// ---- The whole header

static bool printable(const char *name) {
  for (; *name; name++)
    if ((unsigned char)*name < 0x20) return false;
  return true;
}

static int check_metadata(const char *name, const cJSON *metadata, Error *err) {
  if (!cJSON_IsObject(metadata))
    return error_set(err, "'%s': __metadata__ in the header is not an object", name);
  const char *twice = json_duplicate_key(metadata);
  if (twice) return error_set(err, "'%s': __metadata__ has the key '%.200s' twice", name, twice);
  const cJSON *item;
  cJSON_ArrayForEach(item, metadata) {
    if (!cJSON_IsString(item))
      return error_set(err, "'%s': the value of '%.200s' in __metadata__ is not a string", name,
                       item->string);
  }
  return 0;
}

static int compare_offsets(const void *a, const void *b) {
  const SafeTensor *s = a, *t = b;
  if (s->begin != t->begin) return s->begin < t->begin ? -1 : 1;
  if (s->end != t->end) return s->end < t->end ? -1 : 1;
  return strcmp(s->name, t->name);
}

static int compare_tensor_names(const void *a, const void *b) {
  return strcmp((*(const SafeTensor *const *)a)->name, (*(const SafeTensor *const *)b)->name);
}

static int read_tensors(SafeFile *file, const char *name, const cJSON *root, uint64_t data_bytes,
                        Error *err) {
  const char *twice = json_duplicate_key(root);
  if (twice) return error_set(err, "'%s': the header has the name '%.200s' twice", name, twice);
  size_t entries = 0;
  const cJSON *entry;
  cJSON_ArrayForEach(entry, root) entries++;
  file->tensors = xcalloc(entries + 1, sizeof *file->tensors);
  file->by_name = xcalloc(entries + 1, sizeof *file->by_name);
  cJSON_ArrayForEach(entry, root) {
    if (strcmp(entry->string, "__metadata__") == 0) {
      if (check_metadata(name, entry, err) != 0) return -1;
      continue;
    }
    if (!printable(entry->string))
      return error_set(err, "'%s': the name of a tensor has a control character", name);
    SafeTensor *t = &file->tensors[file->count];
    if (parse_tensor(t, entry, data_bytes, err) != 0)
      return error_prefix(err, "'%s': tensor '%.200s'", name, entry->string);
    t->name = xstrdup(entry->string);
    file->count++;
  }
  return 0;
}

static int check_contiguous(SafeFile *file, const char *name, uint64_t data_bytes, Error *err) {
  uint64_t at = 0;
  for (int i = 0; i < file->count; i++) {
    const SafeTensor *t = &file->tensors[i];
    if (t->begin != at)
      return error_set(err,
                       "'%s': tensor '%.200s' begins at byte %llu of the data, %s byte %llu "
                       "where the tensor before it ends",
                       name, t->name, (unsigned long long)t->begin,
                       t->begin < at ? "which overlaps others: before"
                                     : "which leaves a hole after",
                       (unsigned long long)at);
    at = t->end;
  }
  if (at != data_bytes)
    return error_set(err,
                     "'%s': the tensors end at byte %llu of the data, but the file has %llu bytes",
                     name, (unsigned long long)at, (unsigned long long)data_bytes);
  return 0;
}

int safetensors_parse(SafeFile *file, const char *name, const unsigned char *bytes, size_t count,
                      Error *err) {
  *file = (SafeFile){0};
  if (count < LENGTH_BYTES)
    return error_set(err,
                     "'%s' is not a safetensors file: it has %zu bytes, not even the %d that "
                     "tell the length of its header",
                     name, count, LENGTH_BYTES);
  uint64_t length = 0;
  for (int i = LENGTH_BYTES - 1; i >= 0; i--) length = length << 8 | bytes[i];
  if (length > HEADER_MAX_BYTES)
    return error_set(err,
                     "'%s' is not a safetensors file: its header would have %llu bytes, more "
                     "than the %d allowed",
                     name, (unsigned long long)length, HEADER_MAX_BYTES);
  if (length > count - LENGTH_BYTES)
    return error_set(err, "'%s' is cut off: its header should have %llu bytes, but only %zu follow",
                     name, (unsigned long long)length, count - LENGTH_BYTES);
  cJSON *root = parse_header(name, bytes + LENGTH_BYTES, (size_t)length, err);
  if (!root) return -1;
  const uint64_t data_bytes = count - LENGTH_BYTES - length;
  int status = read_tensors(file, name, root, data_bytes, err);
  cJSON_Delete(root);
  if (status == 0) {
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_offsets);
    for (int i = 0; i < file->count; i++) file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, (size_t)file->count, sizeof *file->by_name, compare_tensor_names);
    status = check_contiguous(file, name, data_bytes, err);
  }
  file->data = bytes + LENGTH_BYTES + length;
  if (status != 0) safetensors_close(file);
  return status;
}

int safetensors_open(SafeFile *file, const char *path, Error *err) {
  *file = (SafeFile){0};
  MappedFile map;
  if (file_map(&map, path, err) != 0) return -1;
  const int status = safetensors_parse(file, path, map.data, map.bytes, err);
  if (status != 0)
    file_unmap(&map);
  else
    file->map = map;
  return status;
}

void safetensors_close(SafeFile *file) {
  for (int i = 0; i < file->count; i++) free(file->tensors[i].name);
  free(file->tensors);
  free(file->by_name);
  file_unmap(&file->map);
  *file = (SafeFile){0};
}

const SafeTensor *safetensors_find(const SafeFile *file, const char *name) {
  int low = 0, high = file->count; // the name is in by_name[low, high) if anywhere
  while (low < high) {
    const int middle = low + (high - low) / 2;
    const int order = strcmp(name, file->by_name[middle]->name);
    if (order == 0) return file->by_name[middle];
    if (order < 0)
      high = middle;
    else
      low = middle + 1;
  }
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

int safetensors_read_f32(const SafeFile *file, const SafeTensor *t, int64_t first, int64_t count,
                         float *values, Error *err) {
  const size_t size = t->dtype == SAFE_F32 ? 4 : 2;
  if (t->dtype != SAFE_F32 && t->dtype != SAFE_BF16 && t->dtype != SAFE_F16)
    return error_set(err, "tensor '%.200s' is not of dtype F32, BF16 or F16", t->name);
  assert(first >= 0 && count >= 0 && (uint64_t)(first + count) <= (t->end - t->begin) / size);
  const unsigned char *from = file->data + t->begin + (uint64_t)first * size;
  if (t->dtype == SAFE_F32) {
    if (count > 0) memcpy(values, from, (size_t)count * size);
    return 0;
  }
  for (int64_t i = 0; i < count; i++) {
    uint16_t bits; // the data of a file need not be aligned
    memcpy(&bits, from + (size_t)i * size, size);
    values[i] = t->dtype == SAFE_BF16 ? float_of_bits((uint32_t)bits << 16) : float_of_half(bits);
  }
  return 0;
}
