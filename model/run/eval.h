// ./train --eval: how well a trained model predicts a text.
#pragma once
#include <signal.h>
#include <stdint.h>
#include "base/error.h"

typedef struct EvalArgs {
  const char *dir;  // as for --generate
  const char *data; // token files: a glob that ends in .bin, or a folder with val-*.bin; or a text
  int64_t length;   // of a window; 0: max_position_embeddings, at most 4096
  int64_t batch;    // windows at a time; 0: about 8192 tokens
} EvalArgs;

// What follows --eval on the command line.
int eval_parse(EvalArgs *args, int argc, char *const *argv, Error *err);

// Prints the mean loss of a token, perplexity, and bits per byte of text. A file is cut into
// windows as in training, but to its end: each begins with the last token of the one before, and
// the last one is shorter, so every token but the file's first has a loss once. Bits per byte: the
// losses of all these tokens, also of those that are no text, over the bytes of their text.
int eval_run(const EvalArgs *args, const volatile sig_atomic_t *stop, Error *err);
