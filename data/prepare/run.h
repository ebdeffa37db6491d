// What ./prepare does with texts: encodes them into a folder of token files. And the way back.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

typedef struct PrepareOptions {
  const char *out;       // folder
  const char *tokenizer; // as tokenizer_open takes it
  const char *field;     // of .jsonl lines; NULL: "text", and standard input is text
  const char *separator; // of documents in text; NULL: none
  double val_fraction;
  int64_t seed, shard_tokens, threads;
  bool jsonl; // standard input is .jsonl
  bool force;
  char **paths; // [path_count]
  int path_count;
} PrepareOptions;

// Holds signals back (base/os.h); one that came is an error.
int prepare_run(const PrepareOptions *options, Error *err);

// Prints the first documents of a dataset's folder or a token file. tokenizer: NULL means the one
// that lies with the token files.
int prepare_show(const char *path, const char *tokenizer, int64_t documents, Error *err);
