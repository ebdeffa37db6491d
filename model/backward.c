// The backward pass: model/forward.c reversed. dx is the gradient of the residual stream.
#include "model/ranges.h"

void head_backward(Llama *llama, int64_t chunk, double per_token, bool accumulate) {
  Backend *be = llama->be;
  const int64_t D = llama->config.hidden_size, V = llama->config.vocab_size;
  const HeadChunk h = head_chunk(llama, chunk);
  const ParamTensor *W = llama->lm_head;
  const Acts *acts = &llama->acts;
  HeadGradient g = {.p = acts->dlogits, .u = acts->softmax_scale, .s = acts->s};
  const bool apart = !accumulate && chunks_apart(&llama->shape, be),
             last = chunk + 1 == llama->shape.loss_chunks;
  g.ux = g.u ? operand_of(h.dx.data) : h.x; // dx is written after u x was read
  RUN(llama, OP_HEAD_LOSS,
      be->head_loss(be, h.M, h.x, h.sumsq, W->folded, h.targets, acts->logits, per_token, &g));
  if (apart)
    RUN(llama, OP_LM_HEAD_WGRAD,
        be->wgrad_part(be, h.M, V, D, g.p, g.ux, W->part_sum, chunk > 0,
                       last ? W->grad_folded : NULL));
  else
    RUN(llama, OP_LM_HEAD_WGRAD,
        be->wgrad(be, h.M, V, D, g.p, g.ux, W->grad_folded, accumulate || chunk > 0));
  RUN(llama, OP_LM_HEAD_DGRAD, be->head_dgrad(be, h.M, &g, W->folded, h.x, h.sumsq, h.dx));
}

// Layers share the buffers from which products read x; they get x of this layer again.
static void repack(Llama *llama, Operand x) {
  const Sizes n = llama_sizes(llama);
  RUN(llama, OP_REPACK, llama->be->repack(llama->be, n.M, n.D, x));
}

void layer_again(Llama *llama, int64_t l) {
  const Recompute policy = llama->shape.recompute;
  const LayerActs *a = &llama->acts.layers[l];
  if (l >= recomputed_layers(&llama->config, &llama->shape)) return;
  part_begin(llama, "recompute", -1);
  repack(llama, policy == RECOMPUTE_LAYER ? a->x : a->x1);
  if (policy == RECOMPUTE_LAYER) layer_attention(llama, l);
  layer_gate_up(llama, l);
  part_end(llama);
}

void layer_backward(Llama *llama, int64_t l, bool accumulate) {
  Backend *be = llama->be;
  const Sizes n = llama_sizes(llama);
  const int64_t M = n.M, D = n.D, F = n.F, Hd = n.Hd, R = n.R;
  const LayerParams *w = &llama->layers[l];
  const LayerActs *a = &llama->acts.layers[l];
  const Operand dy = a[1].dx; // of the layer's output
  RowStat *s = &llama->acts.s;

  RUN(llama, OP_DOWN_WGRAD, be->wgrad(be, M, D, F, dy, a->y, w->down->grad, accumulate));
  RUN(llama, OP_DOWN_DGRAD,
      be->down_dgrad(be, M, dy, w->down->compute, a->z, a->x1, a->x1_sumsq, a->dz, s));
  RUN(llama, OP_GATE_UP_WGRAD,
      be->wgrad(be, M, 2 * F, D, a->dz, a->x1, w->gate_up->grad_folded, accumulate));
  RUN(llama, OP_GATE_UP_DGRAD,
      be->norm_dgrad(be, M, 2 * F, a->dz, w->gate_up->folded, a->x1, a->x1_sumsq, *s, dy.data,
                     a->dx1));

  RUN(llama, OP_OUT_WGRAD, be->wgrad(be, M, D, Hd, a->dx1, a->o, w->out->grad, accumulate));
  RUN(llama, OP_OUT_DGRAD, be->dgrad(be, M, Hd, a->dx1, w->out->compute, a->da));
  RUN(llama, OP_ATTENTION_BACKWARD,
      be->attention_backward(be, n.B, n.T, a->qkv, a->o.data, a->lse, a->da, a->dqkv));
  RUN(llama, OP_ROPE_BACKWARD,
      be->rope_backward(be, M, n.T, a->dqkv, a->qkv, a->x, a->x_sumsq, a->dqkv_prime, s));
  RUN(llama, OP_QKV_WGRAD,
      be->wgrad(be, M, R, D, a->dqkv_prime, a->x, w->qkv->grad_folded, accumulate));
  RUN(llama, OP_QKV_DGRAD,
      be->norm_dgrad(be, M, R, a->dqkv_prime, w->qkv->folded, a->x, a->x_sumsq, *s, a->dx1.data,
                     a->dx));
}

void embed_backward(Llama *llama, bool accumulate) {
  Backend *be = llama->be;
  const Acts *acts = &llama->acts;
  RUN(llama, OP_EMBED_BACKWARD,
      be->embed_backward(be, llama_sizes(llama).M, acts->tokens, acts->layers[0].dx.data,
                         llama->embed->grad, accumulate));
}

void llama_backward(Llama *llama, double scale, bool accumulate) {
  Backend *be = llama->be;
  const ReplaySlot slot = accumulate ? REPLAY_NEXT_BACKWARD : REPLAY_FIRST_BACKWARD;
  const int64_t L = llama->config.num_hidden_layers, chunks = llama->shape.loss_chunks,
                recomputed = recomputed_layers(&llama->config, &llama->shape);
  const double per_token = scale / (double)llama_sizes(llama).M;
  if (!be->services.replay_begin(be, slot)) return;
  part_begin(llama, "backward", -1);
  if (!accumulate) be->services.step_begin(be);
  for (int64_t c = 0; c < chunks; c++) head_backward(llama, c, per_token, accumulate);
  // While the backend calibrates, a chunk may find another scale than the chunks before it.
  if (be->calibrating && chunks > 1) repack(llama, llama->acts.layers[L].dx);
  for (int64_t l = L - 1; l >= 0; l--) {
    part_begin(llama, "layer", l);
    // Of the layers that recompute the last one's activations are still there.
    if (l + 1 != recomputed) layer_again(llama, l);
    layer_backward(llama, l, accumulate);
    part_end(llama);
  }
  embed_backward(llama, accumulate);
  part_end(llama);
  be->services.replay_end(be, slot);
}

void params_update(Llama *llama) {
  Backend *be = llama->be;
  RUN(llama, OP_GRADS_FINISH, be->grads_finish(be, llama->tensors, llama->param_count));
  if (llama->layers[0].out->part_count > 0)
    RUN(llama, OP_MUON, be->muon(be, llama->tensors, llama->param_count));
  RUN(llama, OP_ADAMW, be->adamw(be, llama->tensors, llama->param_count));
}

void llama_update(Llama *llama, const AdamW *hyper) {
  Backend *be = llama->be;
  be->services.set_hyper(be, hyper);
  if (be->services.replay_begin(be, REPLAY_UPDATE)) {
    part_begin(llama, "optimizer", -1);
    params_update(llama);
    part_end(llama);
    be->services.replay_end(be, REPLAY_UPDATE);
  }
  be->services.step_end(be);
}
