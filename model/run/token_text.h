// Text in and out of a model: the token ids of a prompt, generated tokens as text, and the number
// of bytes of text that token ids stand for.
#pragma once
#include <signal.h>
#include "data/batch.h"
#include "data/tokenizer/tokenizer.h"
#include "model/generate.h"

// Appends the ids of a prompt: BOS, where the tokenizer has one and the text does not begin with
// it, then those of the text. An empty prompt of a tokenizer without BOS is EOS, where a document
// before would end; without EOS, too, it is an error.
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

// Counts the bytes of the text that token ids stand for.
typedef struct TextBytes {
  Decoder *decoder; // NULL: there is no tokenizer, and nothing is counted
  int32_t bos, eos;
  int64_t count;
} TextBytes;
void text_bytes_open(TextBytes *t, const Tokenizer *tokenizer); // NULL: no tokenizer
void text_bytes_close(TextBytes *t);
// The text of a batch's first windows, of T rows each: of every document alone. Where one is cut in
// a character, the bytes of both pieces are those of the whole.
void text_bytes_batch(TextBytes *t, const Batch *batch, int64_t windows, int64_t T);
// The targets of rows that follow one another in a text, but those that are NO_TARGET. The first
// input is not counted, but the text of the next tokens may depend on it.
void text_bytes_targets(TextBytes *t, const int32_t *tokens, const int32_t *targets, int64_t rows);
// Bits a byte where the losses of that text have the sum `nats`; NAN where there are no bytes.
double bits_per_byte(double nats, int64_t bytes);
