#include "data/safetensors.h"

#include <stdio.h>
#include <stdlib.h>

static int element_bytes(const SafeTensor *t, uint64_t *bytes, Error *err) {
  switch (t->dtype) {
  case SAFE_U8:
    *bytes = 1;
    return 0;
  case SAFE_BF16:
  case SAFE_F16:
    *bytes = 2;
    return 0;
  case SAFE_F32:
  case SAFE_I32:
    *bytes = 4;
    return 0;
  case SAFE_F64:
  case SAFE_I64:
    *bytes = 8;
    return 0;
  case SAFE_OTHER:
    break;
  }
  return error_set(err, "tensor '%.200s' has a dtype that this program does not write", t->name);
}

static int tensor_bytes(const SafeTensor *t, uint64_t *bytes, Error *err) {
  if (element_bytes(t, bytes, err) != 0) return -1;
  for (int i = 0; i < t->rank; i++)
    if (t->shape[i] < 0 || __builtin_mul_overflow(*bytes, (uint64_t)t->shape[i], bytes))
      return error_set(err, "tensor '%.200s' has a size that is negative or overflows 64 bits",
                       t->name);
  return 0;
}

// Writes the header's JSON and returns the bytes of data in *expected.
static int print_header(FILE *out, int count, const SafeTensor *tensors, uint64_t *expected,
                        Error *err) {
  *expected = 0;
  fputs("{\"__metadata__\":{\"format\":\"pt\"}", out);
  for (int i = 0; i < count; i++) {
    const SafeTensor *t = &tensors[i];
    for (const char *c = t->name; *c; c++)
      if ((unsigned char)*c < 0x20 || *c == '"' || *c == '\\')
        return error_set(err, "the tensor name '%.200s' has a character that a file may not have",
                         t->name);
    uint64_t bytes = 0, end;
    if (tensor_bytes(t, &bytes, err) != 0) return -1;
    if (__builtin_add_overflow(*expected, bytes, &end) || end >= UINT64_C(1) << 53)
      return error_set(err, "the tensors up to '%.200s' have more than 2^53 bytes", t->name);
    fprintf(out, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name,
            safetensors_dtype_name(t->dtype));
    for (int j = 0; j < t->rank; j++) fprintf(out, j ? ",%lld" : "%lld", (long long)t->shape[j]);
    fprintf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*expected,
            (unsigned long long)end);
    *expected = end;
  }
  fputc('}', out);
  return 0;
}

int safetensors_create(SafeWriter *w, const char *path, int count, const SafeTensor *tensors,
                       Error *err) {
  *w = (SafeWriter){.file.fd = -1};
  char *header = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&header, &length);
  if (!out) return error_set(err, "cannot write the header of '%s': out of memory", path);
  int status = print_header(out, count, tensors, &w->expected, err);
  const int failed = ferror(out);
  if ((fclose(out) != 0 || failed) && status == 0)
    status = error_set(err, "cannot write the header of '%s': out of memory", path);
  if (status == 0) status = writer_open(&w->file, path, err);
  if (status == 0) {
    // Spaces up to a multiple of 8 bytes, so that mapped data is aligned.
    const size_t padding = (8 - length % 8) % 8;
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)((uint64_t)(length + padding) >> 8 * i);
    if (writer_append(&w->file, prefix, sizeof prefix, err) != 0 ||
        writer_append(&w->file, header, length, err) != 0 ||
        writer_append(&w->file, "       ", padding, err) != 0) {
      writer_abandon(&w->file);
      status = -1;
    }
  }
  w->file.total = 0; // from here on bytes of data
  free(header);
  return status;
}

int safetensors_append(SafeWriter *w, const void *data, size_t bytes, Error *err) {
  return writer_append(&w->file, data, bytes, err);
}

int safetensors_finish(SafeWriter *w, Error *err) {
  if (w->file.fd >= 0 && w->file.total != w->expected) {
    error_set(err, "'%s' got %llu bytes of data, but its tensors have %llu", w->file.path,
              (unsigned long long)w->file.total, (unsigned long long)w->expected);
    writer_abandon(&w->file);
    return -1;
  }
  return writer_finish(&w->file, err);
}

void safetensors_abandon(SafeWriter *w) {
  writer_abandon(&w->file);
}
