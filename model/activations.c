#include "model/activations.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "model/params.h"
#include "model/scalings.h"

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
      .padded_V = padded_vocab(&(OpsConfig){.V = c->vocab_size}),
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

static int64_t up_to_group(int64_t n) {
  return (n + FP8_GROUP - 1) / FP8_GROUP * FP8_GROUP;
}

static fp8_t *take_fp8(Layout *l, const char *name, const char *shape, int64_t elements) {
  return take(l, name, shape, elements, l->be->fp8_bytes);
}

static RowStat take_stat(Layout *l, const char *name, const char *shape, int64_t most_parts) {
  const int64_t stride = l->be->max_tokens;
  return (RowStat){take(l, name, shape, most_parts * stride, l->be->stat_bytes), stride, 0};
}

static RowStat take_sumsq(Layout *l) {
  return take_stat(l, "row sums of squares", "2L x [parts, M]", l->be->most_parts.sumsq);
}

// What all layers' activations and gradients take turns in, FP8 copies alone.
typedef struct Shared {
  fp8_t *stream;          // [M, D] of the residual stream
  fp8_t *inner;           // [M, 2F or more] of o, y, dz', dqkv'
  fp8_t *inner_by_col;    // of dz', dqkv'
  fp8_t *gradient;        // [M, D] of dx
  fp8_t *gradient_by_col; // the same
} Shared;

static Shared take_shared(const Sizes *n, const RunShape *shape, Layout *l) {
  Shared s = {0};
  const int64_t width = n->R > 2 * n->F ? n->R : 2 * n->F, by_col = up_to_group(n->M);
  const char *name = "FP8 copies, in turns";
  if (shape->fp8) s.stream = take_fp8(l, name, "", n->M * n->D);
  if (shape->fp8) s.inner = take_fp8(l, name, "", n->M * width);
  if (!shape->fp8 || !shape->train) return s;
  s.inner_by_col = take_fp8(l, name, "", width * by_col);
  s.gradient = take_fp8(l, name, "", n->M * n->D);
  s.gradient_by_col = take_fp8(l, name, "", n->D * by_col);
  return s;
}

// The copies of [M, cols] that a weight gradient will read.
static void take_by_col(Operand *x, const Sizes *n, int64_t cols, const RunShape *shape,
                        Layout *l) {
  x->stride = up_to_group(n->M);
  if (shape->train) x->by_col = take_fp8(l, "FP8 copies by column", "[cols, M]", cols * x->stride);
}

// The residual stream, of which a backward has the rows, their scales and, where `by_col`, copies
// of its own.
static void take_stream(Operand *x, const Sizes *n, const RunShape *shape, bool fp8, bool by_col,
                        Layout *l) {
  if (!fp8) return;
  x->fp8 = true;
  x->row_scale = take(l, "row scales", "2L x [M]", n->M, l->be->stat_bytes);
  if (by_col) take_by_col(x, n, n->D, shape, l);
}

static Operand with_copies(fp8_t *by_row, fp8_t *by_col, const Sizes *n) {
  return (Operand){.by_row = by_row, .by_col = by_col, .stride = up_to_group(n->M), .fp8 = true};
}

static void number_scalings(LayerActs *a, const ModelConfig *c, int64_t layer) {
  a->x.scaling = scaling_index(c, layer, SCALING_X);
  a->o.scaling = scaling_index(c, layer, SCALING_O);
  a->x1.scaling = scaling_index(c, layer, SCALING_X1);
  a->y.scaling = scaling_index(c, layer, SCALING_Y);
}

// What no backward waits for, or what it makes again, all layers keep in the first one's buffers.
static void take_layers(LayerActs *layers, const Sizes *n, const RunShape *shape,
                        const Shared *shared, Layout *l) {
  const bool fp8 = shape->fp8;
  const Recompute again = shape->recompute;
  for (int64_t i = 0; i < n->L; i++) {
    LayerActs *a = &layers[i];
    if (i > 0) *a = layers[0];
    if (i > 0 && !shape->train) continue;
    a->x.data = take_act(l, "x", "L x [M, D]", n->M * n->D);
    take_stream(&a->x, n, shape, fp8, i == 0 || again != RECOMPUTE_LAYER, l);
    a->x.by_row = fp8 ? shared->stream : NULL;
    a->x_sumsq = take_sumsq(l);
    if (i > 0 && again == RECOMPUTE_LAYER) continue;
    a->qkv = take_act(l, "qkv", "L x [M, (H + 2 KV) d]", n->M * n->R);
    if (fp8) a->o = with_copies(shared->inner, NULL, n);
    a->o.data = take_act(l, "attention output", "L x [M, H d]", n->M * n->Hd);
    if (fp8) take_by_col(&a->o, n, n->Hd, shape, l);
    a->lse = take(l, "attention log-sum-exp", "L x [B, H, T]", n->M * n->H, l->be->stat_bytes);
    a->x1.data = take_act(l, "x1", "L x [M, D]", n->M * n->D);
    take_stream(&a->x1, n, shape, fp8, i == 0 || again != RECOMPUTE_MLP, l);
    a->x1.by_row = a->x.by_row;
    a->x1_sumsq = take_sumsq(l);
    if (i > 0 && again == RECOMPUTE_MLP) continue;
    a->z = take_act(l, "z (gate, up)", "L x [M, 2F]", n->M * 2 * n->F);
    if (fp8) {
      a->y = with_copies(shared->inner, NULL, n);
      take_by_col(&a->y, n, n->F, shape, l);
    } else {
      a->y.data = take_act(l, "y (SwiGLU)", "L x [M, F]", n->M * n->F);
    }
  }
}

static void take_head(Acts *acts, const Sizes *n, const RunShape *shape, const Shared *shared,
                      Layout *l) {
  HeadGradient *g = &acts->head;
  acts->x_final.data = take_act(l, "final x", "[M, D]", n->M * n->D);
  take_stream(&acts->x_final, n, shape, shape->fp8, true, l);
  acts->x_final.by_row = shape->fp8 ? shared->stream : NULL;
  acts->final_sumsq = take_stat(l, "final row sums", "[parts, M]", l->be->most_parts.sumsq);
  acts->logits = take_act(l, "logits", "[M / chunks, V]", n->head_rows * n->padded_V);
  if (!shape->train) return;
  if (shape->fp8) {
    g->p.fp8 = true;
    g->p.stride = up_to_group(n->head_rows);
    g->p.by_row = take_fp8(l, "dlogits", "2 x [M / chunks, V]", n->head_rows * n->padded_V);
    g->p.by_col = take_fp8(l, "dlogits", "2 x [M / chunks, V]", n->padded_V * g->p.stride);
  } else {
    g->p.data = acts->logits;
    if (l->be->folds_softmax)
      g->u = take(l, "softmax scales", "[M / chunks]", n->head_rows, l->be->stat_bytes);
  }
  g->p.row_stride = n->padded_V;
}

static void take_backward(Acts *acts, const Sizes *n, const RunShape *shape, const Shared *shared,
                          Layout *l) {
  const bool fp8 = shape->fp8;
  if (fp8) {
    acts->dx = acts->dx1 = with_copies(shared->gradient, shared->gradient_by_col, n);
    acts->dz = acts->dqkv_prime = with_copies(shared->inner, shared->inner_by_col, n);
  }
  acts->dx.data = acts->dx1.data = take_act(l, "dx", "[M, D]", n->M * n->D);
  if (fp8) acts->dx1.data = take_act(l, "dx1", "[M, D]", n->M * n->D);
  acts->da = take_act(l, "d attention output", "[M, H d]", n->M * n->Hd);
  acts->dqkv = take_act(l, "dqkv", "[M, (H + 2 KV) d]", n->M * n->R);
  if (!fp8) acts->dqkv_prime.data = acts->dqkv;
  acts->s = acts->head.s =
      take_stat(l, "norm backward row sums", "[parts, M]", l->be->most_parts.s);
}

static void take_acts(Acts *acts, const ModelConfig *c, const Sizes *n, const RunShape *shape,
                      Layout *l) {
  const Shared shared = take_shared(n, shape, l);
  take_layers(acts->layers, n, shape, &shared, l);
  for (int64_t i = 0; i < n->L; i++) number_scalings(&acts->layers[i], c, i);
  take_head(acts, n, shape, &shared, l);
  acts->x_final.scaling = scaling_index(c, n->L, SCALING_X);
  acts->head.p.scaling = scaling_index(c, n->L, SCALING_DLOGITS);
  if (shape->train) take_backward(acts, n, shape, &shared, l);
  acts->tokens = take(l, "tokens and targets", "2 x [M]", n->M, sizeof(int32_t));
  acts->targets = take(l, "tokens and targets", "2 x [M]", n->M, sizeof(int32_t));
}

size_t acts_layout(Acts *acts, const ModelConfig *c, const RunShape *shape, const Backend *be,
                   char *block, MemoryPlan *plan) {
  const Sizes n = model_sizes(c, shape);
  Layout l = {{block, 0}, plan, be};
  take_acts(acts, c, &n, shape, &l);
  return l.arena.used;
}

RunShape sampler_shape(const RunShape *run, int64_t context, const Backend *be) {
  enum { FEED_ROWS = 64 }; // tokens of a prompt that go through the layers together
  const int64_t rows = be->max_tokens < FEED_ROWS ? be->max_tokens : FEED_ROWS;
  return (RunShape){
      .batch = 1, .seq = rows, .loss_chunks = rows, .context = context, .fp8 = run->fp8};
}

size_t sampler_layout(Acts *acts, const ModelConfig *c, const RunShape *shape, const Backend *be,
                      char *block) {
  const Sizes n = model_sizes(c, shape);
  Layout l = {{block, 0}, NULL, be};
  take_acts(acts, c, &n, shape, &l);
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
    const RunShape sampler = sampler_shape(shape, shape->context, be);
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

// A matrix as products read it.
static Operand take_weight(Layout *l, const ParamTensor *t, bool fp8, int scaling) {
  const char *name = "compute weights", *shape = "all matrices";
  if (!fp8) return operand_of(take_act(l, name, shape, t->rows * t->cols));
  Operand w = {.stride = up_to_group(t->rows), .scaling = scaling, .fp8 = true};
  w.by_row = take_fp8(l, name, shape, w.stride * t->cols); // products take rows in whole groups
  w.by_col = take_fp8(l, name, shape, t->cols * w.stride);
  return w;
}

size_t params_layout(ParamTensor *tensors, const ModelConfig *c, const RunShape *shape,
                     const Backend *be, char *block, MemoryPlan *plan) {
  Layout l = {{block, 0}, plan, be};
  const char *moments = be->moment_bytes == 2 ? "all parameters, bf16" : "all parameters";
  params_table(c, tensors);
  for (int i = 0; i < params_count(c); i++) {
    ParamTensor *t = &tensors[i];
    const int64_t n = t->rows * t->cols;
    const bool embed = i == param_index(c, PARAM_EMBED, -1), matrix = t->decay, fp8 = shape->fp8;
    t->master = take(&l, "master weights", "all parameters", n, be->master_bytes);
    if (shape->train) {
      t->m = take(&l, "AdamW m", moments, n, be->moment_bytes);
      t->v = take(&l, "AdamW v", moments, n, be->moment_bytes);
    }
    if (embed || (matrix && t->norm < 0)) t->compute = take_weight(&l, t, fp8 && !embed, i);
    if (t->norm >= 0) t->folded = take_weight(&l, t, fp8, i);
  }
  return l.arena.used;
}

size_t grads_layout(ParamTensor *tensors, const ModelConfig *c, const RunShape *shape,
                    const Backend *be, char *block, MemoryPlan *plan) {
  const char *name = "gradients", *all = "all parameters";
  Layout l = {{block, 0}, plan, be};
  ParamTensor *head = &tensors[param_index(c, PARAM_LM_HEAD, -1)];
  const size_t head_elements = (size_t)(head->rows * head->cols);
  if (!shape->train) return 0;
  for (int i = 0; i < params_count(c); i++) {
    ParamTensor *t = &tensors[i];
    const int64_t n = t->rows * t->cols;
    const bool both = t->norm >= 0 && i == param_index(c, PARAM_EMBED, -1); // a tied embedding
    if (t->norm < 0 || both) t->grad = take(&l, name, all, n, be->grad_bytes);
    if (t->norm >= 0 && t != head) t->grad_folded = take(&l, name, all, n, be->grad_bytes);
  }
  if (chunks_apart(shape, be)) { // in the place of all the others, which are made later
    const size_t there = l.arena.used, needed = head_elements * be->stat_bytes;
    head->part_sum = (stat_t *)block;
    if (needed > there)
      take(&l, "lm_head gradient's sum", "what the others lack", (int64_t)(needed - there), 1);
  }
  head->grad_folded = take(&l, name, all, (int64_t)head_elements, be->grad_bytes);
  return l.arena.used;
}

void memory_plan_print(const MemoryPlan *plan) {
  printf("memory plan\n");
  for (int i = 0; i < plan->count; i++)
    printf("  %-26s %-24s %12s\n", plan->items[i].name, plan->items[i].shape,
           size_text(plan->items[i].bytes).text);
  printf("  %-51s %12s\n", "total", size_text(plan->total_bytes).text);
}
