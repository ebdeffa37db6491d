// One struct owns the model: its config, its parameters with gradients and optimizer state, its
// activations. Dimension names as in kernels/ops.h.
#pragma once
#include "data/batch.h"
#include "kernels/ops.h"
#include "model/spec.h"
#include "model/tensors.h"

// The matrices of a layer, in Llama.tensors.
typedef struct LayerParams {
  ParamTensor *qkv, *out, *gate_up, *down;
} LayerParams;

typedef struct Llama {
  ModelConfig config;
  Spec spec;   // the backend's; of a generator its own
  Backend *be; // not owned
  int param_count;
  ParamTensor *tensors;         // [param_count] in the order of model/tensors.def
  LayerParams *layers;          // [num_hidden_layers]
  ParamTensor *embed, *lm_head; // the same tensor where they are tied
  Acts acts;
  MemoryPlan plan;
  int64_t context;         // rows that attention sees together: seq, a half, ... ; 0: seq
  int64_t first;           // generation: position of the first row; in training 0
  const int32_t *position; // generation: the same, in the backend's memory; in training NULL
  int64_t branch_count;    // scoring: of acts.branches in the loaded micro-batch; else 0
  char *params_block;      // masters, moments, compute copies
  char *host_block;        // of these and of gradients what spec.offload names; NULL: nothing
  char *grads_block;
  char *acts_block;
} Llama;

// Allocates everything the run needs on the backend, as llama->plan says; weights are not set. -1
// and a sentence where there is not enough memory: then llama is all zeros.
int llama_create(Llama *llama, const ModelConfig *config, Backend *be, Error *err);
void llama_destroy(Llama *llama); // zeros are fine

// Rows that attention sees together, from the next forward on.
static inline int64_t llama_context(const Llama *llama) {
  return llama->context > 0 ? llama->context : llama->spec.seq;
}
// A part of a step that depends on them, and is recorded apart where they are fewer than seq.
ReplaySlot llama_slot(const Llama *llama, ReplaySlot slot);

// Random weights (tensors.h), moments zero, compute copies written.
void llama_init_weights(Llama *llama, uint64_t seed);
// The moments alone; without spec.train there are none.
void llama_zero_moments(Llama *llama);

// ---- A step: load_batch, forward and backward for each micro-batch, then update. The backend
// records the calls that are the same in every step and replays them (kernels/services.h).

// A micro-batch of spec.batch windows. Without spec.usual_documents each is one document.
void llama_load_batch(Llama *llama, const Batch *batch);
// The layers: x of the output layer and its sums of squares.
void llama_forward(Llama *llama);
// The loss of the loaded micro-batch is added to the running step's, times scale / tokens:
// validation.
void llama_loss(Llama *llama, double scale);
// A validation's step on a micro-batch: the sum of the losses of its rows that count, in nats.
// Waits for it, so no other step's result may be unread.
double llama_sum_of_losses(Llama *llama, const Batch *batch);
// lm_head, loss and the whole backward. Without `accumulate` a step begins: gradients are
// overwritten. scale: 1 / micro-batches.
void llama_backward(Llama *llama, double scale, bool accumulate);
// AdamW on all parameters. step_result has the step's result when the GPU is done.
void llama_update(Llama *llama, const AdamW *hyper);

// ---- Scoring, where spec.scores made room for it

// A forward of a micro-batch, in which rows of `branches` [count], at most one a row, continue
// other rows than those in front of them. Those other rows are in no branch with a prefix. scores
// [batch_rows] on the host: those of rows with a target are written.
void llama_score(Llama *llama, const Batch *batch, const Branch *branches, int64_t count,
                 RowScore *scores);

// ---- Parts of a step, never recorded: for backward.c and generate.c.

void embed_forward(Llama *llama);
// The parts of a layer's forward that a backward may recompute: x -> qkv, o, x1; and x1 -> z, y.
void layer_attention(Llama *llama, int64_t l);
void layer_gate_up(Llama *llama, int64_t l);
// All of a layer's forward: x of layer l -> x of the next.
void layer_forward(Llama *llama, int64_t l);
// Logits of row `row` of the output layer's x, for generation.
void row_logits(Llama *llama, int64_t row);

// Rows of one loss chunk, whose logits exist together: tokens / loss_chunks, in the last one fewer
// where that is no whole number.
typedef struct HeadChunk {
  int64_t M;
  Operand x;              // [M, D] of the output layer's x
  RowStat sumsq;          // of these rows
  const int32_t *targets; // [M]
  Operand dx;             // [M, D] of dx, without memory where nothing is trained
} HeadChunk;
HeadChunk head_chunk(const Llama *llama, int64_t chunk);
