// The safetensors file format, strict. A file is: 8 bytes little-endian header length, a JSON
// object (padded with spaces), then the data:
//
//   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//    "__metadata__": {"k": "v"}}
//
// Offsets count from the end of the header. Format: the safetensors README
// (huggingface/safetensors). The reader accepts a file only if the header is at most 16 MB (the
// format's limit is 100, but the largest models have some 100 kB) and inside the file, names are
// unique, ranges are contiguous from 0 in offset order and end exactly at the end of the file, and
// each range equals its shape times its dtype, all without overflow. A whole number may be written
// in any way that JSON has (1e3). Nothing here aborts on bad input.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/file.h"
#include "base/error.h"
#include "base/memory.h"

// Every dtype of the format, with the bytes of an element. F32, BF16 and F16 can be read as float.
#define SAFE_DTYPES(X)                                                                             \
  X(F32, 4)                                                                                        \
  X(F64, 8)                                                                                        \
  X(BF16, 2)                                                                                       \
  X(F16, 2)                                                                                        \
  X(I32, 4)                                                                                        \
  X(I64, 8)                                                                                        \
  X(U8, 1) X(BOOL, 1) X(I8, 1) X(I16, 2) X(U16, 2) X(U32, 4) X(U64, 8) X(F8_E5M2, 1) X(F8_E4M3, 1)
#define SAFE_ENUMERATOR(name, bytes) SAFE_##name,
typedef enum SafeDtype { SAFE_DTYPES(SAFE_ENUMERATOR) SAFE_DTYPE_COUNT } SafeDtype;
#undef SAFE_ENUMERATOR

enum { SAFE_MAX_RANK = 8 };

typedef struct SafeTensor {
  char *name; // owned
  SafeDtype dtype;
  int rank;
  int64_t shape[SAFE_MAX_RANK];
  uint64_t begin, end; // bytes from the start of the data
} SafeTensor;

typedef struct SafeFile {
  char *path; // owned
  int fd;
  uint64_t bytes, start; // of the file; of the data in it
  unsigned char *header; // owned: [start], as it was read once
  uint64_t *sums;        // owned: [safetensors_portions] XXH3-64s that were checked; NULL: none yet
  int64_t step;          // of training, where the metadata's "step" says so; else -1
  int count;
  SafeTensor *tensors; // in offset order
} SafeFile;

int safetensors_open(SafeFile *file, const char *path, Error *err);
void safetensors_close(SafeFile *file);
const SafeTensor *safetensors_find(const SafeFile *file, const char *name); // NULL if absent

// The bytes of its data; UINT64_MAX where they overflow 64 bits.
uint64_t safetensors_bytes(const SafeTensor *t);
// "[2, 3]", for sentences.
ShortText safetensors_shape_text(const SafeTensor *t);
// [count] elements of F32, BF16 or F16, which need not be aligned, as floats (exactly).
void safetensors_floats(SafeDtype dtype, const unsigned char *from, int64_t count, float *values);
uint64_t safetensors_element(SafeDtype dtype); // its bytes

// ---- Reading an open file, in portions, so that what is used is what was checked: the bytes of a
// portion are private memory, with which its checksum is compared each time. Several threads may.

enum { SAFE_PORTION = 128 << 10, SAFE_SLACK = 8 };
static inline size_t safetensors_portions(const SafeFile *file) {
  return (size_t)((file->bytes + SAFE_PORTION - 1) / SAFE_PORTION);
}
// Reads the portion, and as many of the SAFE_SLACK bytes behind it as there are, into
// room[SAFE_PORTION + SAFE_SLACK]. -1 also where it differs from file->sums.
int safetensors_read(const SafeFile *file, size_t portion, unsigned char *room, Error *err);

// Writing: names, shapes and dtypes first (begin and end are not read), then all data of each
// tensor, in the same order, in pieces. Names must be unique. Every file carries the metadata
// {"format": "pt"}, without which transformers refuses to load it, and "step" where that is not
// negative. The first failure closes the writer and leaves the partial file to the caller; later
// calls fail with the same error.
typedef struct SafeWriter {
  FileWriter file;
  uint64_t expected; // bytes of data announced
  uint64_t header;   // bytes before them
  Checksum hash;
  uint64_t checksum; // of the whole file, after finish
} SafeWriter;
int safetensors_create(SafeWriter *w, const char *path, int64_t step, int count,
                       const SafeTensor *tensors, Error *err);
int safetensors_append(SafeWriter *w, const void *data, size_t bytes, Error *err);
// The same of `count` floats, as F32 or rounded to BF16 (to nearest, ties to even).
int safetensors_append_f32(SafeWriter *w, SafeDtype dtype, const float *values, int64_t count,
                           Error *err);
int safetensors_finish(SafeWriter *w, Error *err);
