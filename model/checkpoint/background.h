// Saves beside training. The state is copied to the host while the next step computes its
// gradients; then a thread writes the checkpoint, as checkpoint_save does. All functions are the
// main thread's.
#pragma once
#include "model/checkpoint/checkpoint.h"

typedef struct BackgroundSave BackgroundSave;

// A save that has ended.
typedef struct SaveResult {
  int64_t step;
  int status;       // of checkpoint_save
  Error error;      // its sentence
  double ms;        // from its beginning to its end
  double waited_ms; // of them: the run stood still
} SaveResult;

// Bytes of the host's memory that a copy of a run's state takes.
size_t background_bytes(const ModelConfig *model, const Backend *be);

// Takes what it needs of the backend, and a thread, which takes the memory of the copy while the
// run starts. llama outlives it.
BackgroundSave *background_open(const Llama *llama, Error *err);
void background_close(BackgroundSave *save); // NULL is fine; waits for what is under way

// Begins a save into run_dir; the one before has been taken by background_end. Only export stays
// the caller's until this one has ended.
void background_begin(BackgroundSave *save, const char *run_dir, const Config *config,
                      const Export *export, const TrainState *state);
// Comes before weights or moments change: waits until they are copied, and has them written. Does
// nothing where no save was begun.
void background_copied(BackgroundSave *save);
bool background_ended(BackgroundSave *save); // background_end has something to take
// Takes the result of a save that has ended; false where there is none. wait: until it has.
bool background_end(BackgroundSave *save, bool wait, SaveResult *result);
