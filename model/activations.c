#include "model/activations.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "model/generate.h"
#include "model/params.h"

enum { ALIGNMENT = 256 }; // bytes; what a GPU's vector loads and copy engine like

// A cursor over the block that counts where there is no memory yet, and books each buffer in the
// plan.
typedef struct Arena {
  char *block;
  size_t used;
  MemoryPlan *plan;
} Arena;

static size_t aligned(size_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
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

static void *take(Arena *arena, const char *name, const char *shape, int64_t elements,
                  size_t element_bytes) {
  const size_t bytes = aligned((size_t)elements * element_bytes);
  void *p = arena->block ? arena->block + arena->used : NULL;
  arena->used += bytes;
  book(arena->plan, name, shape, bytes);
  return p;
}

static int64_t max64(int64_t a, int64_t b) {
  return a > b ? a : b;
}

// The sizes a layer's buffers are made of.
typedef struct LayerSizes {
  int64_t M, D, F, H, Hd, R, stats; // stats: elements of a row statistic
} LayerSizes;

// Between layers, and into backward: x.
static void take_input(LayerActs *y, const LayerSizes *n, const Backend *be, Arena *a) {
  y->x = take(a, "x", "L x [M, D]", n->M * n->D, be->act_bytes);
  y->x_sumsq = take(a, "row sums of squares", "2L x [parts, M]", n->stats, be->stat_bytes);
}

static void take_attention(LayerActs *y, const LayerSizes *n, const Backend *be, Arena *a) {
  y->qkv = take(a, "qkv", "L x [M, (H + 2 KV) d]", n->M * n->R, be->act_bytes);
  y->o = take(a, "attention output", "L x [M, H d]", n->M * n->Hd, be->act_bytes);
  y->lse = take(a, "attention log-sum-exp", "L x [B, H, T]", n->M * n->H, be->stat_bytes);
  y->x1 = take(a, "x1", "L x [M, D]", n->M * n->D, be->act_bytes);
  y->x1_sumsq = take(a, "row sums of squares", "2L x [parts, M]", n->stats, be->stat_bytes);
}

static void take_mlp(LayerActs *y, const LayerSizes *n, const Backend *be, Arena *a) {
  y->z = take(a, "z (gate, up)", "L x [M, 2F]", n->M * 2 * n->F, be->act_bytes);
  y->y = take(a, "y (SwiGLU)", "L x [M, F]", n->M * n->F, be->act_bytes);
}

// What no backward waits for, or what it makes again, all layers keep in the first one's buffers.
static void take_layers(LayerActs *layers, int64_t L, const LayerSizes *n, const RunShape *shape,
                        const Backend *be, Arena *a) {
  const bool keep = shape->train;
  for (int64_t l = 0; l < L; l++) {
    LayerActs *y = &layers[l];
    *y = layers[0];
    if (l == 0 || keep) take_input(y, n, be, a);
    if (l == 0 || (keep && shape->recompute != RECOMPUTE_LAYER)) take_attention(y, n, be, a);
    if (l == 0 || (keep && shape->recompute == RECOMPUTE_NONE)) take_mlp(y, n, be, a);
  }
}

size_t acts_layout(Acts *acts, const ModelConfig *c, const RunShape *shape, const Backend *be,
                   char *block, MemoryPlan *plan) {
  const int64_t M = shape->batch * shape->seq, chunk = M / shape->loss_chunks,
                stride = be->max_tokens;
  const int64_t D = c->hidden_size, F = c->intermediate_size, V = c->vocab_size;
  const int64_t Hd = c->num_attention_heads * c->head_dim,
                R = Hd + 2 * c->num_key_value_heads * c->head_dim;
  const size_t act = be->act_bytes, stat = be->stat_bytes;
  const LayerSizes sizes = {.M = M,
                            .D = D,
                            .F = F,
                            .H = c->num_attention_heads,
                            .Hd = Hd,
                            .R = R,
                            .stats = be->parts.sumsq * stride};
  Arena a = {block, 0, plan};
  take_layers(acts->layers, c->num_hidden_layers, &sizes, shape, be, &a);
  acts->x_final = take(&a, "final x", "[M, D]", M * D, act);
  acts->final_sumsq = take(&a, "final row sums", "[parts, M]", be->parts.sumsq * stride, stat);
  acts->logits = take(&a, "logits", "[M / chunks, V]", chunk * V, act);
  if (shape->train) {
    const int64_t parts = max64(be->parts.gate_up, max64(be->parts.qkv, be->parts.logits));
    acts->dx = take(&a, "dx", "[M, D]", M * D, act);
    acts->da = take(&a, "d attention output", "[M, H d]", M * Hd, act);
    acts->dqkv = take(&a, "dqkv", "[M, (H + 2 KV) d]", M * R, act);
    acts->s = take(&a, "norm backward row sums", "[parts, M]", parts * stride, stat);
  }
  acts->tokens = take(&a, "tokens and targets", "2 x [M]", M, sizeof(int32_t));
  acts->targets = take(&a, "tokens and targets", "2 x [M]", M, sizeof(int32_t));
  return a.used;
}

// What an allocation takes beyond the bytes that it asks for.
static size_t rounding(const Backend *be, size_t bytes) {
  return be->granule > 0 ? (be->granule - bytes % be->granule) % be->granule : 0;
}

void memory_plan(MemoryPlan *plan, const ModelConfig *c, const RunShape *shape, const Backend *be) {
  *plan = (MemoryPlan){0};
  ParamTensor *tensors = xcalloc((size_t)params_count(c), sizeof *tensors);
  plan->params_bytes = params_layout(tensors, c, shape, be, NULL, plan);
  plan->grads_bytes = grads_layout(tensors, c, shape, be, NULL, plan);
  plan->workspace_bytes = be->workspace_bytes;
  if (be->list_bytes) plan->workspace_bytes += be->list_bytes(tensors, params_count(c));
  free(tensors);
  Acts acts = {.layers = xcalloc((size_t)c->num_hidden_layers, sizeof(LayerActs))};
  plan->acts_bytes = acts_layout(&acts, c, shape, be, NULL, plan);
  free(acts.layers);
  if (shape->context > 0) {
    plan->sampler_bytes = generator_bytes(c, be, shape->context);
    book(plan, "sampler", "L x [context, R] and rows", plan->sampler_bytes);
  }
  plan->workspace_bytes += rounding(be, plan->params_bytes) + rounding(be, plan->grads_bytes) +
                           rounding(be, plan->acts_bytes) + rounding(be, plan->sampler_bytes);
  book(plan, "backend workspace", "", plan->workspace_bytes);
  plan->total_bytes = plan->params_bytes + plan->grads_bytes + plan->acts_bytes +
                      plan->sampler_bytes + plan->workspace_bytes;
}

size_t params_layout(ParamTensor *tensors, const ModelConfig *c, const RunShape *shape,
                     const Backend *be, char *block, MemoryPlan *plan) {
  Arena a = {block, 0, plan};
  ParamInfo *info = xcalloc((size_t)params_count(c), sizeof *info);
  params_table(c, info);
  for (int i = 0; i < params_count(c); i++) {
    ParamTensor *t = &tensors[i];
    const int64_t n = info[i].rows * info[i].cols;
    t->rows = info[i].rows;
    t->cols = info[i].cols;
    t->norm = info[i].norm;
    t->decay = info[i].decay;
    t->master = take(&a, "master weights", "all parameters", n, be->master_bytes);
    if (shape->train) {
      t->m = take(&a, "AdamW m", "all parameters", n, be->master_bytes);
      t->v = take(&a, "AdamW v", "all parameters", n, be->master_bytes);
    }
    if (info[i].plain) t->compute = take(&a, "compute weights", "all matrices", n, be->act_bytes);
    if (info[i].norm >= 0)
      t->folded = take(&a, "compute weights", "all matrices", n, be->act_bytes);
  }
  free(info);
  return a.used;
}

size_t grads_layout(ParamTensor *tensors, const ModelConfig *c, const RunShape *shape,
                    const Backend *be, char *block, MemoryPlan *plan) {
  Arena a = {block, 0, plan};
  for (int i = 0; shape->train && i < params_count(c); i++) {
    ParamTensor *t = &tensors[i];
    const bool both = t->norm >= 0 && i == param_index(c, PARAM_EMBED, -1); // a tied embedding
    t->grad = take(&a, "gradients", "all parameters", t->rows * t->cols, be->grad_bytes);
    if (t->norm >= 0) t->grad_folded = t->grad;
    if (both)
      t->grad_folded = take(&a, "gradients", "all parameters", t->rows * t->cols, be->grad_bytes);
  }
  return a.used;
}

void memory_plan_print(const MemoryPlan *plan) {
  printf("memory plan\n");
  for (int i = 0; i < plan->count; i++)
    printf("  %-26s %-24s %12s\n", plan->items[i].name, plan->items[i].shape,
           size_text(plan->items[i].bytes).text);
  printf("  %-51s %12s\n", "total", size_text(plan->total_bytes).text);
}
