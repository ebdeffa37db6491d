#include "model/bench/operations.h"

#include <stdio.h>

#include "model/step.h"

typedef struct Sizes {
  int64_t B, T, M, D, F, H, KV, d, Hd, R, V;
  int64_t head_rows; // of a chunk of the loss
} Sizes;

static Sizes sizes_of(const Llama *llama) {
  const ModelConfig *c = &llama->config;
  const RunShape *s = &llama->shape;
  const int64_t d = c->head_dim, H = c->num_attention_heads, KV = c->num_key_value_heads,
                M = s->batch * s->seq;
  return (Sizes){.B = s->batch,
                 .T = s->seq,
                 .M = M,
                 .D = c->hidden_size,
                 .F = c->intermediate_size,
                 .H = H,
                 .KV = KV,
                 .d = d,
                 .Hd = H * d,
                 .R = (H + 2 * KV) * d,
                 .V = c->vocab_size,
                 .head_rows = M / s->loss_chunks};
}

// ---- What each operation is

// The product of an operation; M = 0: it has none.
static BareProduct product_of(const Sizes *z, Operation operation, bool fp32) {
  const int64_t M = z->M, D = z->D, F = z->F, Hd = z->Hd, R = z->R, V = z->V, head = z->head_rows;
  switch (operation) {
  case OP_QKV:
    return (BareProduct){.M = M, .N = R, .K = D, .form = BARE_NT};
  case OP_OUT:
    return (BareProduct){.M = M, .N = D, .K = Hd, .form = BARE_NT};
  case OP_GATE_UP:
    return (BareProduct){.M = M, .N = 2 * F, .K = D, .form = BARE_NT};
  case OP_DOWN:
    return (BareProduct){.M = M, .N = D, .K = F, .form = BARE_NT};
  case OP_HEAD_LOSS:
    return (BareProduct){.M = head, .N = V, .K = D, .form = BARE_NT};
  case OP_LM_HEAD_WGRAD:
    return (BareProduct){.M = V, .N = D, .K = head, .form = BARE_TN, .out_fp32 = fp32};
  case OP_LM_HEAD_DGRAD:
    return (BareProduct){.M = head, .N = D, .K = V, .form = BARE_NN};
  case OP_DOWN_WGRAD:
    return (BareProduct){.M = D, .N = F, .K = M, .form = BARE_TN, .out_fp32 = fp32};
  case OP_DOWN_DGRAD:
    return (BareProduct){.M = M, .N = F, .K = D, .form = BARE_NN};
  case OP_GATE_UP_WGRAD:
    return (BareProduct){.M = 2 * F, .N = D, .K = M, .form = BARE_TN, .out_fp32 = fp32};
  case OP_GATE_UP_DGRAD:
    return (BareProduct){.M = M, .N = D, .K = 2 * F, .form = BARE_NN};
  case OP_OUT_WGRAD:
    return (BareProduct){.M = D, .N = Hd, .K = M, .form = BARE_TN, .out_fp32 = fp32};
  case OP_OUT_DGRAD:
    return (BareProduct){.M = M, .N = Hd, .K = D, .form = BARE_NN};
  case OP_QKV_WGRAD:
    return (BareProduct){.M = R, .N = D, .K = M, .form = BARE_TN, .out_fp32 = fp32};
  case OP_QKV_DGRAD:
    return (BareProduct){.M = M, .N = D, .K = R, .form = BARE_NN};
  default:
    return (BareProduct){0};
  }
}

// Every parameter once: what the gradients' last pass and AdamW read and write of it.
static void update_bytes(const Llama *llama, double *finish, double *adamw) {
  const Backend *be = llama->be;
  const double grad = (double)be->grad_bytes, master = (double)be->master_bytes,
               act = (double)be->act_bytes;
  *finish = *adamw = 0;
  for (int i = 0; i < llama->param_count; i++) {
    const ParamTensor *t = &llama->tensors[i];
    const double n = (double)(t->rows * t->cols);
    const bool both = t->grad_folded && t->grad_folded != t->grad;
    *finish += n * (t->norm >= 0 ? master + (both ? 3 : 2) * grad : grad);
    *adamw += n * (6 * master + grad + (t->compute ? act : 0) + (t->folded ? act : 0));
  }
}

static void describe_memory(BenchOp *op, const Llama *llama, const Sizes *z) {
  const double act = (double)llama->be->act_bytes, M = (double)z->M, D = (double)z->D,
               R = (double)z->R, V = (double)z->V;
  double finish, adamw, parameters = 0;
  update_bytes(llama, &finish, &adamw);
  for (int i = 0; i < llama->param_count; i++)
    parameters += (double)(llama->tensors[i].rows * llama->tensors[i].cols);
  switch (op->operation) {
  case OP_EMBED:
    op->bytes = op->floor_bytes = 2 * M * D * act;
    break;
  case OP_ROPE_BACKWARD: // an epilogue in another attention: not in the floor
    op->bytes = 3 * M * R * act;
    break;
  case OP_EMBED_BACKWARD: // dx in, dE out
    op->bytes = op->floor_bytes = M * D * act + V * D * (double)llama->be->grad_bytes;
    break;
  case OP_GRADS_FINISH: // part of it could be AdamW's: not in the floor
    op->bytes = finish;
    break;
  default:
    op->bytes = op->floor_bytes = adamw;
    break;
  }
  if (op->operation == OP_GRADS_FINISH || op->operation == OP_ADAMW)
    snprintf(op->shape, sizeof op->shape, "%.4gM parameters", parameters * 1e-6);
  else
    snprintf(op->shape, sizeof op->shape, "%lld x %lld", (long long)z->M,
             (long long)(op->operation == OP_ROPE_BACKWARD ? z->R : z->D));
}

static void describe(BenchOp *op, const Llama *llama) {
  const Sizes z = sizes_of(llama);
  const BareProduct p =
      product_of(&z, op->operation, llama->be->grad_bytes != llama->be->act_bytes);
  if (op->operation == OP_ATTENTION || op->operation == OP_ATTENTION_BACKWARD) {
    op->class = CLASS_ATTENTION; // causal: half of the scores
    op->flops = (op->operation == OP_ATTENTION ? 2.0 : 5.0) * (double)(z.B * z.H * z.d) *
                (double)z.T * (double)z.T;
    snprintf(op->shape, sizeof op->shape, "%lld x %lld, %lld/%lld of %lld", (long long)z.B,
             (long long)z.T, (long long)z.H, (long long)z.KV, (long long)z.d);
  } else if (p.M > 0) {
    op->class = CLASS_PRODUCT;
    op->product = p;
    op->flops = 2 * (double)p.M * (double)p.N * (double)p.K;
    if (op->operation == OP_HEAD_LOSS) // the pass that makes dlogits of the logits
      op->floor_bytes = 2 * (double)(p.M * p.N) * (double)llama->be->act_bytes;
    snprintf(op->shape, sizeof op->shape, "%lld x %lld x %lld", (long long)p.M, (long long)p.N,
             (long long)p.K);
  } else {
    op->class = CLASS_MEMORY;
    describe_memory(op, llama, &z);
  }
}

// Calls in a micro-batch, and in a layer's passes.
static int64_t count_calls(BenchOp *op, const Llama *llama) {
  const int64_t L = llama->config.num_hidden_layers;
  const Recompute again = llama->shape.recompute;
  switch (op->operation) {
  case OP_EMBED:
  case OP_EMBED_BACKWARD:
    return 1;
  case OP_HEAD_LOSS:
  case OP_LM_HEAD_WGRAD:
  case OP_LM_HEAD_DGRAD:
    return llama->shape.loss_chunks;
  case OP_QKV:
  case OP_ATTENTION:
  case OP_OUT:
    op->in_forward = 1;
    op->in_backward = again == RECOMPUTE_LAYER;
    break;
  case OP_GATE_UP:
    op->in_forward = 1;
    op->in_backward = again != RECOMPUTE_NONE;
    break;
  case OP_DOWN:
    op->in_forward = 1;
    break;
  default:
    op->in_backward = 1;
    return L;
  }
  return L + (op->in_backward ? L - 1 : 0); // the last layer's activations are still there
}

// Whether both kinds do the very same: the fused backend's row statistics come in more parts, so
// that what reads or clears them does not.
static bool is_alike(const Llama *llama, Operation operation) {
  switch (operation) {
  case OP_ATTENTION:
  case OP_LM_HEAD_WGRAD:
  case OP_DOWN_WGRAD:
  case OP_GATE_UP_WGRAD:
  case OP_OUT_WGRAD:
  case OP_OUT_DGRAD:
  case OP_ATTENTION_BACKWARD:
  case OP_QKV_WGRAD:
  case OP_EMBED_BACKWARD:
  case OP_GRADS_FINISH:
  case OP_ADAMW:
    return llama->be->kinds[operation] == KERNEL_UNFUSED;
  default:
    return false;
  }
}

void bench_ops_list(BenchResult *result, const Llama *llama, int64_t accumulation, Operation only) {
  result->op_count = 0;
  for (int i = 0; i < OPERATION_COUNT; i++) {
    if (i == OP_VALIDATION_LOSS || (only != OPERATION_COUNT && i != (int)only)) continue;
    BenchOp *op = &result->ops[result->op_count++];
    *op = (BenchOp){.operation = (Operation)i,
                    .runs = llama->be->kinds[i],
                    .alike = is_alike(llama, (Operation)i)};
    describe(op, llama);
    const bool update = i == OP_GRADS_FINISH || i == OP_ADAMW;
    op->calls = update ? 1 : accumulation * count_calls(op, llama);
  }
}

// ---- Calls

// One layer's buffers, and where it passes x on to.
typedef struct Place {
  LayerActs a;
  LayerWeights w;
  act_t *x_next;
  stat_t *x_next_sumsq;
  HeadChunk head;
} Place;

static Place place_of(const Llama *llama, int index) {
  const int L = (int)llama->config.num_hidden_layers, l = index % L;
  const Acts *acts = &llama->acts;
  const bool last = l + 1 == L;
  return (Place){.a = acts->layers[l],
                 .w = layer_weights(llama, l),
                 .x_next = last ? acts->x_final : acts->layers[l + 1].x,
                 .x_next_sumsq = last ? acts->final_sumsq : acts->layers[l + 1].x_sumsq,
                 .head = head_chunk(llama, index % llama->shape.loss_chunks)};
}

static const ParamTensor *embedding(const Llama *llama) {
  return &llama->tensors[param_index(&llama->config, PARAM_EMBED, -1)];
}

static void issue_forward(Llama *llama, Operation operation, const Place *p) {
  Backend *be = llama->be;
  const Sizes z = sizes_of(llama);
  const LayerActs *a = &p->a;
  const Acts *acts = &llama->acts;
  switch (operation) {
  case OP_EMBED:
    be->embed(be, z.M, acts->tokens, embedding(llama)->compute, acts->layers[0].x,
              acts->layers[0].x_sumsq);
    break;
  case OP_QKV:
    be->qkv(be, z.M, z.T, 0, a->x, a->x_sumsq, p->w.qkv->folded, a->qkv);
    break;
  case OP_ATTENTION:
    be->attention(be, z.B, z.T, a->qkv, a->o, a->lse);
    break;
  case OP_OUT:
    be->residual(be, z.M, z.Hd, a->o, p->w.out->compute, a->x, a->x1, a->x1_sumsq);
    break;
  case OP_GATE_UP:
    be->gate_up(be, z.M, a->x1, a->x1_sumsq, p->w.gate_up->folded, a->z, a->y);
    break;
  default:
    be->residual(be, z.M, z.F, a->y, p->w.down->compute, a->x1, p->x_next, p->x_next_sumsq);
    break;
  }
}

static void issue_head(Llama *llama, Operation operation, const HeadChunk *h, bool accumulate) {
  Backend *be = llama->be;
  const Sizes z = sizes_of(llama);
  const Acts *a = &llama->acts;
  if (operation == OP_HEAD_LOSS)
    be->head_loss(be, h->M, h->x, h->sumsq, h->weight->folded, h->targets, a->logits,
                  1 / (double)z.M, a->s);
  else if (operation == OP_LM_HEAD_WGRAD)
    be->wgrad(be, h->M, z.V, z.D, a->logits, h->x, h->weight->grad_folded, accumulate);
  else
    be->norm_dgrad(be, h->M, z.V, a->logits, h->weight->folded, h->x, h->sumsq, a->s,
                   be->parts.logits, NULL, h->dx);
}

static void issue_backward(Llama *llama, Operation operation, const Place *p, bool accumulate) {
  Backend *be = llama->be;
  const Sizes z = sizes_of(llama);
  const LayerActs *a = &p->a;
  const Acts *acts = &llama->acts;
  act_t *dx = acts->dx, *da = acts->da, *dqkv = acts->dqkv;
  stat_t *s = acts->s;
  switch (operation) {
  case OP_DOWN_WGRAD:
    be->wgrad(be, z.M, z.D, z.F, dx, a->y, p->w.down->grad, accumulate);
    break;
  case OP_DOWN_DGRAD:
    be->down_dgrad(be, z.M, dx, p->w.down->compute, a->z, a->x1_sumsq, a->z, s, NULL);
    break;
  case OP_GATE_UP_WGRAD:
    be->wgrad(be, z.M, 2 * z.F, z.D, a->z, a->x1, p->w.gate_up->grad_folded, accumulate);
    break;
  case OP_GATE_UP_DGRAD:
    be->norm_dgrad(be, z.M, 2 * z.F, a->z, p->w.gate_up->folded, a->x1, a->x1_sumsq, s,
                   be->parts.gate_up, dx, dx);
    break;
  case OP_OUT_WGRAD:
    be->wgrad(be, z.M, z.D, z.Hd, dx, a->o, p->w.out->grad, accumulate);
    break;
  case OP_OUT_DGRAD:
    be->dgrad(be, z.M, z.Hd, dx, p->w.out->compute, da);
    break;
  case OP_ATTENTION_BACKWARD:
    be->attention_backward(be, z.B, z.T, a->qkv, a->o, a->lse, da, dqkv);
    break;
  case OP_ROPE_BACKWARD:
    be->rope_backward(be, z.M, z.T, dqkv, a->qkv, a->x_sumsq, s);
    break;
  case OP_QKV_WGRAD:
    be->wgrad(be, z.M, z.R, z.D, dqkv, a->x, p->w.qkv->grad_folded, accumulate);
    break;
  default:
    be->norm_dgrad(be, z.M, z.R, dqkv, p->w.qkv->folded, a->x, a->x_sumsq, s, be->parts.qkv, dx,
                   dx);
    break;
  }
}

void bench_op_issue(Llama *llama, Operation operation, int index, bool accumulate) {
  Backend *be = llama->be;
  const Place p = place_of(llama, index);
  switch (operation) {
  case OP_EMBED:
  case OP_QKV:
  case OP_ATTENTION:
  case OP_OUT:
  case OP_GATE_UP:
  case OP_DOWN:
    issue_forward(llama, operation, &p);
    break;
  case OP_HEAD_LOSS:
  case OP_LM_HEAD_WGRAD:
  case OP_LM_HEAD_DGRAD:
    issue_head(llama, operation, &p.head, accumulate);
    break;
  case OP_EMBED_BACKWARD:
    be->embed_backward(be, llama->shape.batch * llama->shape.seq, llama->acts.tokens,
                       llama->acts.dx, embedding(llama)->grad, accumulate);
    break;
  case OP_GRADS_FINISH:
    be->grads_finish(be, llama->tensors, llama->param_count);
    break;
  case OP_ADAMW:
    be->adamw(be, llama->tensors, llama->param_count);
    break;
  default:
    issue_backward(llama, operation, &p, accumulate);
    break;
  }
}

// z is the backend's own, and down_dgrad overwrites it; RoPE's backward multiplies dqkv in place,
// so that it would grow from call to call.
void bench_op_prepare(Llama *llama, Operation operation, int index) {
  if (operation == OP_DOWN_DGRAD) bench_op_issue(llama, OP_GATE_UP, index, false);
  if (operation == OP_ROPE_BACKWARD) bench_op_issue(llama, OP_ATTENTION_BACKWARD, index, false);
}

BareOperands bench_op_operands(const Llama *llama, Operation operation, int index) {
  const Place p = place_of(llama, index);
  const LayerActs *a = &p.a;
  const Acts *s = &llama->acts;
  switch (operation) {
  case OP_QKV:
    return (BareOperands){a->x, p.w.qkv->folded, NULL};
  case OP_OUT:
    return (BareOperands){a->o, p.w.out->compute, NULL};
  case OP_GATE_UP:
    return (BareOperands){a->x1, p.w.gate_up->folded, NULL};
  case OP_DOWN:
    return (BareOperands){a->y, p.w.down->compute, NULL};
  case OP_HEAD_LOSS: // too large for a place of its own
    return (BareOperands){p.head.x, p.head.weight->folded, s->logits};
  case OP_LM_HEAD_WGRAD:
    return (BareOperands){s->logits, p.head.x, p.head.weight->grad_folded};
  case OP_LM_HEAD_DGRAD:
    return (BareOperands){s->logits, p.head.weight->folded, NULL};
  case OP_DOWN_WGRAD:
    return (BareOperands){s->dx, a->y, NULL};
  case OP_DOWN_DGRAD:
    return (BareOperands){s->dx, p.w.down->compute, NULL};
  case OP_GATE_UP_WGRAD:
    return (BareOperands){a->z, a->x1, NULL};
  case OP_GATE_UP_DGRAD:
    return (BareOperands){a->z, p.w.gate_up->folded, NULL};
  case OP_OUT_WGRAD:
    return (BareOperands){s->dx, a->o, NULL};
  case OP_OUT_DGRAD:
    return (BareOperands){s->dx, p.w.out->compute, NULL};
  case OP_QKV_WGRAD:
    return (BareOperands){s->dqkv, a->x, NULL};
  default:
    return (BareOperands){s->dqkv, p.w.qkv->folded, NULL};
  }
}

// ---- For comparing

OpOutput bench_op_output(const Llama *llama, Operation operation, int index) {
  const Sizes z = sizes_of(llama);
  const Place p = place_of(llama, index);
  const Acts *s = &llama->acts;
  switch (operation) {
  case OP_EMBED:
    return (OpOutput){s->layers[0].x, z.M * z.D, false};
  case OP_QKV:
    return (OpOutput){p.a.qkv, z.M * z.R, false};
  case OP_ATTENTION:
    return (OpOutput){p.a.o, z.M * z.Hd, false};
  case OP_OUT:
    return (OpOutput){p.a.x1, z.M * z.D, false};
  case OP_GATE_UP:
    return (OpOutput){p.a.y, z.M * z.F, false};
  case OP_DOWN:
    return (OpOutput){p.x_next, z.M * z.D, false};
  case OP_HEAD_LOSS:
    return (OpOutput){s->logits, z.head_rows * z.V, false};
  case OP_LM_HEAD_WGRAD:
    return (OpOutput){p.head.weight->grad_folded, z.V * z.D, true};
  case OP_DOWN_WGRAD:
    return (OpOutput){p.w.down->grad, z.D * z.F, true};
  case OP_DOWN_DGRAD:
    return (OpOutput){p.a.z, z.M * 2 * z.F, false};
  case OP_GATE_UP_WGRAD:
    return (OpOutput){p.w.gate_up->grad_folded, 2 * z.F * z.D, true};
  case OP_OUT_WGRAD:
    return (OpOutput){p.w.out->grad, z.D * z.Hd, true};
  case OP_OUT_DGRAD:
    return (OpOutput){s->da, z.M * z.Hd, false};
  case OP_ATTENTION_BACKWARD:
  case OP_ROPE_BACKWARD:
    return (OpOutput){s->dqkv, z.M * z.R, false};
  case OP_QKV_WGRAD:
    return (OpOutput){p.w.qkv->grad_folded, z.R * z.D, true};
  case OP_EMBED_BACKWARD:
    return (OpOutput){embedding(llama)->grad, z.V * z.D, true};
  default: // the other dgrads
    return (OpOutput){s->dx, z.M * z.D, false};
  }
}

OpParams bench_op_params(const ModelConfig *c, Operation operation, int layer) {
  const int embed = param_index(c, PARAM_EMBED, -1), head = param_index(c, PARAM_LM_HEAD, -1),
            qkv = param_index(c, PARAM_QKV, layer), out = param_index(c, PARAM_OUT, layer),
            gate_up = param_index(c, PARAM_GATE_UP, layer),
            down = param_index(c, PARAM_DOWN, layer);
  switch (operation) {
  case OP_EMBED:
    return (OpParams){{embed, -1}, -1};
  case OP_QKV:
  case OP_QKV_DGRAD:
    return (OpParams){{qkv, -1}, -1};
  case OP_OUT:
  case OP_OUT_DGRAD:
    return (OpParams){{out, -1}, -1};
  case OP_GATE_UP:
  case OP_GATE_UP_DGRAD:
    return (OpParams){{gate_up, -1}, -1};
  case OP_DOWN:
    return (OpParams){{down, -1}, -1};
  case OP_DOWN_DGRAD:
    return (OpParams){{gate_up, down}, -1};
  case OP_HEAD_LOSS:
  case OP_LM_HEAD_DGRAD:
    return (OpParams){{head, -1}, -1};
  case OP_LM_HEAD_WGRAD:
    return (OpParams){{-1, -1}, head};
  case OP_DOWN_WGRAD:
    return (OpParams){{-1, -1}, down};
  case OP_GATE_UP_WGRAD:
    return (OpParams){{-1, -1}, gate_up};
  case OP_OUT_WGRAD:
    return (OpParams){{-1, -1}, out};
  case OP_QKV_WGRAD:
    return (OpParams){{-1, -1}, qkv};
  case OP_EMBED_BACKWARD:
    return (OpParams){{-1, -1}, embed};
  default:
    return (OpParams){{-1, -1}, -1};
  }
}
