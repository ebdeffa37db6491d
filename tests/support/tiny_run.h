// A LLaMA of a few hundred weights on the CPU backend, with values by number, for tests of files.
#pragma once
#include "model/run/checkpoint/checkpoint.h"
#include "model/config/config.h"
#include "model/generate.h"
#include "model/llama.h"

typedef struct TinyRun {
  Config config;
  Backend *be;
  Llama llama;
} TinyRun;

// hidden 16, ffn 20, heads 4 of 4, kv heads 2, vocabulary 11. `text` goes into the config's "model"
// object ("\"tie_word_embeddings\": true" or ""). A failure fails the test, which holds the run.
TinyRun *tiny_run_open(const char *text);
// With weights of this seed.
TinyRun *tiny_run_drawn(const char *text, uint64_t seed);
// Its generator with a context of 8 tokens, which the test holds.
Generator *tiny_generator(TinyRun *run);

// Weights and moments number `version`: reproducible, all different.
void tiny_run_fill(TinyRun *run, uint64_t version);
// 0 if weights and moments are number `version` bit for bit.
int tiny_run_differs(const TinyRun *run, uint64_t version);
// The state that goes with it.
TrainState tiny_state(int64_t step, uint64_t version);

// Saves what the run holds, of which the newest `keep` checkpoints stay.
int tiny_run_save(TinyRun *run, const char *dir, const Export *export, const TrainState *state,
                  int64_t keep, Error *err);

// The first of run_checkpoints that is complete; "": none.
PathText tiny_newest(const char *run_dir);
// Opens and checks the folder that the path stands for; and loads it.
int tiny_open(Checkpoint *c, const char *path, bool with_optimizer, Error *err);
int tiny_load(const char *path, Llama *llama, bool with_optimizer, Error *err);

// The kinds of checkpoints.
typedef struct TinyKind {
  const char *name, *model; // for tiny_run_open
  SaveDtype dtype;
  bool fp8, export; // export: in shards, with a tokenizer and a file that is carried over
} TinyKind;
enum { TINY_KINDS = 6, TINY_SCALINGS = 64 };
extern const TinyKind tiny_kinds[TINY_KINDS];

// FP8: a save reads `saved`, and a load writes `loaded`.
extern struct TinyScalings {
  int count, written; // times
  ScalingState saved[TINY_SCALINGS], loaded[TINY_SCALINGS];
} tiny_scalings;

// Two such models, one to save and one to load into, and a folder for the run. The test holds them.
typedef struct TinyTest {
  TinyRun *run, *loaded;
  char *dir;
  Export export;
} TinyTest;
TinyTest *tiny_test_open(const char *model);
TinyTest *tiny_test_open_kind(const TinyKind *kind);
// Weights, moments and scalings number `version`, and the state that goes with them.
TrainState tiny_test_fill(TinyTest *t, int64_t step, uint64_t version);
// Saves them as a step.
void tiny_test_save(TinyTest *t, int64_t step, uint64_t version, int64_t keep);
int tiny_test_try_save(TinyTest *t, int64_t step, uint64_t version, int64_t keep, Error *err);
// Gives the folder NAME checksums of what it has now.
void tiny_test_sign(const TinyTest *t, const char *name, int64_t step);
// 0 if what was loaded is number `version` bit for bit.
int tiny_test_differs(const TinyTest *t, uint64_t version);
// RUN/NAME, and its bytes, which the test holds. A failure fails the test.
PathText tiny_test_path(const TinyTest *t, const char *name);
char *tiny_test_read(const TinyTest *t, const char *name, size_t *bytes);
// Loads the checkpoint that RUN stands for.
int tiny_test_load(TinyTest *t, bool with_optimizer, Error *err);
// Of names relative to the folder.
bool tiny_test_has(const TinyTest *t, const char *name);
void tiny_test_write(const TinyTest *t, const char *name, const char *text);
void tiny_test_remove(const TinyTest *t, const char *name);
