// What ./prepare does: encodes texts into a folder of token files, shows such a folder as text, or
// trains a tokenizer.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "data/prepare/corpus.h"

typedef struct PrepareOptions {
  const char *out;       // folder
  const char *tokenizer; // as tokenizer_open takes it
  const char *field;     // of JSON lines; NULL: "text"
  const char *separator; // of documents in text; NULL: none
  const char *template;  // --template; NULL: the tokenizer's own
  bool chat;             // the paths hold conversations
  double val_fraction;   // 0: nothing is kept for validation; without meaning where val_count > 0
  int64_t seed, shard_tokens, threads;
  bool jsonl, text; // all files are JSON lines, or plain text; neither: as their content tells
  bool skip_bad;    // lines without a document are counted, else an error
  bool force;
  int64_t vocab_size;  // of the tokenizer to train, special tokens among them; 0: none
  const char *pattern; // it cuts text into words by this; NULL: Llama 3's
  char **paths;        // [path_count]
  int path_count;
  char **val_paths; // [val_count], for validation
  int val_count;
} PrepareOptions;

// Adds the paths to a corpus with nothing in it but what is left out. Refuses an option that has
// nothing to act on.
int prepare_gather(Corpus *corpus, const PrepareOptions *options, Error *err);
// The report's lines about the files, and about lines that were passed over.
void prepare_print_input(const Corpus *corpus, const BadLines *bad);

// Both hold signals back (base/os.h); a signal that came is an error. They refuse what they can
// before they read a text. Progress goes to standard error, a report to standard output. After an
// error no file is left behind, and what was there stays.
int prepare_run(const PrepareOptions *options, Error *err);       // token files
int prepare_tokenizer(const PrepareOptions *options, Error *err); // tokenizer.json

// Prints the first documents of a dataset's folder or a token file. tokenizer: NULL means the one
// that lies with the token files.
int prepare_show(const char *path, const char *tokenizer, int64_t documents, Error *err);
