// The backward pass: model/forward.c reversed. dx is the gradient of the residual stream.
#include "model/ranges.h"

// The loss of a chunk; its dlogits take the place of its logits, and its rows of dx start the
// backward. per_token: the loss' weight of a row. accumulate: onto the gradients of an earlier
// micro-batch; chunks come in order.
static void head_backward(Llama *llama, int64_t chunk, double per_token, bool accumulate) {
  const int64_t D = llama->config.hidden_size, V = llama->config.vocab_size;
  const HeadChunk h = head_chunk(llama, chunk);
  const ParamTensor *W = llama->lm_head;
  const Acts *acts = &llama->acts;
  HeadGradient g = {.p = acts->dlogits, .u = acts->softmax_scale, .s = acts->s};
  const bool apart = !accumulate && chunks_apart(&llama->spec),
             last = chunk + 1 == llama->spec.loss_chunks;
  g.ux = g.u ? operand_of(h.dx.data) : h.x; // dx is written after u x was read
  RUN(llama, head_loss, h.M, h.x, h.sumsq, W->folded, h.targets, acts->logits, per_token, &g);
  RUN(llama, lm_head_wgrad, h.M, V, D, g.p, g.ux, apart ? W->part_sum : NULL,
      accumulate || chunk > 0, apart && !last ? NULL : W->grad_folded);
  RUN(llama, lm_head_dgrad, h.M, &g, W->folded, h.x, h.sumsq, h.dx);
}

// Layers share the buffers from which products read x; they get x of this layer again.
static void requantize(Llama *llama, Operand x) {
  const Spec *spec = &llama->spec;
  RUN(llama, requantize, batch_rows(spec), spec->D, x);
}

// Recomputes the activations that the layer did not keep (spec.recompute) from those it kept, by
// the forward's own calls: the values are the same.
static void layer_recompute(Llama *llama, int64_t l) {
  const Recompute policy = llama->spec.recompute;
  const LayerActs *a = &llama->acts.layers[l];
  if (l >= recomputed_layers(&llama->spec)) return;
  range_push("recompute");
  requantize(llama, policy == RECOMPUTE_LAYER ? a->x : a->x1);
  if (policy == RECOMPUTE_LAYER) layer_attention(llama, l);
  layer_gate_up(llama, l);
  range_pop();
}

// From dx of the layer's output to dx of its input.
static void layer_backward(Llama *llama, int64_t l, bool accumulate) {
  const Spec *spec = &llama->spec;
  const int64_t M = batch_rows(spec), D = spec->D, F = spec->F, Hd = query_width(spec),
                R = packed_width(spec), context = llama_context(llama);
  const LayerParams *w = &llama->layers[l];
  const LayerActs *a = &llama->acts.layers[l];
  const Operand dy = a[1].dx; // of the layer's output
  RowStat *s = &llama->acts.s;

  RUN(llama, down_wgrad, M, D, F, dy, a->y, w->down->grad, accumulate);
  RUN(llama, down_dgrad, M, dy, w->down->compute, a->z, a->x1, a->x1_sumsq, a->dz, s);
  RUN(llama, gate_up_wgrad, M, 2 * F, D, a->dz, a->x1, w->gate_up->grad_folded, accumulate);
  RUN(llama, gate_up_dgrad, M, 2 * F, a->dz, w->gate_up->folded, a->x1, a->x1_sumsq, *s, dy.data,
      a->dx1);

  RUN(llama, out_wgrad, M, D, Hd, a->dx1, a->o, w->out->grad, accumulate);
  RUN(llama, out_dgrad, M, Hd, a->dx1, w->out->compute, a->da);
  RUN(llama, attention_backward, M / context, context, a->qkv, a->o.data, a->lse, a->da, a->dqkv);
  RUN(llama, rope_backward, M, spec->seq, a->dqkv, a->qkv, a->x, a->x_sumsq, a->dqkv_prime, s);
  RUN(llama, qkv_wgrad, M, R, D, a->dqkv_prime, a->x, w->qkv->grad_folded, accumulate);
  RUN(llama, qkv_dgrad, M, R, a->dqkv_prime, w->qkv->folded, a->x, a->x_sumsq, *s, a->dx1.data,
      a->dx);
}

static void embed_backward(Llama *llama, bool accumulate) {
  const Acts *acts = &llama->acts;
  RUN(llama, embed_backward, batch_rows(&llama->spec), acts->tokens, acts->layers[0].dx.data,
      llama->embed->grad, accumulate);
}

void llama_backward(Llama *llama, double scale, bool accumulate) {
  Backend *be = llama->be;
  const ReplaySlot slot =
      llama_slot(llama, accumulate ? REPLAY_NEXT_BACKWARD : REPLAY_FIRST_BACKWARD);
  const int64_t L = llama->config.num_hidden_layers, chunks = llama->spec.loss_chunks,
                recomputed = recomputed_layers(&llama->spec);
  const double per_token = scale / (double)batch_rows(&llama->spec);
  if (!be->services.replay_begin(be, slot)) return;
  range_push("backward");
  if (!accumulate) be->services.step_begin(be);
  for (int64_t c = 0; c < chunks; c++) head_backward(llama, c, per_token, accumulate);
  // While the backend calibrates, a chunk may find another scale than the chunks before it.
  if (be->calibrating && chunks > 1) requantize(llama, llama->acts.layers[L].dx);
  for (int64_t l = L - 1; l >= 0; l--) {
    layer_begin(llama, l);
    // Of the layers that recompute the last one's activations are still there.
    if (l + 1 != recomputed) layer_recompute(llama, l);
    layer_backward(llama, l, accumulate);
    if (be->services.acts_read) be->services.acts_read(be, l);
    layer_end(llama);
  }
  embed_backward(llama, accumulate);
  range_pop();
  be->services.replay_end(be, slot);
}

static void params_update(Llama *llama) {
  RUN(llama, grads_finish, llama->tensors, llama->param_count);
  if (llama->layers[0].out->part_count > 0) RUN(llama, muon, llama->tensors, llama->param_count);
  RUN(llama, adamw, llama->tensors, llama->param_count);
}

void llama_update(Llama *llama, const AdamW *hyper) {
  Backend *be = llama->be;
  be->services.set_hyper(be, hyper);
  if (be->services.replay_begin(be, REPLAY_UPDATE)) {
    range_push("optimizer");
    params_update(llama);
    range_pop();
    be->services.replay_end(be, REPLAY_UPDATE);
  }
  be->services.step_end(be);
}
