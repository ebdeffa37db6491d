// The backward pass: model/forward.c reversed. dx holds the gradient of the residual stream, passed
// down in place.
#include "model/ranges.h"
#include "model/scalings.h"

static Operand scaled_as(const Llama *llama, Operand x, int64_t layer, ScalingOf of) {
  x.scaling = scaling_index(&llama->config, layer, of);
  return x;
}

void head_backward(Llama *llama, int64_t chunk, double per_token, bool accumulate) {
  Backend *be = llama->be;
  const int64_t D = llama->config.hidden_size, V = llama->config.vocab_size;
  const HeadChunk h = head_chunk(llama, chunk);
  const ParamTensor *W = llama->lm_head;
  HeadGradient *g = &llama->acts.head;
  const Operand dx = scaled_as(llama, h.dx, llama->config.num_hidden_layers, SCALING_DX);
  const bool apart = !accumulate && chunks_apart(&llama->shape, be),
             last = chunk + 1 == llama->shape.loss_chunks;
  g->ux = g->u ? operand_of(h.dx.data) : h.x; // dx comes when u x was read
  RUN(llama, OP_HEAD_LOSS,
      be->head_loss(be, h.M, h.x, h.sumsq, W->folded, h.targets, llama->acts.logits, per_token, g));
  if (apart)
    RUN(llama, OP_LM_HEAD_WGRAD,
        be->wgrad_part(be, h.M, V, D, g->p, g->ux, W->part_sum, chunk > 0,
                       last ? W->grad_folded : NULL));
  else
    RUN(llama, OP_LM_HEAD_WGRAD,
        be->wgrad(be, h.M, V, D, g->p, g->ux, W->grad_folded, accumulate || chunk > 0));
  RUN(llama, OP_LM_HEAD_DGRAD, be->head_dgrad(be, h.M, g, W->folded, h.x, h.sumsq, dx));
}

// While scales are looked for, a chunk may have found another one than those before it.
static void recast_dx(Llama *llama) {
  const Sizes n = model_sizes(&llama->config, &llama->shape);
  const Operand dx = scaled_as(llama, llama->acts.dx, n.L, SCALING_DX);
  if (dx.by_row && llama->be->calibrating && llama->shape.loss_chunks > 1)
    RUN(llama, OP_CAST, llama->be->cast(llama->be, n.M, n.D, dx));
}

void layer_again(Llama *llama, int64_t l) {
  if (llama->shape.recompute == RECOMPUTE_NONE) return;
  const Sizes n = model_sizes(&llama->config, &llama->shape);
  const LayerActs *a = &llama->acts.layers[l];
  Backend *be = llama->be;
  part_begin(llama, "recompute", -1);
  if (a->x.fp8)
    RUN(llama, OP_CAST,
        be->cast(be, n.M, n.D, llama->shape.recompute == RECOMPUTE_LAYER ? a->x : a->x1));
  if (llama->shape.recompute == RECOMPUTE_LAYER) layer_attention(llama, l);
  layer_gate_up(llama, l);
  part_end(llama);
}

void layer_backward(Llama *llama, int64_t l, bool accumulate) {
  Backend *be = llama->be;
  const Sizes n = model_sizes(&llama->config, &llama->shape);
  const int64_t B = n.B, T = n.T, M = n.M, D = n.D, F = n.F, Hd = n.Hd, R = n.R;
  const LayerParams *w = &llama->layers[l];
  const LayerActs *a = &llama->acts.layers[l];
  const Acts *acts = &llama->acts;
  const Operand dy = scaled_as(llama, acts->dx, l + 1, SCALING_DX), // of the layer's output
      dx1 = scaled_as(llama, acts->dx1, l, SCALING_DX1),
                dqkv = scaled_as(llama, acts->dqkv_prime, l, SCALING_DQKV);
  Operand dz = scaled_as(llama, acts->dz, l, SCALING_DZ),
          dx = scaled_as(llama, acts->dx, l, SCALING_DX);
  RowStat *s = &llama->acts.s;
  if (!dz.fp8) dz.data = a->z;
  if (l == 0) dx = operand_of(dx.data); // the embedding reads no copies

  RUN(llama, OP_DOWN_WGRAD, be->wgrad(be, M, D, F, dy, a->y, w->down->grad, accumulate));
  RUN(llama, OP_DOWN_DGRAD,
      be->down_dgrad(be, M, dy, w->down->compute, a->z, a->x1, a->x1_sumsq, dz, s));
  RUN(llama, OP_GATE_UP_WGRAD,
      be->wgrad(be, M, 2 * F, D, dz, a->x1, w->gate_up->grad_folded, accumulate));
  RUN(llama, OP_GATE_UP_DGRAD,
      be->norm_dgrad(be, M, 2 * F, dz, w->gate_up->folded, a->x1, a->x1_sumsq, *s, dy.data, dx1));

  RUN(llama, OP_OUT_WGRAD, be->wgrad(be, M, D, Hd, dx1, a->o, w->out->grad, accumulate));
  RUN(llama, OP_OUT_DGRAD, be->dgrad(be, M, Hd, dx1, w->out->compute, acts->da));
  RUN(llama, OP_ATTENTION_BACKWARD,
      be->attention_backward(be, B, T, a->qkv, a->o.data, a->lse, acts->da, acts->dqkv));
  RUN(llama, OP_ROPE_BACKWARD,
      be->rope_backward(be, M, T, acts->dqkv, a->qkv, a->x, a->x_sumsq, dqkv, s));
  RUN(llama, OP_QKV_WGRAD, be->wgrad(be, M, R, D, dqkv, a->x, w->qkv->grad_folded, accumulate));
  RUN(llama, OP_QKV_DGRAD,
      be->norm_dgrad(be, M, R, dqkv, w->qkv->folded, a->x, a->x_sumsq, *s, dx1.data, dx));
}

void embed_backward(Llama *llama, bool accumulate) {
  Backend *be = llama->be;
  const Acts *a = &llama->acts;
  RUN(llama, OP_EMBED_BACKWARD,
      be->embed_backward(be, llama->shape.batch * llama->shape.seq, a->tokens, a->dx.data,
                         llama->embed->grad, accumulate));
}

void llama_backward(Llama *llama, double scale, bool accumulate) {
  Backend *be = llama->be;
  const ReplaySlot slot = accumulate ? REPLAY_NEXT_BACKWARD : REPLAY_FIRST_BACKWARD;
  const int64_t L = llama->config.num_hidden_layers;
  const double per_token = scale / (double)(llama->shape.batch * llama->shape.seq);
  if (!be->replay_begin(be, slot)) return;
  part_begin(llama, "backward", -1);
  if (!accumulate) be->step_begin(be);
  for (int64_t c = 0; c < llama->shape.loss_chunks; c++)
    head_backward(llama, c, per_token, accumulate);
  recast_dx(llama);
  for (int64_t l = L - 1; l >= 0; l--) {
    part_begin(llama, "layer", l);
    if (l + 1 < L) layer_again(llama, l); // the last layer's activations are still there
    layer_backward(llama, l, accumulate);
    part_end(llama);
  }
  embed_backward(llama, accumulate);
  part_end(llama);
  be->replay_end(be, slot);
}

void params_update(Llama *llama) {
  Backend *be = llama->be;
  RUN(llama, OP_GRADS_FINISH, be->grads_finish(be, llama->tensors, llama->param_count));
  RUN(llama, OP_ADAMW, be->adamw(be, llama->tensors, llama->param_count));
}

void llama_update(Llama *llama, const AdamW *hyper) {
  Backend *be = llama->be;
  be->set_hyper(be, hyper);
  if (be->replay_begin(be, REPLAY_UPDATE)) {
    part_begin(llama, "optimizer", -1);
    params_update(llama);
    part_end(llama);
    be->replay_end(be, REPLAY_UPDATE);
  }
  be->step_end(be);
}
