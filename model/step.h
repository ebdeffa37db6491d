// Shared by forward.c, backward.c and generate.c: the weights of a layer by name, and a piece of
// the loss.
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
