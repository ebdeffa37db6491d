// What a checkpoint has for other programs besides its weights: config.json, generation_config.json
// and the tokenizer's files. What a run started from is carried over into every checkpoint of it.
#pragma once
#include "data/tokenizer/tokenizer.h"
#include "model/config/config.h"

typedef struct CarriedFile {
  const char *name;
  char *data;
  size_t bytes;
} CarriedFile;

typedef struct Export {
  const Tokenizer *tokenizer; // the caller's; NULL where none is known
  char *config;               // the config.json that ours goes on from, or NULL
  bool same_tokenizer;        // as there, so that its ids and the files below are right
  CarriedFile *files;
  int count;
  uint64_t shard_bytes; // of weights in a file at most; 0: 5 GB
} Export;

// Reads what is carried over from the folder `from`: a checkpoint or a Hugging Face folder; "" if a
// run starts from nothing. Where its tokenizer is not `tokenizer`, only fields of config.json are.
int export_open(Export *x, const Tokenizer *tokenizer, const char *from, Error *err);
void export_close(Export *x); // zeros are fine
// Writes and syncs all of that. x may be NULL: config.json alone. dtype: of the weights.
int export_write(const Export *x, const char *folder, const ModelConfig *model, SaveDtype dtype,
                 Error *err);
