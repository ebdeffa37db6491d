// The folder of a model as users name it: a checkpoint, RUN/latest, RUN/best, any Hugging Face
// folder, or the folder of a run, which stands for the run's newest checkpoint. Every command and
// key that takes such a folder finds it here, so that all take the same ones and check the same.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

#define WEIGHTS_FILE "model.safetensors"
#define WEIGHTS_INDEX_FILE "model.safetensors.index.json" // where the weights are in shards
#define TOKENIZER_FILE "tokenizer.json"
#define LATEST_LINK "latest"
#define BEST_LINK "best"

// ---- checksums.json of a checkpoint or a dataset: the step, bytes and checksum (base/file.h) of
// every other file but token files, and at its end the checksum of the text before that. It is
// written last. Older versions wrote none, or none of itself

#define CHECKSUMS_FILE "checksums.json"
#define RUN_CONFIG_FILE "run.json" // these two a resumed run alone reads
#define STATE_FILE "state.json"
enum { NAME_BYTES = 255 }; // of a file, without folder

typedef struct FileSum {
  char name[NAME_BYTES + 1];
  uint64_t bytes;
  uint64_t checksum;
} FileSum;
typedef struct FileSums {
  int64_t step;
  int count; // 0: the folder has none
  FileSum *files;
} FileSums;
void sums_add(FileSums *sums, const char *name, uint64_t bytes, uint64_t checksum);
// Writes them, adding the folder's files that are not in them yet. Token files and names
// that begin with a dot are left out.
int sums_write(FileSums *sums, const char *folder, Error *err);
void sums_free(FileSums *sums); // zeros are fine
// NULL where they do not name the file.
const FileSum *sums_find(const FileSums *sums, const char *name);
// -1 unless a file of these bytes and this checksum is the one that was saved; path is for the
// sentence.
int sums_compare(const FileSum *saved, const char *path, uint64_t bytes, uint64_t checksum,
                 Error *err);

// ---- The folder that a user names

// Reads from the folder, and forgets what an earlier call read. -1 and a sentence where the
// folder does not serve. sums: of its checksums.json.
typedef int (*FolderRead)(void *context, const char *folder, const FileSums *sums, Error *err);

// Calls `read` with the folder that `named` stands for, once its small files were compared with its
// checksums.json; whole: run.json and state.json, too. A folder with weights stands for itself, and
// so does one without checkpoints. A folder that does not serve is an error.
// A run stands for the first of its checkpoints that serves, in the order of run_checkpoints. A
// line on standard error names each that was passed over, and why; none left is an error. If a
// training run removes or replaces the folder meanwhile, it is looked for again: `read` may be
// called more than once.
int model_folder_read(const char *named, bool whole, FolderRead read, void *context, Error *err);
// The same of a run's folder. 1 where it has no checkpoint, or is not there.
int run_folder_read(const char *run_dir, bool whole, FolderRead read, void *context, Error *err);
// The same check for a file that was named itself, and all small files next to it.
int model_folder_check(const char *file, Error *err);

// eos_token_id of the folder's generation_config.json, else of its config.json: a number, or a list
// of at most `most`. Returns how many ids there are, 0 where neither file has one; -1 where it is
// anything else.
int folder_ends(const char *folder, int32_t *ids, int most, Error *err);

// ---- The checkpoints in a run's folder

// In the order in which they are tried: first `latest` and the checkpoints of earlier steps, then
// the checkpoints of later steps, from before a rollback. In each group the ones with
// checksums.json come first, then the newest. An .old folder comes after the folder whose name it
// has; it exists alone only after a crash in the middle of replacing.
typedef struct RunCheckpoint {
  PathText path;
  int64_t step;
  bool later, old, has_checksums;
} RunCheckpoint;
typedef struct RunCheckpoints {
  int64_t latest; // the step that the link names; -1: none
  int count;
  RunCheckpoint *list;
} RunCheckpoints;
// A run_dir that does not exist has none. The caller frees the list, also after an error.
int run_checkpoints(RunCheckpoints *c, const char *run_dir, Error *err);

// RUN/step-00000100SUFFIX
PathText step_path(const char *run_dir, int64_t step, const char *suffix);
// The step of a folder that is named as a checkpoint's, "step-00000100" or that with .old; else -1.
// It may have a path in front.
int64_t step_in_name(const char *folder);
// The same of the folder that RUN/LINK names; -1 without one.
int64_t link_step(const char *run_dir, const char *link);
// The steps of all RUN/step-*SUFFIX, descending, in fresh memory (also after a failure, then none).
int step_list(const char *run_dir, const char *suffix, int64_t **steps, int *count, Error *err);
// True if the folder has a file of this name.
bool has_file(const char *folder, const char *file);
