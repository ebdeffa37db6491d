// ./train --generate: writes with a trained model.
#pragma once
#include <signal.h>
#include "data/tokenizer/tokenizer.h"
#include "model/generate.h"

typedef struct WriteArgs {
  const char *dir;    // of a run, a checkpoint, or a Hugging Face LLaMA folder
  const char *prompt; // NULL: stdin
  SampleOptions options;
} WriteArgs;

// What follows --generate on the command line.
int write_parse(WriteArgs *args, int argc, char *const *argv, Error *err);
// The prompt of a model without a tokenizer: ids separated by white space. ids gets them appended.
int write_parse_ids(const char *text, TokenIds *ids, Error *err);
// Prints the prompt and what follows, token by token, until *stop is not 0.
int write_run(const WriteArgs *args, const volatile sig_atomic_t *stop, Error *err);
