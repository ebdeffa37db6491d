// A trained model, to write with or to evaluate.
#pragma once
#include "data/tokenizer/tokenizer.h"
#include "model/checkpoint/checkpoint.h"
#include "model/generate.h"
#include "model/run/backend.h"

typedef struct Trained {
  Checkpoint start; // the folder that the user named, or that it stands for
  ModelConfig model;
  Tokenizer *tokenizer;   // NULL: there is none
  int32_t ends[MAX_ENDS]; // the tokens that end a text, of which a SampleOptions has as many
  int end_count;
  Hardware hardware;
  Backend *be;
  Llama llama;
} Trained;

// Reads all but the weights. dir: as model_folder_read takes it. Without a tokenizer.json a model
// of BYTE_VOCAB tokens takes bytes. The ends are eos_token_id of generation_config.json, else of
// config.json, else the tokenizer's. trained_close afterwards, also after an error.
int trained_open(Trained *t, const char *dir, Error *err);
// The weights, on the backend that there is, for forwards of micro-batches like
// `asked`. asked.context: of the one generator there will be; 0: none, and the micro-batches may
// change from call to call. `advice` is for the user whose memory is short.
int trained_load(Trained *t, Spec asked, const char *advice, Error *err);
// The weights, and a generator of at most `context` positions, which may not be more than the model
// has. NULL on error.
Generator *trained_generator(Trained *t, int64_t context, Error *err);
void trained_close(Trained *t); // zeros are fine
