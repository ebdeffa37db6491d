// A trainer's run of a few steps on the CPU, for tests of what happens around steps.
#pragma once
#include "model/config/config.h"

// A folder with tokens.bin in *state. For cmocka's set-up; remove_folder (data_test.h) takes it
// away.
int make_tokens_folder(void **state);

// Of a model as tiny_run.h's that trains on them for `steps` steps. `output` goes into the config's
// "output" object, from its comma on. A failure fails the test.
Config tiny_trainer_config(const char *folder, int steps, const char *output);
