// The backward pass: model/forward.c reversed. dx holds the gradient of the residual stream, passed
// down in place.
#include "model/llama.h"
#include "model/ranges.h"
#include "model/step.h"

void layer_again(Llama *llama, int l) {
  range_push("recompute");
  if (llama->shape.recompute == RECOMPUTE_LAYER) layer_attention(llama, l);
  layer_gate_up(llama, l);
  range_pop();
}

void layer_backward(Llama *llama, int l, bool accumulate) {
  Backend *be = llama->be;
  const int64_t B = llama->shape.batch, T = llama->shape.seq, M = B * T;
  const int64_t D = llama->config.hidden_size, F = llama->config.intermediate_size,
                d = llama->config.head_dim;
  const int64_t Hd = llama->config.num_attention_heads * d,
                R = Hd + 2 * llama->config.num_key_value_heads * d;
  const LayerWeights w = layer_weights(llama, l);
  const LayerActs *a = &llama->acts.layers[l];
  act_t *dx = llama->acts.dx, *da = llama->acts.da, *dqkv = llama->acts.dqkv, *dz = a->z;
  stat_t *s = llama->acts.s;

  RANGED(be, OP_DOWN_WGRAD, be->wgrad(be, M, D, F, dx, a->y, w.down->grad, accumulate));
  RANGED(be, OP_DOWN_DGRAD,
         be->down_dgrad(be, M, dx, w.down->compute, a->z, a->x1_sumsq, dz, s, NULL));
  RANGED(be, OP_GATE_UP_WGRAD,
         be->wgrad(be, M, 2 * F, D, dz, a->x1, w.gate_up->grad_folded, accumulate));
  RANGED(be, OP_GATE_UP_DGRAD,
         be->norm_dgrad(be, M, 2 * F, dz, w.gate_up->folded, a->x1, a->x1_sumsq, s,
                        be->parts.gate_up, dx, dx));

  RANGED(be, OP_OUT_WGRAD, be->wgrad(be, M, D, Hd, dx, a->o, w.out->grad, accumulate));
  RANGED(be, OP_OUT_DGRAD, be->dgrad(be, M, Hd, dx, w.out->compute, da));
  RANGED(be, OP_ATTENTION_BACKWARD,
         be->attention_backward(be, B, T, a->qkv, a->o, a->lse, da, dqkv));
  RANGED(be, OP_ROPE_BACKWARD, be->rope_backward(be, M, T, dqkv, a->qkv, a->x_sumsq, s));
  RANGED(be, OP_QKV_WGRAD, be->wgrad(be, M, R, D, dqkv, a->x, w.qkv->grad_folded, accumulate));
  RANGED(be, OP_QKV_DGRAD,
         be->norm_dgrad(be, M, R, dqkv, w.qkv->folded, a->x, a->x_sumsq, s, be->parts.qkv, dx, dx));
}

// The loss of a chunk; its dlogits take the place of its logits, and its rows of dx start the
// backward.
static void head_backward(Llama *llama, const HeadChunk *h, double scale, bool accumulate) {
  Backend *be = llama->be;
  Acts *a = &llama->acts;
  const int64_t D = llama->config.hidden_size, V = llama->config.vocab_size;
  RANGED(be, OP_HEAD_LOSS,
         be->head_loss(be, h->M, h->x, h->sumsq, h->weight->folded, h->targets, a->logits, scale,
                       a->s));
  RANGED(be, OP_LM_HEAD_WGRAD,
         be->wgrad(be, h->M, V, D, a->logits, h->x, h->weight->grad_folded, accumulate));
  RANGED(be, OP_LM_HEAD_DGRAD,
         be->norm_dgrad(be, h->M, V, a->logits, h->weight->folded, h->x, h->sumsq, a->s,
                        be->parts.logits, NULL, h->dx));
}

void llama_loss_backward(Llama *llama, double scale, bool accumulate) {
  Backend *be = llama->be;
  const int64_t M = llama->shape.batch * llama->shape.seq;
  const int L = (int)llama->config.num_hidden_layers;
  const double per_token = scale / (double)M;
  range_push("backward");
  for (int64_t c = 0; c < llama->shape.loss_chunks; c++) {
    const HeadChunk h = head_chunk(llama, c);
    head_backward(llama, &h, per_token, accumulate || c > 0);
  }
  for (int l = L - 1; l >= 0; l--) {
    range_push_number("layer", l);
    // The last layer's activations are still there.
    if (llama->shape.recompute != RECOMPUTE_NONE && l + 1 < L) layer_again(llama, l);
    layer_backward(llama, l, accumulate);
    range_pop();
  }
  const ParamTensor *embed = &llama->tensors[param_index(&llama->config, PARAM_EMBED, -1)];
  RANGED(be, OP_EMBED_BACKWARD,
         be->embed_backward(be, M, llama->acts.tokens, llama->acts.dx, embed->grad, accumulate));
  range_pop();
}
