// The forward pass: a call for each operation of kernels/ops.h. model/backward.c is this list
// reversed.
#include "model/ranges.h"

void embed_forward(Llama *llama) {
  LayerActs *a = &llama->acts.layers[0];
  RUN(llama, embed, batch_rows(&llama->spec), llama->acts.tokens, llama->embed->compute.data, a->x,
      &a->x_sumsq);
}

// Generation: the cache holds the keys and values of earlier rows, and gets those of these rows.
static void cached_attention(Llama *llama, int64_t l) {
  Backend *be = llama->be;
  const Spec *spec = &llama->spec;
  const LayerActs *a = &llama->acts.layers[l];
  const Operand W = llama->layers[l].qkv->folded;
  if (spec->seq == 1)
    be->qkv_token(be, llama->position, a->x, a->x_sumsq, W, a->cache);
  else
    be->qkv(be, batch_rows(spec), spec->seq, llama->first, a->x, a->x_sumsq, W,
            act_at(be, a->cache, llama->first * packed_width(spec)));
  be->attention_decode(be, llama->position, spec->seq, a->cache, a->o);
}

void layer_attention(Llama *llama, int64_t l) {
  const Spec *spec = &llama->spec;
  const int64_t context = llama_context(llama);
  const LayerParams *w = &llama->layers[l];
  LayerActs *a = &llama->acts.layers[l];
  if (a->cache) {
    cached_attention(llama, l);
  } else {
    RUN(llama, qkv, batch_rows(spec), spec->seq, 0, a->x, a->x_sumsq, w->qkv->folded, a->qkv);
    RUN(llama, attention, batch_rows(spec) / context, context, a->qkv, a->o, a->lse);
    if (llama->branch_count > 0)
      llama->be->attention_branches(llama->be, batch_rows(spec), llama->branch_count,
                                    llama->acts.branches, a->qkv, a->o);
  }
  RUN(llama, out, batch_rows(spec), query_width(spec), a->o, w->out->compute, a->x.data, a->x_sumsq,
      a->x1, &a->x1_sumsq);
}

void layer_gate_up(Llama *llama, int64_t l) {
  LayerActs *a = &llama->acts.layers[l];
  RUN(llama, gate_up, batch_rows(&llama->spec), a->x1, a->x1_sumsq,
      llama->layers[l].gate_up->folded, a->z, a->y);
}

static void layer_down(Llama *llama, int64_t l) {
  const Spec *spec = &llama->spec;
  LayerActs *a = &llama->acts.layers[l], *next = a + 1;
  RUN(llama, down, batch_rows(spec), spec->F, a->y, llama->layers[l].down->compute, a->x1.data,
      a->x1_sumsq, next->x, &next->x_sumsq);
}

void layer_forward(Llama *llama, int64_t l) {
  layer_attention(llama, l);
  layer_gate_up(llama, l);
  layer_down(llama, l);
}

// The same, where the activations' memory may still be lent. x of the next layer is written, too.
static void overwrite_layer(Llama *llama, int64_t l) {
  Backend *be = llama->be;
  if (be->services.acts_needed) be->services.acts_needed(be, l + 1);
  layer_forward(llama, l);
}

ReplaySlot llama_slot(const Llama *llama, ReplaySlot slot) {
  int halvings = 0;
  while (llama_context(llama) << halvings < llama->spec.seq) halvings++;
  return (ReplaySlot)(slot + halvings * REPLAY_OF_A_CONTEXT);
}

void llama_forward(Llama *llama) {
  Backend *be = llama->be;
  const ReplaySlot slot = llama_slot(llama, REPLAY_FORWARD);
  if (!be->services.replay_begin(be, slot)) return;
  range_push("forward");
  embed_forward(llama);
  for (int64_t l = 0; l < llama->config.num_hidden_layers; l++) {
    layer_begin(llama, l);
    overwrite_layer(llama, l);
    layer_end(llama);
  }
  range_pop();
  be->services.replay_end(be, slot);
}

void llama_loss(Llama *llama, double scale) {
  Backend *be = llama->be;
  const double per_token = scale / (double)batch_rows(&llama->spec);
  if (!be->services.replay_begin(be, REPLAY_LOSS)) return;
  for (int64_t c = 0; c < llama->spec.loss_chunks; c++) {
    const HeadChunk h = head_chunk(llama, c);
    RUN(llama, validation_loss, h.M, h.x, h.sumsq, llama->lm_head->folded, h.targets,
        llama->acts.logits, per_token, NULL);
  }
  be->services.replay_end(be, REPLAY_LOSS);
}

double llama_sum_of_losses(Llama *llama, const Batch *batch) {
  Backend *be = llama->be;
  be->services.step_begin(be);
  llama_load_batch(llama, batch);
  llama_forward(llama);
  llama_loss(llama, 1);
  be->services.step_end(be);
  return be->services.step_result(be).loss * (double)batch_rows(&llama->spec);
}

void llama_score(Llama *llama, const Batch *batch, const Branch *branches, int64_t count,
                 RowScore *scores) {
  Backend *be = llama->be;
  Acts *acts = &llama->acts;
  const int64_t M = batch_rows(&llama->spec), rows = chunk_rows(&llama->spec);
  llama_load_batch(llama, batch);
  be->services.write(be, acts->branches, branches, (size_t)count * sizeof *branches);
  llama->branch_count = count;
  embed_forward(llama);
  for (int64_t l = 0; l < llama->config.num_hidden_layers; l++) overwrite_layer(llama, l);
  llama->branch_count = 0;
  for (int64_t c = 0; c < llama->spec.loss_chunks; c++) {
    const HeadChunk h = head_chunk(llama, c);
    be->score_rows(be, h.M, h.x, h.sumsq, llama->lm_head->folded, h.targets, acts->logits,
                   acts->scores + c * rows);
  }
  be->services.read(be, scores, acts->scores, (size_t)M * sizeof *scores);
}

void row_logits(Llama *llama, int64_t row) {
  Backend *be = llama->be;
  const LayerActs *last = &llama->acts.layers[llama->config.num_hidden_layers];
  be->row_logits(be, operand_from(be, last->x, row, llama->config.hidden_size),
                 row_stat_from(be, last->x_sumsq, row), llama->lm_head->folded, llama->acts.logits);
}
