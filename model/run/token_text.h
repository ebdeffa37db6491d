// Text in and out of a model: the token ids of a prompt, generated tokens as text, and the number
// of bytes of text that token ids stand for.
#pragma once
#include <signal.h>
#include "data/batch.h"
#include "data/tokenizer/tokenizer.h"
#include "model/generate.h"

// Appends the ids of a prompt: BOS, where the tokenizer has one and the text does not begin with
// it, then the ids of the text. With a tokenizer without BOS, an empty prompt is EOS, as if a
// document had just ended; without EOS, too, it is an error.
int prompt_ids(const Tokenizer *tokenizer, const char *text, size_t bytes, TokenIds *ids,
               Error *err);

typedef struct TextGeneration {
  Generator *generator;
  const Tokenizer *tokenizer; // NULL: token ids are written, each with a space in front
  SampleOptions options;
  const volatile sig_atomic_t *stop;                                      // not 0: no more tokens
  int (*show)(void *context, const char *text, size_t bytes, Error *err); // -1: no more
  void *context;
} TextGeneration;

// Shows prompt[bytes], then the text that the model generates after its ids: whole UTF-8
// characters, each as soon as it is complete. Bytes that are no character are shown as they are.
int text_generate(const TextGeneration *w, const char *prompt, size_t bytes, const TokenIds *ids,
                  Error *err);

// A TextGeneration's `show` that writes to standard output at once; its context is not looked at.
// -1 also where an earlier write failed.
int text_print(void *context, const char *text, size_t bytes, Error *err);

// Counts the bytes of the text that token ids stand for.
typedef struct TextBytes {
  Decoder *decoder; // NULL: there is no tokenizer, and nothing is counted
  int32_t bos, eos;
  int64_t count;
} TextBytes;
void text_bytes_open(TextBytes *t, const Tokenizer *tokenizer); // NULL: no tokenizer
void text_bytes_close(TextBytes *t);
// Counts the text of a batch's first windows, of T rows each, every document alone. A document
// split inside a character still counts each byte once.
void text_bytes_batch(TextBytes *t, const Batch *batch, int64_t windows, int64_t T);
// Counts the targets of rows that follow one another in a text, except NO_TARGET. The first input
// is not counted, but the text of the next tokens may depend on it.
void text_bytes_targets(TextBytes *t, const int32_t *tokens, const int32_t *targets, int64_t rows);
// Bits a byte if the losses of that text add up to `nats`; NAN where there are no bytes.
double bits_per_byte(double nats, int64_t bytes);
