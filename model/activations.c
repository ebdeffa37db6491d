#include "model/activations.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/memory.h"
#include "model/params.h"

Sizes model_sizes(const ModelConfig *c, const RunShape *shape) {
  const int64_t M = shape->batch * shape->seq, Hd = c->num_attention_heads * c->head_dim;
  return (Sizes){
      .B = shape->batch,
      .T = shape->seq,
      .M = M,
      .D = c->hidden_size,
      .F = c->intermediate_size,
      .H = c->num_attention_heads,
      .Hd = Hd,
      .R = Hd + 2 * c->num_key_value_heads * c->head_dim,
      .V = c->vocab_size,
      .L = c->num_hidden_layers,
      .head_rows = shape->loss_chunks > 0 ? (M + shape->loss_chunks - 1) / shape->loss_chunks : M};
}

static void book(MemoryPlan *plan, const char *name, const char *shape, size_t bytes) {
  if (!plan) return;
  for (int i = 0; i < plan->count; i++) // one line for all layers; names are literals of this file
    if (plan->items[i].name == name) {
      plan->items[i].bytes += bytes;
      return;
    }
  plan->items[plan->count++] = (PlanItem){name, shape, bytes};
}

// Buffers laid out in a block, each booked in the plan.
typedef struct Layout {
  Arena arena;
  MemoryPlan *plan;
  const Backend *be;
} Layout;

static void *take(Layout *l, const char *name, const char *shape, int64_t elements,
                  size_t element_bytes) {
  const size_t before = l->arena.used;
  void *p = arena_take(&l->arena, (size_t)elements * element_bytes);
  book(l->plan, name, shape, l->arena.used - before);
  return p;
}

static act_t *take_act(Layout *l, const char *name, const char *shape, int64_t elements) {
  return take(l, name, shape, elements, l->be->act_bytes);
}

static RowStat take_stat(Layout *l, const char *name, const char *shape, int64_t most_parts) {
  const int64_t stride = l->be->max_tokens;
  return (RowStat){take(l, name, shape, most_parts * stride, l->be->stat_bytes), stride, 0};
}

static RowStat take_sumsq(Layout *l) {
  return take_stat(l, "row sums of squares", "2L x [parts, M]", l->be->most_parts.sumsq);
}

// What no backward waits for, or what it makes again, all layers keep in the first one's buffers.
static void take_layers(LayerActs *layers, const Sizes *n, const RunShape *shape, Layout *l) {
  for (int64_t i = 0; i < n->L; i++) {
    LayerActs *a = &layers[i];
    *a = layers[0];
    if (i > 0 && !shape->train) continue;
    a->x = take_act(l, "x", "L x [M, D]", n->M * n->D);
    a->x_sumsq = take_sumsq(l);
    if (i > 0 && shape->recompute == RECOMPUTE_LAYER) continue;
    a->qkv = take_act(l, "qkv", "L x [M, (H + 2 KV) d]", n->M * n->R);
    a->o = take_act(l, "attention output", "L x [M, H d]", n->M * n->Hd);
    a->lse = take(l, "attention log-sum-exp", "L x [B, H, T]", n->M * n->H, l->be->stat_bytes);
    a->x1 = take_act(l, "x1", "L x [M, D]", n->M * n->D);
    a->x1_sumsq = take_sumsq(l);
    if (i > 0 && shape->recompute == RECOMPUTE_MLP) continue;
    a->z = take_act(l, "z (gate, up)", "L x [M, 2F]", n->M * 2 * n->F);
    a->y = take_act(l, "y (SwiGLU)", "L x [M, F]", n->M * n->F);
  }
}

static void take_acts(Acts *acts, const Sizes *n, const RunShape *shape, Layout *l) {
  take_layers(acts->layers, n, shape, l);
  acts->x_final = take_act(l, "final x", "[M, D]", n->M * n->D);
  acts->final_sumsq = take_stat(l, "final row sums", "[parts, M]", l->be->most_parts.sumsq);
  acts->logits = take_act(l, "logits", "[M / chunks, V]", n->head_rows * n->V);
  if (shape->train) {
    acts->dx = take_act(l, "dx", "[M, D]", n->M * n->D);
    acts->da = take_act(l, "d attention output", "[M, H d]", n->M * n->Hd);
    acts->dqkv = take_act(l, "dqkv", "[M, (H + 2 KV) d]", n->M * n->R);
    acts->s = take_stat(l, "norm backward row sums", "[parts, M]", l->be->most_parts.s);
  }
  acts->tokens = take(l, "tokens and targets", "2 x [M]", n->M, sizeof(int32_t));
  acts->targets = take(l, "tokens and targets", "2 x [M]", n->M, sizeof(int32_t));
}

size_t acts_layout(Acts *acts, const ModelConfig *c, const RunShape *shape, const Backend *be,
                   char *block, MemoryPlan *plan) {
  const Sizes n = model_sizes(c, shape);
  Layout l = {{block, 0}, plan, be};
  take_acts(acts, &n, shape, &l);
  return l.arena.used;
}

RunShape sampler_shape(int64_t context, const Backend *be) {
  enum { FEED_ROWS = 64 }; // tokens of a prompt that go through the layers together
  const int64_t rows = be->max_tokens < FEED_ROWS ? be->max_tokens : FEED_ROWS;
  return (RunShape){.batch = 1, .seq = rows, .loss_chunks = rows, .context = context};
}

size_t sampler_layout(Acts *acts, const ModelConfig *c, const RunShape *shape, const Backend *be,
                      char *block) {
  const Sizes n = model_sizes(c, shape);
  Layout l = {{block, 0}, NULL, be};
  take_acts(acts, &n, shape, &l);
  for (int64_t i = 0; i < n.L; i++)
    acts->layers[i].cache = take_act(&l, "", "", shape->context * n.R);
  return l.arena.used;
}

// What an allocation takes beyond the bytes that it asks for.
static size_t rounding(const Backend *be, size_t bytes) {
  return be->granule > 0 ? (be->granule - bytes % be->granule) % be->granule : 0;
}

void memory_plan(MemoryPlan *plan, const ModelConfig *c, const RunShape *shape, const Backend *be) {
  *plan = (MemoryPlan){0};
  ParamTensor *tensors = xcalloc((size_t)params_count(c), sizeof *tensors);
  Acts acts = {.layers = xcalloc((size_t)c->num_hidden_layers, sizeof(LayerActs))};
  plan->params_bytes = params_layout(tensors, c, shape, be, NULL, plan);
  plan->grads_bytes = grads_layout(tensors, c, shape, be, NULL, plan);
  plan->acts_bytes = acts_layout(&acts, c, shape, be, NULL, plan);
  if (shape->context > 0) {
    const RunShape sampler = sampler_shape(shape->context, be);
    plan->sampler_bytes = sampler_layout(&acts, c, &sampler, be, NULL);
    book(plan, "sampler", "L x [context, R] and rows", plan->sampler_bytes);
  }
  plan->workspace_bytes = be->workspace_bytes + rounding(be, plan->params_bytes) +
                          rounding(be, plan->grads_bytes) + rounding(be, plan->acts_bytes) +
                          rounding(be, plan->sampler_bytes);
  if (be->list_bytes) plan->workspace_bytes += be->list_bytes(tensors, params_count(c));
  book(plan, "backend workspace", "", plan->workspace_bytes);
  for (int i = 0; i < plan->count; i++) plan->total_bytes += plan->items[i].bytes;
  free(acts.layers);
  free(tensors);
}

size_t params_layout(ParamTensor *tensors, const ModelConfig *c, const RunShape *shape,
                     const Backend *be, char *block, MemoryPlan *plan) {
  Layout l = {{block, 0}, plan, be};
  params_table(c, tensors);
  for (int i = 0; i < params_count(c); i++) {
    ParamTensor *t = &tensors[i];
    const int64_t n = t->rows * t->cols;
    const bool embed = i == param_index(c, PARAM_EMBED, -1), matrix = t->decay;
    t->master = take(&l, "master weights", "all parameters", n, be->master_bytes);
    if (shape->train) {
      t->m = take(&l, "AdamW m", "all parameters", n, be->master_bytes);
      t->v = take(&l, "AdamW v", "all parameters", n, be->master_bytes);
    }
    if (embed || (matrix && t->norm < 0))
      t->compute = take_act(&l, "compute weights", "all matrices", n);
    if (t->norm >= 0) t->folded = take_act(&l, "compute weights", "all matrices", n);
  }
  return l.arena.used;
}

size_t grads_layout(ParamTensor *tensors, const ModelConfig *c, const RunShape *shape,
                    const Backend *be, char *block, MemoryPlan *plan) {
  Layout l = {{block, 0}, plan, be};
  for (int i = 0; shape->train && i < params_count(c); i++) {
    ParamTensor *t = &tensors[i];
    const int64_t n = t->rows * t->cols;
    const bool both = t->norm >= 0 && i == param_index(c, PARAM_EMBED, -1); // a tied embedding
    t->grad = take(&l, "gradients", "all parameters", n, be->grad_bytes);
    if (t->norm >= 0) t->grad_folded = t->grad;
    if (both) t->grad_folded = take(&l, "gradients", "all parameters", n, be->grad_bytes);
  }
  return l.arena.used;
}

void memory_plan_print(const MemoryPlan *plan) {
  printf("memory plan\n");
  for (int i = 0; i < plan->count; i++)
    printf("  %-26s %-24s %12s\n", plan->items[i].name, plan->items[i].shape,
           size_text(plan->items[i].bytes).text);
  printf("  %-51s %12s\n", "total", size_text(plan->total_bytes).text);
}
