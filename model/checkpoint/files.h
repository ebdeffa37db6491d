// What lies where in a run's folder. Internal to checkpoint*.c: the rest of the program sees
// checkpoint.h.
#pragma once
#include "model/checkpoint/checkpoint.h"
#include "model/packing.h"

#define WEIGHTS_FILE "model.safetensors"
#define WEIGHTS_INDEX_FILE "model.safetensors.index.json" // of sharded Hugging Face folders
#define MODEL_CONFIG_FILE "config.json"
#define OPTIMIZER_FILE "optimizer.safetensors"
#define RUN_CONFIG_FILE "run.json"
#define STATE_FILE "state.json"
#define LATEST_LINK "latest"

// ---- checkpoint_find.c
// RUN/step-00000100SUFFIX, in fresh memory.
char *step_path(const char *run_dir, int64_t step, const char *suffix);
// 0 if the folder has all five files and its state can be read, else -1 and the reason.
int checkpoint_complete(const char *path, Error *err);
// The steps of all RUN/step-*SUFFIX, descending, in fresh memory (also after a failure). A run_dir
// that does not exist has none.
int step_list(const char *run_dir, const char *suffix, int64_t **steps, int *count, Error *err);

// ---- checkpoint_state.c
// The text of state.json, in fresh memory.
char *state_json(const TrainState *state);

// ---- checkpoint_load.c
// The three values of every parameter that files hold, each under its own prefix.
typedef enum ValueKind { VALUE_WEIGHT, VALUE_EXP_AVG, VALUE_EXP_AVG_SQ, VALUE_KINDS } ValueKind;
master_t *value_of(const ParamTensor *p, ValueKind kind);
char *value_name(const HfTensor *t, ValueKind kind); // "exp_avg.model.norm.weight", fresh memory
