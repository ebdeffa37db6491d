// Small LLaMA models and what Hugging Face transformers computes with them: the fixtures that
// scripts/make_fixtures.py wrote (expected values computed in fp64), loaded into our model on any
// backend. A failure of any function here fails the test.
#pragma once
#include "model/tensors.h"
#include "model/llama.h"
#include "data/safetensors.h"

enum { FIXTURES = 6, MUON_FIXTURES = 3, FIXTURE_STEPS = 5 };
extern const char *const fixtures[FIXTURES];
extern const char *const muon_fixtures[MUON_FIXTURES]; // those with muon.safetensors

// The updates that make_fixtures.py makes: of AdamW, with Muon for the matrices of layers, and of
// AdamW where norm weights have another rate.
typedef enum RigUpdate { BY_ADAMW, BY_MUON, BY_ADAMW_AT_RATES } RigUpdate;

// A fixture in our model, its batch cut into `micro_batches` of equal size.
typedef struct Rig {
  const char *fixture;
  char *folder;
  ModelConfig model;
  SafeFile initial, expected;
  SafeFile steps; // what is expected of its steps, but for BY_ADAMW: `expected` has that
  AdamW hyper;
  int hf_count;
  HfTensor *hf;
  int64_t tokens_count;         // B T
  int32_t *input_ids, *targets; // [B, T], in the file's memory, only read
  int64_t counted;              // targets
  int32_t *lengths;             // [documents] likewise; NULL: windows are whole
  int64_t documents;
  int64_t micro_batches;
  bool l2_alone; // how errors are measured, see Worst; false where nothing sets it
  Backend *be;
  Llama llama;
} Rig;

// The backend that a rig runs on.
typedef Backend *RigBackend(const Spec *spec, int64_t micro_batches);
Backend *rig_cpu(const Spec *spec, int64_t micro_batches);

void rig_open(Rig *rig, const char *fixture, int64_t micro_batches, int64_t loss_chunks,
              RigBackend *create);
// The same for other updates than AdamW's.
void rig_open_update(Rig *rig, const char *fixture, int64_t micro_batches, int64_t loss_chunks,
                     RigUpdate update, RigBackend *create);
void rig_close(Rig *rig);

// Loss and gradients of the whole batch, ready for the update.
void rig_backward(Rig *rig);
// An update as make_fixtures.py makes it.
StepResult rig_update(Rig *rig);
// Logits [B, T, V] of the whole batch, in fresh memory, and their loss. One micro-batch, one chunk.
float *rig_logits(Rig *rig, double *loss);

// What transformers expects: its tensor of this name, prefix first.
const SafeTensor *rig_expected(const Rig *rig, const char *prefix, const char *name);

// Errors relative to it: the worse of |got - want| / |want| over a tensor (L2) and of the largest
// element's difference over the largest element; the former alone where rig.l2_alone. Infinite
// where it is not a number.
typedef struct Worst {
  double error; // -1: of nothing
  const char *name;
} Worst;
#define WORST_OF_NOTHING ((Worst){-1, "nothing"})

void worst_logits(const Rig *rig, const float *logits, Worst *worst);
void worst_scalar(const Rig *rig, const char *name, int64_t index, double got, Worst *worst);
void worst_gradient(const Rig *rig, Worst *worst);
// Of the weights after FIXTURE_STEPS updates, against the way they have gone: their size would hide
// it.
void worst_update(const Rig *rig, Worst *worst);
// Prints the error beside its bound, and fails where it is larger or nothing was compared.
void check_worst(const char *fixture, const char *what, Worst worst, double bound);
