// Training a byte-level BPE tokenizer: text is counted first, then the merges are found.
//
// Words are the matches of the pattern, and the text between them; bytes that
// are not UTF-8 are words as they are. Words longer than BPE_LONGEST_WORD bytes are cut again. Of
// more than 16 million different words the rarest are forgotten, so that memory stays bounded. The
// same pieces of text give the same tokenizer, however many threads count.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"

#define BPE_BEGIN "<|begin_of_text|>"
#define BPE_END "<|end_of_text|>"
enum { BPE_MIN_VOCAB = 258, BPE_MAX_VOCAB = 1 << 20, BPE_LONGEST_WORD = 256 };

typedef struct BpeOptions {
  int64_t vocab_size;  // all ids: 256 bytes, the merges' tokens, then BPE_BEGIN and BPE_END
  const char *pattern; // the caller's until the trainer is closed
  int threads;         // that count; 0: one for each core
} BpeOptions;

typedef struct BpeTrainer BpeTrainer;

// NULL if an option is wrong.
BpeTrainer *bpe_trainer_open(const BpeOptions *options, Error *err);
void bpe_trainer_close(BpeTrainer *trainer); // NULL is fine

// Takes a document, or a piece of one that ends where a word does. Of more than 1 MiB at once every
// MiB is cut off, wherever that is. An error: the pattern ran into PCRE2's limits.
int bpe_trainer_add(BpeTrainer *trainer, const char *text, size_t bytes, Error *err);

// Makes at most so many tokens more; no text can be added then. 1: there is more to do, 0: done,
// -1: the text is too little for the vocabulary, or an error as of bpe_trainer_add.
int bpe_trainer_step(BpeTrainer *trainer, int64_t tokens, Error *err);

typedef struct BpeProgress {
  int64_t bytes;      // of text so far
  int64_t words;      // different ones; known when the first step is done
  int64_t tokens;     // made so far, bytes and special tokens among them
  int64_t vocab_size; // to be made
} BpeProgress;
BpeProgress bpe_trainer_progress(const BpeTrainer *trainer);
// How many tokens the text has with those made so far, without BOS and EOS. After a first step.
int64_t bpe_trainer_text_tokens(const BpeTrainer *trainer);

// When it is done: writes tokenizer.json and tokenizer_config.json into the folder, which must be
// there. They are synced, and take their names when both are complete.
int bpe_trainer_save(const BpeTrainer *trainer, const char *folder, Error *err);
