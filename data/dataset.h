// dataset.json, which says of a folder of token files who made them, and what they hold. It is for
// people and other programs: ./train goes by the token files and the tokenizer beside them.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

#define DATASET_FILE "dataset.json"

typedef struct DatasetPart {
  int files;
  int64_t tokens;
  int64_t documents;   // and tails of documents
  int64_t bytes;       // of their text
  uint64_t *checksums; // [files] XXH3-64 of each file's tokens
} DatasetPart;

typedef struct Dataset {
  const char *tokenizer; // its name
  uint64_t fingerprint;
  int64_t vocab_size;
  int32_t begin, end; // or NO_TOKEN
  DatasetPart train, val;
  bool whole_documents; // val: else the tail of each document
  double val_fraction;
  int64_t seed;
} Dataset;

int dataset_write(const Dataset *dataset, const char *folder, Error *err);
