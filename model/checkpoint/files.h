// What lies where in a run's folder. Internal to model/checkpoint: the rest of the program sees
// checkpoint.h.
#pragma once
#include <cjson/cJSON.h>
#include "base/json.h"
#include "data/safetensors.h"
#include "model/checkpoint/checkpoint.h"
#include "model/packing.h"

#define WEIGHTS_FILE "model.safetensors"
#define WEIGHTS_INDEX_FILE "model.safetensors.index.json" // of sharded Hugging Face folders
#define OPTIMIZER_FILE "optimizer.safetensors"
#define RUN_CONFIG_FILE "run.json"
#define STATE_FILE "state.json"
#define CHECKSUMS_FILE "checksums.json"
#define LATEST_LINK "latest"
#define BEST_LINK "best"
#define SCALINGS ".scalings" // behind the name of a precision: a tensor of optimizer.safetensors
enum { NAME_BYTES = 255 };   // of a file, without folder

// ---- checksums.c
// checksums.json: the step, and of every other file of a checkpoint its bytes and its checksum
// (base/checksum.h). It is written last.
typedef struct FileSum {
  char name[NAME_BYTES + 1];
  uint64_t bytes;
  NumberText checksum; // hex_text
} FileSum;
typedef struct FileSums {
  int64_t step;
  int count; // 0: the folder has none
  FileSum *files;
} FileSums;
void sums_add(FileSums *sums, const char *name, uint64_t bytes, uint64_t checksum);
// Writes them, with those of the folder's files that are not in them yet.
int sums_write(FileSums *sums, const char *folder, Error *err);
// None where there is no checksums.json. sums_free afterwards, whatever came of it.
int sums_read(FileSums *sums, const char *folder, Error *err);
void sums_free(FileSums *sums); // zeros are fine
// NULL where they do not name the file.
const FileSum *sums_find(const FileSums *sums, const char *name);
// -1 unless a file of these bytes and this checksum is the one that was saved; path is for the
// sentence.
int sums_compare(const FileSum *saved, const char *path, uint64_t bytes, uint64_t checksum,
                 Error *err);
// The same of every file that they name but those of tensors, which it reads.
int sums_check_small(const FileSums *sums, const char *folder, Error *err);

// ---- open.c
// Opens and checks a folder of weights, or (with_optimizer) a checkpoint. Nothing is left open
// after an error.
int checkpoint_open_folder(Checkpoint *c, const char *folder, bool with_optimizer, Error *err);

// ---- content.c
// Are these files what `sums` (where they have any) says, and their values possible ones?
int content_check(const SafeFile *files, int count, const FileSums *sums, Error *err);

// ---- find.c
// RUN/step-00000100SUFFIX
PathText step_path(const char *run_dir, int64_t step, const char *suffix);
// 0 if the folder has all that a run needs and its state can be read, else -1 and the reason.
int checkpoint_complete(const char *path, TrainState *state, Error *err);
// The step of a folder that is named as a checkpoint's, "step-00000100" or that with .old; else -1.
int64_t step_in_name(const char *name);
// Of the folder that RUN/LINK names; -1: there is none.
int64_t link_step(const char *run_dir, const char *link);
// path[PATH_CHARS]
int give_path(char *path, const char *found, Error *err);
// Says that the folder has no weights in safetensors, and what it has instead.
int no_weights(const char *folder, Error *err);
// The steps of all RUN/step-*SUFFIX, descending, in fresh memory (also after a failure, then none).
// A run_dir that does not exist has none.
int step_list(const char *run_dir, const char *suffix, int64_t **steps, int *count, Error *err);

// ---- state.c
// The text of state.json, in fresh memory.
char *state_json(const TrainState *state);

// ---- room.c
// checkpoint_prepare's question.
int room_for_run(const char *run_dir, const Config *config, int64_t steps, Error *err);
// Is there room for this save? `weights`: it writes them once more, alone.
int room_check(const char *run_dir, const Config *config, bool weights, Error *err);

// ---- load.c
// What a file of ours holds: the weights, or exp_avg.NAME and then exp_avg_sq.NAME of each, and
// then, where the weights beside it are rounded, master.NAME.
typedef enum TensorSet { WEIGHTS, MOMENTS, MOMENTS_AND_MASTERS } TensorSet;
typedef struct TensorList {
  TensorSet set;
  int count, each;     // each: weights of the model
  SafeTensor *tensors; // [count] name, shape and dtype
  HfTensor *hf;        // [count] the same as the model knows them
  bool scalings;       // tensors[count], behind them, is scalings_tensor
} TensorList;
// dtype: of weights; the others are F32.
void tensor_list_make(TensorList *list, const ModelConfig *model, TensorSet set, SafeDtype dtype);
void tensor_list_free(TensorList *list);
// The FP8 scalings of a run of this shape, [scaling_count] of ScalingState; its name is the
// caller's.
SafeTensor scalings_tensor(const ModelConfig *model, const RunShape *shape);
// Which values of its parameter tensor i is a part of.
StatePart tensor_part(const TensorList *list, int i);

// ---- shards.c
// The files that an index names, each once, in order. Names have no slash.
typedef struct ShardNames {
  int count;
  char **names; // in the tree
  cJSON *tree;
} ShardNames;
int shard_names_read(ShardNames *shards, const char *folder, Error *err);
// The same of the text of an index; `name` stands for its path in sentences.
int shard_names_parse(ShardNames *shards, const char *name, const char *json, size_t bytes,
                      Error *err);
void shard_names_free(ShardNames *shards); // zeros are fine

// Cuts the list as transformers does: a new file where most_bytes would be exceeded. first[shard]
// is its first tensor; one more entry ends the last. first has room for list->count + 1. Returns
// how many there are.
int shards_plan(const TensorList *list, uint64_t most_bytes, int *first);
PathText shard_name(int i, int count); // of the file; model.safetensors where there is one
// The text of the index, in fresh memory.
char *shards_json(const TensorList *list, const int *first, int count, int64_t step);
uint64_t tensor_bytes(const SafeTensor *t);
