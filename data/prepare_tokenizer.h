// What `./prepare --train-tokenizer N --out FOLDER TEXT...` does: trains a tokenizer on the texts.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "data/corpus.h"

typedef struct TokenizerJob {
  const char *out;           // folder for tokenizer.json and tokenizer_config.json; made if missing
  int64_t vocab_size;        // all ids, special tokens among them
  const char *pattern;       // cuts text into words; NULL: Llama 3's
  int threads;               // 0: one for each core
  bool force;                // an existing tokenizer.json may be replaced
  bool (*interrupted)(void); // asked between blocks and merges; true: ends with an error
} TokenizerJob;

// Shows its progress on standard error and a report on standard output. On an error nothing is
// left behind, and an existing tokenizer stays as it is.
int prepare_tokenizer(const Corpus *corpus, const TokenizerJob *job, Error *err);
