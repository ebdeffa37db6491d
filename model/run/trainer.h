// A training run as an object: everything train.c's loop calls, one function per thing that happens
// in a run.
#pragma once
#include "data/loader.h"
#include "model/run/backend.h"
#include "model/checkpoint/checkpoint.h"
#include "model/generate.h"
#include "model/llama.h"
#include "model/run/log.h"

// A step that the backend was asked for and whose result was not taken yet.
typedef struct PendingStep {
  double learning_rate, asked_ms;
  bool traced;
  uint64_t cursor; // of the loader, after the step's batches
} PendingStep;

typedef struct Trainer {
  Config config;
  Backend *be;
  Llama llama;
  Loader *train_data;
  Loader *val_data;     // NULL: no validation
  Generator *generator; // NULL: no samples
  RunLog log;
  TrainState state;                 // after the last booked step
  PendingStep pending[MAX_RESULTS]; // a ring
  int64_t asked, booked;            // steps since the start of this process
  double booked_ms;                 // when the last one was booked
  size_t planned_bytes;             // the memory plan's total
  double val_scale;                 // 1 / batches of a validation
  bool resumed;
  bool profiling; // the profilers' window is open
  bool tracing;   // output.breakdown, until tracing fails
  // Steps since the last traced one, without a process' first two: how many, and their time
  int64_t untraced;
  double untraced_ms;
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

// Asks for one optimizer step: gradient_accumulation micro-batches and the update. Its log line and
// place in the state come when its result is there, be->steps_ahead steps later: the GPU never
// waits for the host. An error means: too many refused updates in a row.
int trainer_step(Trainer *t, Error *err);
// Waits for all steps asked for and books them. Comes before validating, sampling and saving.
int trainer_settle(Trainer *t, Error *err);
// Steps done when all that were asked for are.
int64_t trainer_step_asked(const Trainer *t);

void trainer_validate(Trainer *t, StopRequested *stop);
void trainer_sample(Trainer *t, StopRequested *stop);
// Nothing where the step is saved already or train.save_interval says never.
int trainer_save(Trainer *t, Error *err);
