// What `./prepare --train-tokenizer N --out FOLDER TEXT...` does: trains a tokenizer on the texts.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "data/prepare/corpus.h"

typedef struct TokenizerJob {
  const char *out;     // folder for tokenizer.json and tokenizer_config.json; made if missing
  int64_t vocab_size;  // all ids, special tokens among them
  const char *pattern; // cuts text into words; NULL: Llama 3's
  int threads;         // 0: one for each core
  bool force;          // a tokenizer.json that is there may be replaced
} TokenizerJob;

// Refuses what can be refused before a text is looked at.
int prepare_tokenizer_check(const TokenizerJob *job, Error *err);
// Shows its progress on standard error and a report on standard output. Ends with an error if a
// signal came that is held back (base/os.h). On an error nothing is left behind, and a
// tokenizer that was there stays as it is.
int prepare_tokenizer(const Corpus *corpus, const TokenizerJob *job, Error *err);
