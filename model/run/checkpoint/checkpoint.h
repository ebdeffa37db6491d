// Checkpoints. RUN/step-00000100/ holds
//
//   model.safetensors      weights, Hugging Face names and layout; past 5 GB shards and an index
//   config.json            Hugging Face's LlamaForCausalLM config
//   tokenizer.json ...     where the tokenizer is known: export.c
//   optimizer.safetensors  exp_avg.NAME and exp_avg_sq.NAME for every NAME of model.safetensors,
//                          but no exp_avg_sq of what Muon updates; of a run in FP8 its scalings,
//                          too: fp8.scalings.NAME, each a scale with its history
//   run.json               the resolved configuration
//   state.json             step, loader cursor, counters
//   checksums.json         the step, and of each file above its bytes and checksum
//                          (data/model_folder.h)
//
// Files that change from step to step name their step: files of tensors and the index of shards in
// their metadata. transformers loads the folder as it is. The weights are the masters, F32; with
// output.save_dtype=bf16 they are rounded, and optimizer.safetensors has the masters, master.NAME:
// with backend.masters=bf16 only the norm weights' masters, since the others are exact.
//
// A save makes the folder as base/folder.h says, then swings the symbolic link RUN/latest by
// rename, and only then removes old checkpoints. Whatever fails, the checkpoint before and `latest`
// stay as they were. If a crash leaves step-00000100.old alone, that is the checkpoint of its step.
// If the file system has no symbolic links, the newest checkpoint is the one with the largest step.
#pragma once
#include "data/mixture.h"
#include "data/model_folder.h"
#include "data/safetensors.h"
#include "data/tokenizer/tokenizer.h"
#include "model/config/config.h"
#include "model/llama.h"
#include "model/optimizer.h"

// A source of a mixture (data/mixture.h).
typedef struct SourceState {
  uint64_t data;         // Source.fingerprint
  double weight;         // its share
  uint64_t drawn, since; // windows: in all, and of these since the weights hold
} SourceState;

// The state of a run besides weights, moments and configuration: it resumes bit for bit with it.
typedef struct TrainState {
  int64_t step;       // optimizer steps done (skipped updates included)
  int64_t updates;    // updates applied: AdamW's t
  uint64_t sequences; // sequences drawn from the training set: the loader's cursor
  SourceState sources[MOST_SOURCES];
  int64_t source_count;  // 0: there is one, of which all sequences were drawn
  int64_t nonfinite;     // skipped updates so far
  int64_t nonfinite_row; // skipped updates in a row
  double best_val_loss;  // NAN before the first validation
  int64_t best_val_step;
  uint64_t validation; // the windows of best_val_loss (val_fingerprint); 0: not known
  // Tokenizer, data and backend of the training; 0 and "": not known.
  uint64_t tokenizer; // its fingerprint (data/tokenizer/tokenizer.h)
  uint64_t data;      // of the training files: Loader.fingerprint
  uint64_t tokens;    // of theirs: Loader.checksum; 0 also where `data` has it
  ShortText backend;  // its bits depend on it: kernels, device, libraries, threads
  bool model_alone;   // of a checkpoint: it has no optimizer state (output.save_optimizer)
} TrainState;

// ---- The files of a checkpoint for other programs, besides its weights: config.json,
// generation_config.json and the tokenizer's files. Those of the folder that a run started from are
// carried over into every checkpoint of it (export.c)

typedef struct CarriedFile {
  const char *name;
  char *data;
  size_t bytes;
} CarriedFile;

typedef struct Export {
  const Tokenizer *tokenizer; // the caller's; NULL where none is known
  char *config;               // the config.json whose other fields are carried over, or NULL
  bool same_tokenizer;        // as there, so that its ids and the files below are right
  CarriedFile *files;
  int count;
  uint64_t shard_bytes; // of weights in a file at most; 0: 5 GB
} Export;

// Reads the files that are carried over from the folder `from`: a checkpoint or a Hugging Face
// folder; "" if a run starts from nothing. Where its tokenizer is not `tokenizer`, only fields of
// config.json are.
int export_open(Export *x, const Tokenizer *tokenizer, const char *from, Error *err);
void export_close(Export *x); // zeros are fine
// Writes and syncs all of that. x may be NULL: config.json alone. dtype: of the weights.
int export_write(const Export *x, const char *folder, const ModelConfig *model, SaveDtype dtype,
                 Error *err);

// ---- Saving

// The source of the values that a save writes: the backend, or a copy of its state on the host. Of
// `llama` a save itself reads shapes and flags only.
typedef struct StateSource StateSource;
struct StateSource {
  const Llama *llama;
  // Reads a saved state of llama->tensors[param], as it is packed: [rows, cols] of floats. States
  // are read in the order of the files: all masters, then the moments, then, where
  // output.save_dtype rounds, the rounded masters again. A tensor split across two shards is read
  // twice.
  void (*read)(const StateSource *source, float *packed, int param, ParamState state);
  // [scaling_count(&llama->config)], after all others; NULL in bf16, and while no scale is known.
  void (*scalings)(const StateSource *source, ScalingState *states);
};
StateSource state_source(const Llama *llama); // the backend as it is

// Saves RUN/step-%08d, points RUN/latest at it, and RUN/best where train.keep_best says so; then
// removes the checkpoints that need not stay (prune). RUN must exist. export may be NULL: no
// tokenizer, nothing carried over. -1: RUN/latest is as it was, and *err says what is intact. 0:
// *err has remarks on what could not be linked or removed, else "".
int checkpoint_save(const char *run_dir, const StateSource *source, const Config *config,
                    const Export *export, const TrainState *state, Error *err);

// The step of the checkpoint that RUN/best names; -1: there is none.
int64_t checkpoint_best(const char *run_dir);

// At a run's start, in a folder that it has locked: removes the step-*.tmp of a process that was
// killed. *left: why one of them stays, else "".
void checkpoint_clear(const char *run_dir, Error *left);
// Has RUN/latest name the step: the run goes back to this checkpoint of RUN.
int checkpoint_take_back(const char *run_dir, int64_t step, Error *err);
// Checks that the disk of run_dir, which may not exist yet, has room for a checkpoint: -1 and a
// sentence if not. Warns on standard error where the next `steps` steps save more than there is
// room for. Writes nothing.
int checkpoint_room(const char *run_dir, const Config *config, int64_t steps, Error *err);

// ---- Background saves: the state is copied to the host while the next step computes its
// gradients; then a thread writes the checkpoint, as checkpoint_save does. Only the main thread
// calls these functions.

typedef struct BackgroundSave BackgroundSave;

// A save that has ended.
typedef struct SaveResult {
  int64_t step;
  int status;       // of checkpoint_save
  Error error;      // its sentence
  double ms;        // from its beginning to its end
  double waited_ms; // of them: the run stood still
} SaveResult;

// Bytes of the host's memory that a copy of a run's state takes: its output.save_optimizer says
// whether with the moments.
size_t background_bytes(const Config *config, const Spec *spec);

// Allocates its memory on the backend and starts a thread, which allocates the copy while the
// run starts. llama outlives it. with_optimizer: output.save_optimizer of all its saves.
BackgroundSave *background_open(const Llama *llama, bool with_optimizer, Error *err);
void background_close(BackgroundSave *save); // NULL is fine; waits for a save under way

// Begins a save into run_dir; background_end has taken the result of the one before. Only export
// stays the caller's until this one has ended.
void background_begin(BackgroundSave *save, const char *run_dir, const Config *config,
                      const Export *export, const TrainState *state);
// Comes before weights or moments change: waits until they are copied, and starts the writing.
// Does nothing where no save was begun.
void background_copied(BackgroundSave *save);
bool background_ended(BackgroundSave *save); // background_end has something to take
// Takes the result of a save that has ended; false where there is none. wait: until it has.
bool background_end(BackgroundSave *save, bool wait, SaveResult *result);

// ---- Reading

// A checkpoint, or a Hugging Face folder, that was opened and checked. Its files are open, so they
// can be loaded even after the folder is gone.
typedef struct Checkpoint {
  char path[PATH_CHARS]; // "": none is open
  bool with_optimizer, has_checksums;
  SafeFile *files; // [weight_files] of weights, then the optimizer's
  int weight_files, file_count;
} Checkpoint;

// A FolderRead (data/model_folder.h). `checkpoint`: a Checkpoint, zeros but for
// with_optimizer, or one that is open, and is closed. with_optimizer: a run resumes from it, so all
// of it is checked; else all but the files that a resumed run alone reads. All that is checked must
// be there, as checksums.json has it, of one step, which is also in the folder's name, with values
// that are finite, no exp_avg_sq below 0, and possible FP8 scales.
int checkpoint_open_folder(void *checkpoint, const char *folder, const FileSums *sums, Error *err);
void checkpoint_close(Checkpoint *c); // zeros are fine
// 1 if the folder of a run has a checkpoint, complete or not; 0 if not, or if it is not there.
int checkpoint_exists(const char *run_dir, Error *err);

// Reads run.json / state.json of a checkpoint folder.
int checkpoint_read_config(const char *path, Config *config, Error *err);
int checkpoint_read_state(const char *path, TrainState *state, Error *err);

// Weights, from model.safetensors or from the shards that model.safetensors.index.json lists; F32,
// BF16 or F16, ours or any Hugging Face LLaMA folder. A checkpoint opened with the optimizer gives
// the moments, too; else they become zero. Shapes are checked against llama->config; a missing or
// unknown tensor is an error that names it (but old files' rotary_emb.inv_freq, and a tied model's
// lm_head.weight that equals its embedding, are skipped). With the moments the weights are the
// masters that are saved with them, if any. Names and shapes are checked before anything is
// written, then the masters and the compute copies are. If a value differs from what was checked
// when the checkpoint was opened, it is an error, and the model must not be used. The caller sets
// AdamW's t: be->services.set_updates(state.updates). A run in FP8 uses the saved scalings if they
// are of its precision, and skips scalings of another.
int checkpoint_load(const Checkpoint *c, Llama *llama, Error *err);
// Checks that checkpoint_load would accept it for this model and Spec.muon, without reading
// values.
int checkpoint_check(const Checkpoint *c, const ModelConfig *model, bool muon, Error *err);
