// The forward pass: a call for each operation of kernels/ops.h. model/backward.c is this list reversed.
#include "model/llama.h"
#include "model/ranges.h"
#include "model/step.h"

void layer_attention(Llama *llama, int l) {
  Backend *be = llama->be;
  const int64_t B = llama->shape.batch, T = llama->shape.seq, M = B * T;
  const int64_t Hd = llama->config.num_attention_heads * llama->config.head_dim;
  const LayerWeights w = layer_weights(llama, l);
  const LayerActs *a = &llama->acts.layers[l];
  RANGED(be, OP_QKV, be->qkv(be, M, T, 0, a->x, a->x_sumsq, w.qkv->folded, a->qkv));
  RANGED(be, OP_ATTENTION, be->attention(be, B, T, a->qkv, a->o, a->lse));
  RANGED(be, OP_OUT, be->residual(be, M, Hd, a->o, w.out->compute, a->x, a->x1, a->x1_sumsq));
}

void layer_gate_up(Llama *llama, int l) {
  Backend *be = llama->be;
  const int64_t M = llama->shape.batch * llama->shape.seq;
  const LayerActs *a = &llama->acts.layers[l];
  const ParamTensor *W = layer_weights(llama, l).gate_up;
  RANGED(be, OP_GATE_UP, be->gate_up(be, M, a->x1, a->x1_sumsq, W->folded, a->z, a->y));
}

static void layer_down(Llama *llama, int l, act_t *x_next, stat_t *x_next_sumsq) {
  Backend *be = llama->be;
  const int64_t M = llama->shape.batch * llama->shape.seq, F = llama->config.intermediate_size;
  const LayerActs *a = &llama->acts.layers[l];
  const ParamTensor *W = layer_weights(llama, l).down;
  RANGED(be, OP_DOWN, be->residual(be, M, F, a->y, W->compute, a->x1, x_next, x_next_sumsq));
}

void layer_forward(Llama *llama, int l) {
  Acts *a = &llama->acts;
  const bool last = l + 1 == (int)llama->config.num_hidden_layers;
  layer_attention(llama, l);
  layer_gate_up(llama, l);
  layer_down(llama, l, last ? a->x_final : a->layers[l + 1].x,
             last ? a->final_sumsq : a->layers[l + 1].x_sumsq);
}

void llama_forward(Llama *llama) {
  Backend *be = llama->be;
  Acts *a = &llama->acts;
  const int L = (int)llama->config.num_hidden_layers;
  const int64_t M = llama->shape.batch * llama->shape.seq;
  const ParamTensor *embed = &llama->tensors[param_index(&llama->config, PARAM_EMBED, -1)];

  range_push("forward");
  RANGED(be, OP_EMBED,
         be->embed(be, M, a->tokens, embed->compute, a->layers[0].x, a->layers[0].x_sumsq));
  for (int l = 0; l < L; l++) {
    range_push_number("layer", l);
    layer_forward(llama, l);
    range_pop();
  }
  range_pop();
}

HeadChunk head_chunk(const Llama *llama, int64_t chunk) {
  const Backend *be = llama->be;
  const Acts *a = &llama->acts;
  const int64_t M = llama->shape.batch * llama->shape.seq / llama->shape.loss_chunks,
                m0 = chunk * M;
  const int64_t D = llama->config.hidden_size;
  return (HeadChunk){
      .M = M,
      .x = (char *)a->x_final + (size_t)(m0 * D) * be->act_bytes,
      .sumsq = (char *)a->final_sumsq + (size_t)m0 * be->stat_bytes,
      .targets = a->targets + m0,
      .dx = a->dx ? (char *)a->dx + (size_t)(m0 * D) * be->act_bytes : NULL,
      .weight = &llama->tensors[param_index(&llama->config, PARAM_LM_HEAD, -1)],
  };
}

void llama_loss(Llama *llama, double scale) {
  Backend *be = llama->be;
  const double per_token = scale / (double)(llama->shape.batch * llama->shape.seq);
  for (int64_t c = 0; c < llama->shape.loss_chunks; c++) {
    const HeadChunk h = head_chunk(llama, c);
    RANGED(be, OP_VALIDATION_LOSS,
           be->head_loss(be, h.M, h.x, h.sumsq, h.weight->folded, h.targets, llama->acts.logits,
                         per_token, NULL));
  }
}
