// What ./prepare does: encodes texts into a folder of token files, shows such a folder as text, or
// trains a tokenizer.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "data/prepare/corpus.h"

typedef struct PrepareOptions {
  const char *out;       // folder
  const char *tokenizer; // as tokenizer_open takes it
  const char *field;     // of .jsonl lines; NULL: "text", and standard input is text
  const char *separator; // of documents in text; NULL: none
  const char *template;  // --template; NULL: the tokenizer's own
  bool chat;             // the paths hold conversations
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

// ---- Training a tokenizer

typedef struct TokenizerJob {
  const char *out;      // folder for tokenizer.json and tokenizer_config.json; made if missing
  int64_t vocab_size;   // all ids, special tokens among them
  const char *pattern;  // cuts text into words; NULL: Llama 3's
  const char *template; // whose markers become special tokens, as template_named has it; or NULL
  int threads;          // 0: one for each core
  bool force;           // a tokenizer.json that is there may be replaced
} TokenizerJob;

// Refuses before a text is read, as far as possible.
int prepare_tokenizer_check(const TokenizerJob *job, Error *err);
// Shows its progress on standard error and a report on standard output. Ends with an error if a
// signal came that is held back (base/os.h). After an error no file is left behind, and an
// older tokenizer stays.
int prepare_tokenizer(const Corpus *corpus, const TokenizerJob *job, Error *err);
