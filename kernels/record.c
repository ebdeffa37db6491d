#include "kernels/record.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

// Functions of ops.h read few of their arguments here.
#pragma GCC diagnostic ignored "-Wunused-parameter"

static const OpsConfig *config_of(Backend *be) {
  return &((Recorder *)be)->config;
}

static OperationCall *add(Backend *be, OperationCall call) {
  Recorder *r = (Recorder *)be;
  if (r->count == r->capacity) {
    r->capacity = 2 * r->capacity + 64;
    r->calls = xrealloc(r->calls, (size_t)r->capacity * sizeof *r->calls);
  }
  call.operation = be->operation;
  r->calls[r->count] = call;
  return &r->calls[r->count++];
}

// An operation that is a GEMM with an epilogue.
static OperationCall *add_gemm(Backend *be, GemmForm form, int64_t M, int64_t N, int64_t K,
                               Operand A, Operand B, void *out) {
  const bool fp8 = A.fp8 && B.fp8;
  OperationCall *call = add(be, (OperationCall){.class = CLASS_GEMM,
                                                .M = M,
                                                .N = N,
                                                .K = K,
                                                .form = form,
                                                .A = A.data,
                                                .B = B.data,
                                                .lda = A.row_stride,
                                                .fp8 = fp8,
                                                .out = out,
                                                .out_count = M * N,
                                                .statistics = true,
                                                .flops = 2 * (double)M * (double)N * (double)K});
  if (fp8) {
    call->A = form == GEMM_TN ? A.by_col : A.by_row;
    call->B = form == GEMM_NT ? B.by_row : B.by_col;
    if (form == GEMM_TN) call->lda = A.stride;
    if (form != GEMM_NT) call->ldb = B.stride;
    call->scaling_A = A.scaling;
    call->scaling_B = B.scaling;
    call->input = A;
    if (!A.data) call->made_before = A.by_row;
  }
  snprintf(call->shape, sizeof call->shape, "%lld x %lld x %lld%s", (long long)M, (long long)N,
           (long long)K, fp8 ? " FP8" : "");
  return call;
}

static OperationCall *add_memory(Backend *be, int64_t rows, int64_t cols, void *out, double bytes) {
  OperationCall *call = add(be, (OperationCall){.class = CLASS_MEMORY,
                                                .out = out,
                                                .out_count = rows * cols,
                                                .statistics = true,
                                                .bytes = bytes,
                                                .floor_bytes = bytes});
  snprintf(call->shape, sizeof call->shape, "%lld x %lld", (long long)rows, (long long)cols);
  return call;
}

// forward: 2 GEMMs over the scores, backward: 5.
static void add_attention(Backend *be, int64_t B, int64_t T, void *out, int64_t width,
                          double gemms) {
  const OpsConfig *c = config_of(be);
  OperationCall *call =
      add(be, (OperationCall){.class = CLASS_ATTENTION,
                              .out = out,
                              .out_count = B * T * width,
                              .flops = gemms * (double)(B * c->H * c->d) * (double)T * (double)T});
  snprintf(call->shape, sizeof call->shape, "%lld x %lld, %lld/%lld of %lld", (long long)B,
           (long long)T, (long long)c->H, (long long)c->KV, (long long)c->d);
}

static void record_embed(Backend *be, int64_t M, const int32_t *tokens, const act_t *E, Operand x,
                         RowStat *sumsq) {
  const int64_t D = config_of(be)->D;
  add_memory(be, M, D, x.data, 2 * (double)(M * D) * (double)be->act_bytes)->B = E;
}

static void record_qkv(Backend *be, int64_t M, int64_t T, int64_t first, Operand x, RowStat sumsq,
                       Operand W, act_t *qkv) {
  add_gemm(be, GEMM_NT, M, packed_width(config_of(be)), config_of(be)->D, x, W, qkv);
}

static void record_attention(Backend *be, int64_t B, int64_t T, const act_t *qkv, Operand o,
                             stat_t *lse) {
  add_attention(be, B, T, o.data, config_of(be)->H * config_of(be)->d, 2);
}

static void record_residual(Backend *be, int64_t M, int64_t K, Operand a, Operand W, const act_t *x,
                            RowStat x_sumsq, Operand out, RowStat *sumsq) {
  add_gemm(be, GEMM_NT, M, config_of(be)->D, K, a, W, out.data)->add = true;
}

static void record_gate_up(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *z,
                           Operand y) {
  const OpsConfig *c = config_of(be);
  // The bench compares y: each backend stores z in its own way.
  OperationCall *call = add_gemm(be, GEMM_NT, M, 2 * c->F, c->D, x, W, y.data);
  call->out_count = M * c->F;
  call->beside = z;
  call->copies = y.by_row;
}

// Besides the GEMM, the bytes from which the softmax's row scales follow: x and the targets' rows
// of W are read, and for the gradient u x is written, too. Each backend has a p of its own, so the
// bench compares the results that follow from it.
static void record_head_loss(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W,
                             const int32_t *targets, act_t *logits, double scale, HeadGradient *g) {
  const OpsConfig *c = config_of(be);
  OperationCall *call = add_gemm(be, GEMM_NT, M, c->V, c->D, x, W, logits);
  call->ldd = padded_vocab(c);
  if (g && g->u) call->beside = g->ux.data;
  call->floor_bytes = (g ? 4 : 2) * (double)(M * c->D) * (double)be->act_bytes;
}

static void record_head_dgrad(Backend *be, int64_t M, const HeadGradient *g, Operand W, Operand x,
                              RowStat sumsq, Operand dx) {
  add_gemm(be, GEMM_NN, M, config_of(be)->D, config_of(be)->V, g->p, W, dx.data);
}

static void record_norm_dgrad(Backend *be, int64_t M, int64_t N, Operand dz, Operand W, Operand x,
                              RowStat sumsq, RowStat s, const act_t *residual, Operand dx) {
  add_gemm(be, GEMM_NN, M, config_of(be)->D, N, dz, W, dx.data)->add = residual != NULL;
}

static void record_down_dgrad(Backend *be, int64_t M, Operand dx, Operand W, const act_t *z,
                              Operand x, RowStat sumsq, Operand dz, RowStat *s) {
  const OpsConfig *c = config_of(be);
  OperationCall *call = add_gemm(be, GEMM_NN, M, c->F, c->D, dx, W, dz.data);
  call->out_count = M * 2 * c->F;
  call->made_before = z;
  call->copies = dz.by_row;
}

static void record_dgrad(Backend *be, int64_t M, int64_t K, Operand dy, Operand W, act_t *da) {
  add_gemm(be, GEMM_NN, M, K, config_of(be)->D, dy, W, da)->statistics = false;
}

static void record_attention_backward(Backend *be, int64_t B, int64_t T, const act_t *qkv,
                                      const act_t *o, const stat_t *lse, const act_t *do_,
                                      act_t *dqkv) {
  add_attention(be, B, T, dqkv, packed_width(config_of(be)), 5);
}

// Another attention kernel could do this in its epilogue, so a floor does not count it.
static void record_rope_backward(Backend *be, int64_t M, int64_t T, act_t *dqkv, const act_t *qkv,
                                 Operand x, RowStat sumsq, Operand out, RowStat *s) {
  const int64_t R = packed_width(config_of(be));
  OperationCall *call = add_memory(be, M, R, dqkv, 3 * (double)(M * R) * (double)be->act_bytes);
  call->made_before = dqkv;
  call->copies = out.by_row;
  call->floor_bytes = 0;
}

static void record_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x,
                         grad_t *dW, bool accumulate) {
  OperationCall *call = add_gemm(be, GEMM_TN, N, K, M, dz, x, dW);
  call->add = accumulate;
  call->out_is_gradient = true;
  call->statistics = false;
}

static void record_head_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x,
                              stat_t *sum, bool added, grad_t *dW) {
  record_wgrad(be, M, N, K, dz, x, dW, added);
  if (!sum) return;
  Recorder *r = (Recorder *)be;
  OperationCall *call = &r->calls[r->count - 1];
  call->out = sum;
  call->out_is_gradient = false;
  call->out_is_sum = true;
  call->beside = dW;
}

static void record_embed_backward(Backend *be, int64_t M, const int32_t *tokens, const act_t *dx,
                                  grad_t *dE, bool accumulate) {
  const OpsConfig *c = config_of(be);
  OperationCall *call = add_memory(be, M, c->D, dE,
                                   (double)(M * c->D) * (double)be->act_bytes +
                                       (double)(c->V * c->D) * (double)be->grad_bytes);
  call->out_count = c->V * c->D;
  call->out_is_gradient = true;
  call->statistics = false;
}

static void record_repack(Backend *be, int64_t M, int64_t N, Operand x) {
  if (!x.fp8) return;
  const double bytes = (double)(M * N) * (double)(be->act_bytes + 2 * be->fp8_bytes);
  add_memory(be, M, N, x.by_row, bytes);
}

// Bytes of one element of an operand, in all its forms.
static double copies_bytes(const Backend *be, const Operand *x) {
  return (double)((x->data ? be->act_bytes : 0) + (x->by_row ? be->fp8_bytes : 0) +
                  (x->by_col ? be->fp8_bytes : 0));
}

// Of Newton-Schulz on the parts of a tensor; of symmetric products one half.
static double muon_flops(const ParamTensor *t) {
  double sum = 0;
  for (int i = 0; i < t->part_count; i++) {
    const double rows = (double)t->parts[i].rows, cols = (double)t->cols,
                 n = rows < cols ? rows : cols, all = rows * cols;
    sum += MUON_STEPS * (n * all + n * n * n + 2 * n * all);
  }
  return sum;
}

// A compute weight that is the master itself is read and written as the master.
static double compute_bytes(const Backend *be, const ParamTensor *t) {
  const bool own = (const void *)t->compute.data != (const void *)t->master;
  return own ? copies_bytes(be, &t->compute) : 0;
}

typedef enum UpdatePass { PASS_GRADS_FINISH, PASS_MUON, PASS_ADAMW } UpdatePass;

// Bytes of an element of a parameter that a pass of the update reads and writes. Muon's: those
// around Newton-Schulz' products.
static double update_bytes(const Backend *be, const ParamTensor *t, UpdatePass pass) {
  const int gradients = (t->grad != NULL) + (t->grad_folded != NULL);
  const double grad = (double)be->grad_bytes * gradients, master = (double)master_bytes_of(be, t),
               moment = (double)be->moment_bytes, direction = (double)be->act_bytes,
               copies = compute_bytes(be, t) + copies_bytes(be, &t->folded);
  const bool by_muon = t->part_count > 0;
  if (pass == PASS_MUON) return by_muon ? grad + 2 * moment + direction : 0;
  if (pass == PASS_ADAMW) return 2 * master + copies + (by_muon ? direction : grad + 4 * moment);
  if (t->norm < 0) return grad;
  // W, or its folded copy where that is no coarser than the gradient
  return grad + (t->folded.data && be->act_bytes == be->grad_bytes ? direction : master);
}

// A pass over the parameters that it concerns.
static OperationCall *add_update(Backend *be, const ParamTensor *list, int count, UpdatePass pass) {
  double bytes = 0, parameters = 0, flops = 0;
  for (int i = 0; i < count; i++) {
    const double n = (double)(list[i].rows * list[i].cols);
    if (pass != PASS_MUON || list[i].part_count > 0) parameters += n;
    bytes += n * update_bytes(be, &list[i], pass);
    if (pass == PASS_MUON) flops += muon_flops(&list[i]);
  }
  OperationCall *call = add_memory(be, 0, 0, NULL, bytes);
  call->statistics = false;
  call->flops = flops;
  snprintf(call->shape, sizeof call->shape, "%.4gM parameters", parameters * 1e-6);
  return call;
}

// The update could do a part of this pass, so a floor does not count it.
static void record_grads_finish(Backend *be, const ParamTensor *list, int count) {
  add_update(be, list, count, PASS_GRADS_FINISH)->floor_bytes = 0;
}

static void record_muon(Backend *be, const ParamTensor *list, int count) {
  add_update(be, list, count, PASS_MUON);
}

static void record_adamw(Backend *be, const ParamTensor *list, int count) {
  add_update(be, list, count, PASS_ADAMW);
}

static void ignore_hyper(Backend *be, const AdamW *hyper) {}

static void ignore(Backend *be) {}

static bool issue_always(Backend *be, ReplaySlot slot) {
  return true;
}

static void ignore_end(Backend *be, ReplaySlot slot) {}

static const Backend recorder_functions = {
    .name = "recorder",
    .silent = true,
    .services.set_hyper = ignore_hyper,
    .services.step_begin = ignore,
    .services.step_end = ignore,
    .services.replay_begin = issue_always,
    .services.replay_end = ignore_end,
#define OP(name, type, function, ...) .name = record_##function,
#include "kernels/ops.def"
#undef OP
};

Recorder *recorder_create(const OpsConfig *config, const Backend *like) {
  Recorder *r = xcalloc(1, sizeof *r);
  *r = (Recorder){.base = recorder_functions, .config = *config};
  r->base.act_bytes = like->act_bytes;
  r->base.fp8_bytes = like->fp8_bytes;
  r->base.stat_bytes = like->stat_bytes;
  r->base.grad_bytes = like->grad_bytes;
  r->base.master_bytes = like->master_bytes;
  r->base.moment_bytes = like->moment_bytes;
  r->base.computes_with_masters = like->computes_with_masters;
  r->base.rounds_gradients = like->rounds_gradients;
  return r;
}

void recorder_destroy(Recorder *r) {
  if (!r) return;
  free(r->calls);
  free(r);
}
