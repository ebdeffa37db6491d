// The safetensors file format, strict. A file is: 8 bytes little-endian header length, a JSON
// object
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__":
//   {"k": "v"}}
// (padded with spaces), then the data; offsets count from the end of the header. Format: the
// safetensors README (huggingface/safetensors). The reader accepts a file only if the header is at
// most 100 MB and inside the file, names are unique, ranges are contiguous from 0 in offset order
// and end exactly at the end of the file, and each range equals its shape times its dtype, all
// without overflow. Nothing here aborts on bad input.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "base/file.h"

typedef enum SafeDtype {
  SAFE_F32,
  SAFE_F64,
  SAFE_BF16,
  SAFE_F16,
  SAFE_I32,
  SAFE_I64,
  SAFE_U8,
  SAFE_OTHER
} SafeDtype;

enum { SAFE_MAX_RANK = 8 };

typedef struct SafeTensor {
  char *name;      // owned
  SafeDtype dtype; // SAFE_OTHER: a valid dtype of the format that this program does not read
  int rank;
  int64_t shape[SAFE_MAX_RANK];
  uint64_t begin, end; // bytes from the start of the data
} SafeTensor;

typedef struct SafeFile {
  MappedFile map;
  const unsigned char *data; // first byte after the header
  int count;
  SafeTensor *tensors;        // in offset order
  const SafeTensor **by_name; // the same, in strcmp order
} SafeFile;

int safetensors_open(SafeFile *file, const char *path, Error *err);
// The same over memory the caller keeps (for fuzzing); `name` stands for the path in sentences.
int safetensors_parse(SafeFile *file, const char *name, const unsigned char *bytes, size_t count,
                      Error *err);
void safetensors_close(SafeFile *file);
const SafeTensor *safetensors_find(const SafeFile *file, const char *name); // NULL if absent

// "[2, 3]", for sentences.
typedef struct ShapeText {
  char text[24 * SAFE_MAX_RANK];
} ShapeText;
ShapeText safetensors_shape_text(const SafeTensor *t);
const char *safetensors_dtype_name(SafeDtype dtype); // "F32"; NULL for SAFE_OTHER

// Elements [first, first + count) of t as float; F32, BF16 and F16 are converted (exactly), other
// dtypes are an error. The range must lie inside the tensor.
int safetensors_read_f32(const SafeFile *file, const SafeTensor *t, int64_t first, int64_t count,
                         float *values, Error *err);

// Writing: names, shapes and dtypes first (begin and end are not read), then the data of each
// tensor, in the same order, in pieces. Names must be unique and free of quotes, backslashes and
// control characters. Every file carries the metadata {"format": "pt"}, without which transformers
// refuses to load it. After a failure the writer is closed and the partial file left to the caller.
typedef struct SafeWriter {
  FileWriter file;
  uint64_t expected; // bytes of data announced
} SafeWriter;
int safetensors_create(SafeWriter *w, const char *path, int count, const SafeTensor *tensors,
                       Error *err);
int safetensors_append(SafeWriter *w, const void *data, size_t bytes, Error *err);
int safetensors_finish(SafeWriter *w,
                       Error *err); // an error if more or less data came than announced
void safetensors_abandon(SafeWriter *w);
