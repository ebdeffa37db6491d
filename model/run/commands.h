// Commands of ./train other than training and --bench, and the model that they load.
#pragma once
#include <signal.h>
#include <stdint.h>
#include "base/error.h"
#include "data/chat/template.h"
#include "data/tokenizer/tokenizer.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/config.h"
#include "model/generate.h"
#include "model/run/backend.h"

// ---- loaded_model.c: a trained model, to write with or to evaluate

typedef struct LoadedModel {
  Checkpoint start; // the folder that the user named, or that it stands for
  ModelConfig model;
  Tokenizer *tokenizer;   // NULL: there is none
  int32_t ends[MAX_ENDS]; // the tokens that end a text, of which a SampleOptions has as many
  int end_count;
  Hardware hardware;
  Backend *be;
  Llama llama;
} LoadedModel;

// Reads all but the weights. dir: as model_folder_read takes it. Without a tokenizer.json a model
// of BYTE_VOCAB tokens takes bytes. The ends are eos_token_id of generation_config.json, else of
// config.json, else the tokenizer's. loaded_close afterwards, also after an error.
int loaded_open(LoadedModel *t, const char *dir, Error *err);
// The weights, on the backend that there is, for forwards of micro-batches like `asked`.
// asked.context: of the one generator there will be; 0: none, and the micro-batches may change from
// call to call. `advice` is for the user whose memory is short.
int loaded_load(LoadedModel *t, Spec asked, const char *advice, Error *err);
// The weights, and a generator of at most `context` positions, which may not be more than the model
// has. NULL on error.
Generator *loaded_generator(LoadedModel *t, int64_t context, Error *err);
void loaded_close(LoadedModel *t); // zeros are fine

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
int chat_run(LoadedModel *t, const GenerateArgs *args, const volatile sig_atomic_t *stop,
             Error *err);
// The template of the model's tokenizer; NULL: it is not known, and the sentence says what to do.
const ChatTemplate *chat_template(const LoadedModel *t, Error *err);

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

// ---- --doctor: which paths this machine can train on and, tried with a tiny model, whether they
// work. 0 if every path that the machine has the hardware for works; 1 if one fails or misses
// something.

int doctor(void);
