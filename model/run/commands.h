// Commands of ./train other than training: --generate, --eval and --plan.
#pragma once
#include <signal.h>
#include <stdint.h>
#include "base/error.h"
#include "data/chat/template.h"
#include "data/tokenizer/tokenizer.h"
#include "model/config/config.h"
#include "model/generate.h"
#include "model/run/trained.h"

// ---- --generate: continues a text with a trained model

typedef struct GenerateArgs {
  const char *dir;    // of a run, a checkpoint, or a Hugging Face LLaMA folder
  const char *prompt; // NULL: stdin
  const char *user;   // a message to be answered; NULL: none
  const char *system; // the message in front of it; NULL: none
  SampleOptions options;
} GenerateArgs;

// The arguments after --generate.
int generate_parse(GenerateArgs *args, int argc, char *const *argv, Error *err);
// The prompt of a model without a tokenizer: ids separated by white space. ids gets them appended.
int generate_parse_ids(const char *text, TokenIds *ids, Error *err);
// Prints the prompt and the generated text, token by token, until *stop is not 0. With a user's
// message, or a terminal and a model whose chat template is known, it is chat_run.
int generate_run(const GenerateArgs *args, const volatile sig_atomic_t *stop, Error *err);

// Answers args->user, or without it lines of standard input until its end, with all that was said
// before in view. An error where the context is full.
int chat_run(Trained *t, const GenerateArgs *args, const volatile sig_atomic_t *stop, Error *err);
// The template of the model's tokenizer; NULL: it is not known, and the sentence says what to do.
const ChatTemplate *chat_template(const Trained *t, Error *err);

// ---- --eval: how well a trained model predicts a text

typedef struct EvalArgs {
  const char *dir;  // as for --generate
  const char *data; // token files: a glob that ends in .bin, or a folder with val-*.bin; or a text
  int64_t length;   // of a window; 0: max_position_embeddings, at most 4096
  int64_t batch;    // windows at a time; 0: about 8192 tokens
  const char *documents; // "mask", "join" (data.documents); NULL: as the run's, or mask
} EvalArgs;

// The arguments after --eval.
int eval_parse(EvalArgs *args, int argc, char *const *argv, Error *err);

// Prints the mean loss of a token, perplexity, and bits per byte of text. Documents are packed as
// in training; with "join", or where their ends are not known, each file is one. One that is longer
// than a window is cut: each piece begins with the last token of the one before, so every token but
// a document's first has a loss once, unless a mask says that it does not count. Bits per byte: the
// losses of these tokens, also of tokens that are no text, over the bytes of their text.
int eval_run(const EvalArgs *args, const volatile sig_atomic_t *stop, Error *err);

// ---- --plan: the resolved configuration, and the memory of the run

int plan_print(const Config *config, Error *err);
