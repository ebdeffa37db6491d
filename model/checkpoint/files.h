// What lies where in a run's folder. Internal to model/checkpoint: the rest of the program sees
// checkpoint.h.
#pragma once
#include "data/safetensors.h"
#include "model/checkpoint/checkpoint.h"
#include "model/packing.h"

#define WEIGHTS_FILE "model.safetensors"
#define WEIGHTS_INDEX_FILE "model.safetensors.index.json" // of sharded Hugging Face folders
#define OPTIMIZER_FILE "optimizer.safetensors"
#define RUN_CONFIG_FILE "run.json"
#define STATE_FILE "state.json"
#define LATEST_LINK "latest"

// ---- find.c
// RUN/step-00000100SUFFIX
PathText step_path(const char *run_dir, int64_t step, const char *suffix);
// 0 if the folder has all five files and its state can be read, else -1 and the reason.
int checkpoint_complete(const char *path, Error *err);
// The steps of all RUN/step-*SUFFIX, descending, in fresh memory (also after a failure, then none).
// A run_dir that does not exist has none.
int step_list(const char *run_dir, const char *suffix, int64_t **steps, int *count, Error *err);

// ---- state.c
// The text of state.json, in fresh memory.
char *state_json(const TrainState *state);

// ---- load.c
// The tensors of a file of ours: the weights, or exp_avg.NAME and then exp_avg_sq.NAME of each.
typedef struct TensorList {
  int count, each;     // each: weights of the model
  SafeTensor *tensors; // [count] name, shape and F32
  HfTensor *hf;        // [count] the same as the model knows them
} TensorList;
void tensor_list_make(TensorList *list, const ModelConfig *model, bool moments);
void tensor_list_free(TensorList *list);
// The packed values that tensor i is a part of.
master_t *tensor_values(const TensorList *list, const Llama *llama, int i);
