// The parts of a step, for those that put it together: forward.c, backward.c, generate.c, trainer.c
// and the bench.
#pragma once
#include "model/llama.h"

typedef struct LayerWeights {
  const ParamTensor *qkv, *out, *gate_up, *down;
} LayerWeights;

static inline LayerWeights layer_weights(const Llama *llama, int l) {
  const ModelConfig *c = &llama->config;
  return (LayerWeights){
      .qkv = &llama->tensors[param_index(c, PARAM_QKV, l)],
      .out = &llama->tensors[param_index(c, PARAM_OUT, l)],
      .gate_up = &llama->tensors[param_index(c, PARAM_GATE_UP, l)],
      .down = &llama->tensors[param_index(c, PARAM_DOWN, l)],
  };
}

// Rows of one loss chunk: M = tokens / loss_chunks of them, whose logits exist together.
typedef struct HeadChunk {
  int64_t M;
  const act_t *x;            // [M, D] of x_final
  const stat_t *sumsq;       // its row sums of squares
  const int32_t *targets;    // [M]
  act_t *dx;                 // [M, D] of dx, NULL where nothing is trained
  const ParamTensor *weight; // lm_head, or the tied embedding
} HeadChunk;

HeadChunk head_chunk(const Llama *llama, int64_t chunk);

// The parts of a layer's forward that a backward may have to make again: x -> qkv, o, x1; and x1 ->
// z, y.
void layer_attention(Llama *llama, int l);
void layer_gate_up(Llama *llama, int l);
// All of a layer's forward: x of layer l -> x of the next, or x_final.
void layer_forward(Llama *llama, int l);
// Makes what the layer did not keep (shape.recompute) from what it did, by the forward's own calls:
// the same values.
void layer_again(Llama *llama, int l);
// From dx of the layer's output to dx of its input.
void layer_backward(Llama *llama, int l, bool accumulate);

// An optimizer step. next_batch loads a micro-batch into the model (llama_load_batch).
typedef struct StepRequest {
  Llama *llama;
  int64_t accumulation; // micro-batches
  void (*next_batch)(void *context);
  void *context;
} StepRequest;

// Asks the backend for a step; its result is there for step_result when the GPU is done with it.
void step_ask(StepRequest *request, const AdamW *hyper);
