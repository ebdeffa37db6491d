// A training run as an object: everything train.c's loop calls, one function per thing that happens
// in a run.
#pragma once
#include "data/loader.h"
#include "model/checkpoint.h"
#include "model/generate.h"
#include "model/llama.h"
#include "model/log.h"

typedef struct Trainer {
  Config config;
  Backend *be;
  Llama llama;
  Loader *train_data;
  Loader *val_data;     // NULL: no validation
  Generator *generator; // NULL: no samples
  RunLog log;
  TrainState state;
  bool resumed;
  int64_t saved_step;        // step of the newest checkpoint, -1 = none yet
  int32_t *tokens, *targets; // [B, T] each, host
} Trainer;

// True once the user asked the run to stop. Validation and sampling look at it between batches and
// tokens.
typedef bool StopRequested(void);

// Checks and opens everything: data, backend, memory, weights (random, from init_from, or resumed),
// log. Prints the start-up table. On an error nothing is left open, and nothing was written.
int trainer_open(Trainer *t, const Config *config, Error *err);
void trainer_close(Trainer *t);

// One optimizer step: gradient_accumulation micro-batches, update, log line. An error means: too
// many refused updates in a row.
int trainer_step(Trainer *t, Error *err);

void trainer_validate(Trainer *t, StopRequested *stop);
void trainer_sample(Trainer *t, StopRequested *stop);
int trainer_save(Trainer *t, Error *err);

// The backend that config asks for and this build and machine have.
Backend *backend_create(const Config *config, const RunShape *shape, int64_t max_positions,
                        Error *err);

// The shapes of a training run.
RunShape run_shape(const Config *config);
