// Text in and out of a model: the token ids of a prompt, and what is written as text.
#pragma once
#include <signal.h>
#include "data/tokenizer/tokenizer.h"
#include "model/generate.h"

// Appends the ids that a model is given for a prompt: the tokenizer's begin, where it has one and
// the text does not start with it, then the text's. An empty prompt of a tokenizer without begin is
// its end, which is where a document before would stop; without that, too, an error.
int prompt_ids(const Tokenizer *tokenizer, const char *text, size_t bytes, TokenIds *ids,
               Error *err);

typedef struct Writing {
  Generator *generator;
  const Tokenizer *tokenizer; // NULL: token ids are written, each with a space in front
  SampleOptions options;
  const volatile sig_atomic_t *stop;                                      // not 0: no more tokens
  int (*show)(void *context, const char *text, size_t bytes, Error *err); // -1: no more
  void *context;
} Writing;

// Shows prompt[bytes], then what the model writes after its ids: whole UTF-8 characters, as soon as
// they are. What is no character is shown as it is.
int text_write(const Writing *w, const char *prompt, size_t bytes, const TokenIds *ids, Error *err);
