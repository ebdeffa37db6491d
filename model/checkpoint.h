// Checkpoints. RUN/step-00000100/ holds
//   model.safetensors      master weights, F32, Hugging Face names and layout
//   config.json            Hugging Face LlamaForCausalLM config: transformers loads the folder as
//   it is optimizer.safetensors  exp_avg.NAME and exp_avg_sq.NAME for every NAME of
//   model.safetensors run.json               the resolved configuration state.json step, loader
//   cursor, counters
// A save writes RUN/step-00000100.tmp/, syncs every file and the folder, renames it, syncs RUN,
// then swings the symbolic link RUN/latest by rename, syncs RUN again, and only then removes the
// oldest checkpoints beyond `keep`. Whatever fails, the previous checkpoint and `latest` stay as
// they were.
#pragma once
#include "model/config.h"
#include "model/llama.h"

// What a run needs besides weights, moments and configuration to go on bit for bit.
typedef struct TrainState {
  int64_t step;          // optimizer steps done (refused ones included)
  int64_t updates;       // updates applied: AdamW's t
  uint64_t sequences;    // sequences drawn from the training set: the loader's cursor
  int64_t nonfinite;     // refused updates so far
  int64_t nonfinite_row; // refused updates in a row
  double best_val_loss;  // NAN before the first validation
  int64_t best_val_step;
} TrainState;

// Saves RUN/step-%08d and keeps the newest `keep` (at least 1) checkpoints. config->train.resume is
// stored as "".
int checkpoint_save(const char *run_dir, const Llama *llama, const Config *config,
                    const TrainState *state, int64_t keep, Error *err);

// Where to resume from: `resume` is "auto" (RUN/latest; *path = "" if the run has no checkpoint
// yet; a broken link falls back to the newest complete step folder), a run folder or a checkpoint
// folder. path has PATH_CHARS bytes.
int checkpoint_find(const char *resume, const char *run_dir, char *path, Error *err);

// Reads run.json / state.json of a checkpoint folder.
int checkpoint_read_config(const char *path, Config *config, Error *err);
int checkpoint_read_state(const char *path, TrainState *state, Error *err);

// Weights (from model.safetensors; F32, BF16 or F16, ours or any Hugging Face LLaMA folder), and
// with_optimizer also the moments. Shapes are checked against llama->config, and a missing or
// unknown tensor is an error that names it. Writes the compute copies.
int checkpoint_load(const char *path, Llama *llama, bool with_optimizer, Error *err);
