// The files of a run's folder. Internal to model/run/checkpoint: the rest of the program sees
// checkpoint.h.
#pragma once
#include <cjson/cJSON.h>
#include "base/json.h"
#include "data/model_folder.h"
#include "data/safetensors.h"
#include "model/run/checkpoint/checkpoint.h"
#include "model/tensors.h"

#define OPTIMIZER_FILE "optimizer.safetensors"
// "fp8.scalings.NAME" in optimizer.safetensors, for each scaling_name, is a ScalingState. Older
// versions wrote one tensor, "fp8.scalings", a row each by position.
#define SCALINGS "fp8.scalings"
enum { SCALING_FLOATS = sizeof(ScalingState) / sizeof(float) };

// ---- export.c
bool export_writes(const char *name); // a file of this name
// Writes and syncs FOLDER/NAME, and frees the text.
int write_text(const char *folder, const char *name, char *text, Error *err);

// ---- content.c
// Checks the files against `sums` (where it has any), and that their values are possible. What is
// read of them afterwards must be what was checked here: files[i].sums are set.
int content_check(SafeFile *files, int count, const FileSums *sums, Error *err);

// Calls `visit` with each part of a tensor, by all threads; content_check has started those.
// from: `count` elements, the first of which is the tensor's element `first`
typedef void ContentVisit(void *context, const unsigned char *from, int64_t first, int64_t count);
int content_visit(const SafeFile *file, const SafeTensor *t, ContentVisit *visit, void *context,
                  Error *err);
// Bytes [at, at + bytes) of a tensor.
int content_read(const SafeFile *file, const SafeTensor *t, uint64_t at, size_t bytes, void *to,
                 Error *err);
bool is_scaling(const SafeTensor *t); // one, or all of them; also of older versions' precisions
// Whether this is the name of that saved state of a parameter.
bool is_state(const SafeTensor *t, ParamState state);
// Whether two tensors have the same dtype and bytes.
int content_equal(const SafeFile *a, const SafeTensor *s, const SafeFile *b, const SafeTensor *t,
                  bool *equal, Error *err);

// ---- open.c
// 0 if the folder has every file of a checkpoint (optimizer.safetensors, unless it is the model
// alone) and its state can be read, else -1 and the reason.
int checkpoint_complete(const char *path, TrainState *state, Error *err);

// ---- state.c
// The text of state.json, in fresh memory.
char *state_json(const TrainState *state);

// ---- load.c
// The tensors of one of our files: the weights; or the moments, STATE.NAME of each HF tensor state
// by state, then, if the saved weights are rounded, master.NAME: of all, or of the norm weights
// alone if masters of matrices are bf16, since these lose nothing.
typedef enum TensorSet { WEIGHTS, MOMENTS, MOMENTS_AND_MASTERS, MOMENTS_AND_NORMS } TensorSet;
typedef struct TensorList {
  TensorSet set;
  int count;
  SafeTensor *tensors; // [count] name, shape and dtype
  HfTensor *hf;        // [count] the same as the model knows them
  ParamState *states;  // [count] which state of its parameter it is a part of
  int scalings;        // tensors[count], behind them, are the FP8 scalings
} TensorList;
// muon: the run's (Spec). dtype: of weights; the others are F32.
void tensor_list_make(TensorList *list, const ModelConfig *model, bool muon, TensorSet set,
                      SafeDtype dtype);
void tensor_list_free(TensorList *list);
void tensor_list_add_scalings(TensorList *list, const ModelConfig *model);

// ---- shards.c
// The files that an index names, each once. Names have no slash.
typedef struct ShardNames {
  int64_t step; // that the index names; -1: none
  int count;
  char **names; // in the tree
  cJSON *tree;
} ShardNames;
int shard_names_read(ShardNames *shards, const char *folder, Error *err);
void shard_names_free(ShardNames *shards); // zeros are fine

// Cuts the list as transformers does: a new file where most_bytes would be exceeded. first[shard]
// is its first tensor; one more entry ends the last. first has room for list->count + 1. Returns
// how many there are.
int shards_plan(const TensorList *list, uint64_t most_bytes, int *first);
PathText shard_name(int i, int count); // of the file; model.safetensors where there is one
// The text of the index, in fresh memory.
char *shards_json(const TensorList *list, const int *first, int count, int64_t step);
