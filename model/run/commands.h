// Commands of ./train other than training and --bench, and the model that they load.
#pragma once
#include <stdint.h>
#include "base/error.h"
#include "data/tokenizer/tokenizer.h"
#include "model/run/checkpoint/checkpoint.h"
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
  DocumentAttention document_attention; // for loaded_load
  Backend *be;
  Llama llama;
} LoadedModel;

// Reads all but the weights. dir: as model_folder_read takes it. Without a tokenizer.json a model
// of BYTE_VOCAB tokens takes bytes. The ends are eos_token_id of generation_config.json, else of
// config.json, else the tokenizer's. loaded_close afterwards, also after an error.
int loaded_open(LoadedModel *t, const char *dir, Error *err);
// Of the option --weights, or NULL: which form loaded_load's products get. -1 where it is another
// word, or the model's widths are none of FP8's.
#define WEIGHTS "bf16 or fp8"
int loaded_weights(const LoadedModel *t, const char *weights, Spec *asked, Error *err);
// The weights, on the backend that there is, for forwards of micro-batches like `asked`.
// asked.context: of the one generator there will be; 0: none, and the micro-batches may change from
// call to call. `advice` is for the user whose memory is short.
int loaded_load(LoadedModel *t, Spec asked, const char *advice, Error *err);
void loaded_close(LoadedModel *t); // zeros are fine

#define NO_CONFIG "no config given; see ./train --help"

// ---- Commands of ./train. They get the words behind their own, and print their result. -1 with a
// message, else the exit status.

// --generate: continues a text with a trained model, token by token, until a signal comes. With a
// user's message, or on a terminal where the model's chat template is known, it answers.
int generate_command(int argc, char **argv, Error *err);
// The prompt of a model without a tokenizer: ids separated by white space. ids gets them appended.
int generate_parse_ids(const char *text, TokenIds *ids, Error *err);

// --eval: the mean loss of a token, perplexity, and bits per byte of text. Documents are packed as
// in training; with "join", or where their ends are not known, each file is one. One that is longer
// than a window is cut: each piece begins with the last token of the one before, so every token but
// a document's first has a loss once, unless a mask says that it does not count. Bits per byte: the
// losses of these tokens, also of tokens that are no text, over the bytes of their text.
int eval_command(int argc, char **argv, Error *err);

// --score: what the model scores on tasks (data/tasks/tasks.h), in a table or as JSON.
int score_command(int argc, char **argv, Error *err);

// --plan: the resolved configuration, and the memory of the run.
int plan_command(int argc, char **argv, Error *err);

// --fit: writes a config for this machine, token files and a time. Keys that the user names are
// kept, and what goes with them is chosen for them.
int fit_command(int argc, char **argv, Error *err);

// --page: writes an HTML file that shows runs, or with --serve follows them on 127.0.0.1 until a
// signal comes. --compare: what differs between runs and which is better, as text.
int page_command(int argc, char **argv, Error *err);
int compare_command(int argc, char **argv, Error *err);

// --bench: model/run/bench.h.
int bench_command(int argc, char **argv, Error *err);

// --doctor: which paths this machine can train on and, tried with a tiny model, whether they work.
// 0 if every path that the machine has the hardware for works; 1 if one fails or misses something.
int doctor_command(int argc, char **argv, Error *err);
