// A run of a few steps on the CPU, for tests of what happens around steps.
#pragma once
#include "model/run/run.h"

// A folder with tokens.bin in *state. A set-up.
int make_tokens_folder(void **state);

// Of a model as tiny_run.h's that trains on them for `steps` steps. `output` goes into the config's
// "output" object, from its comma on. A failure fails the test.
Config tiny_training_config(const char *folder, int steps, const char *output);

// Opens a run that nobody stops.
void tiny_training_open(Run *run, const Config *config);
// As train.c's loop does it.
void tiny_training_step(Run *run);
