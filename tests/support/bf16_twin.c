#include "tests/support/bf16_twin.h"

#include <stdlib.h>

#include "base/memory.h"
#include "kernels/cpu/cpu.h"
#include "tests/support/bf16.h"

static void round_in_place(void *values, int64_t count) {
  real *x = values;
  for (int64_t i = 0; i < count; i++) x[i] = (real)rounded((float)x[i]);
}

// ---- Forward. Of the embedding nothing is new: it copies what is rounded.

static void twin_qkv(Backend *be, int64_t M, int64_t T, int64_t first, Operand x, RowStat sumsq,
                     Operand W, act_t *qkv) {
  cpu_qkv(be, M, T, first, x, sumsq, W, qkv);
  round_in_place(qkv, M * packed_width(&be->spec));
}

static void twin_attention(Backend *be, int64_t B, int64_t T, const act_t *qkv, Operand o,
                           stat_t *lse) {
  const Spec *c = &be->spec;
  cpu_attention(be, B, T, qkv, o, lse);
  round_in_place(o.data, B * T * c->H * c->d);
}

static void twin_residual(Backend *be, int64_t M, int64_t K, Operand a, Operand W, const act_t *x,
                          RowStat x_sumsq, Operand out, RowStat *sumsq) {
  const int64_t D = be->spec.D;
  cpu_residual(be, M, K, a, W, x, x_sumsq, out, sumsq);
  round_in_place(out.data, M * D);
  real *sums = sums_of(sumsq);
  const real *rounded_out = reals(out.data);
  for (int64_t m = 0; m < M; m++) {
    sums[m] = 0;
    for (int64_t k = m * D; k < (m + 1) * D; k++) sums[m] += rounded_out[k] * rounded_out[k];
  }
}

static void twin_gate_up(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *z,
                         Operand y) {
  const int64_t F = be->spec.F;
  cpu_gate_up(be, M, x, sumsq, W, z, y);
  round_in_place(z, M * 2 * F);
  for (int64_t m = 0; m < M; m++)
    for (int64_t p = 0; p < F; p++) {
      const real *pair = reals(z) + (m * F + p) * 2;
      reals(y.data)[m * F + feature_of_pair(p, F)] = swiglu(pair[0], pair[1]);
    }
  round_in_place(y.data, M * F);
}

static void twin_row_logits(Backend *be, Operand x, RowStat sumsq, Operand W, act_t *logits) {
  cpu_row_logits(be, x, sumsq, W, logits);
  round_in_place(logits, be->spec.V);
}

static void twin_head_loss(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W,
                           const int32_t *targets, act_t *logits, double scale, HeadGradient *g) {
  cpu_logits(be, M, x, sumsq, W, logits);
  round_in_place(logits, M * padded_vocab(&be->spec));
  cpu_loss(be, M, x, sumsq, targets, logits, scale, g ? &g->s : NULL);
  if (g) round_in_place(logits, M * padded_vocab(&be->spec));
}

// ---- Backward

// A dgrad goes through memory twice: the product with the residual, which is there, then all of it.
static void subtract_norm(Backend *be, int64_t M, Operand x_, RowStat sumsq, RowStat s_,
                          Operand dx_) {
  const Spec *c = &be->spec;
  const int64_t D = c->D;
  const real *x = reals(x_.data), *s = reals(s_.data);
  real *dx = reals(dx_.data);
  round_in_place(dx, M * D);
  for (int64_t m = 0; m < M; m++) {
    const real factor = row_rstd(c, sumsq, m) / (real)D * s[m];
    for (int64_t k = 0; k < D; k++) dx[m * D + k] -= factor * x[m * D + k];
  }
  round_in_place(dx, M * D);
}

static RowStat no_sums(int64_t M) {
  return (RowStat){.data = xcalloc((size_t)M, sizeof(real)), .stride = M, .parts = 1};
}

static void twin_norm_dgrad(Backend *be, int64_t M, int64_t N, Operand dz, Operand W, Operand x,
                            RowStat sumsq, RowStat s, const act_t *residual, Operand dx) {
  const RowStat none = no_sums(M);
  cpu_norm_dgrad(be, M, N, dz, W, x, sumsq, none, residual, dx);
  free(none.data);
  subtract_norm(be, M, x, sumsq, s, dx);
}

static void twin_head_dgrad(Backend *be, int64_t M, const HeadGradient *g, Operand W, Operand x,
                            RowStat sumsq, Operand dx) {
  HeadGradient product = *g;
  product.s = no_sums(M);
  cpu_head_dgrad(be, M, &product, W, x, sumsq, dx);
  free(product.s.data);
  subtract_norm(be, M, x, sumsq, g->s, dx);
}

static void twin_down_dgrad(Backend *be, int64_t M, Operand dx, Operand W, const act_t *z,
                            Operand x, RowStat sumsq, Operand dz, RowStat *s) {
  const int64_t F = be->spec.F;
  cpu_down_dgrad(be, M, dx, W, z, x, sumsq, dz, s);
  round_in_place(dz.data, M * 2 * F);
}

static void twin_dgrad(Backend *be, int64_t M, int64_t K, Operand dy, Operand W, act_t *da) {
  cpu_dgrad(be, M, K, dy, W, da);
  round_in_place(da, M * K);
}

static void twin_attention_backward(Backend *be, int64_t B, int64_t T, const act_t *qkv,
                                    const act_t *o, const stat_t *lse, const act_t *do_,
                                    act_t *dqkv) {
  cpu_attention_backward(be, B, T, qkv, o, lse, do_, dqkv);
  round_in_place(dqkv, B * T * packed_width(&be->spec));
}

static void twin_rope_backward(Backend *be, int64_t M, int64_t T, act_t *dqkv, const act_t *qkv,
                               Operand x, RowStat sumsq, Operand out, RowStat *s) {
  cpu_rope_backward(be, M, T, dqkv, qkv, x, sumsq, out, s);
  round_in_place(dqkv, M * packed_width(&be->spec));
}

static void twin_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x,
                       grad_t *dW, bool accumulate) {
  cpu_wgrad(be, M, N, K, dz, x, dW, accumulate);
  round_in_place(dW, N * K);
}

static void twin_head_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x,
                            stat_t *sum, bool add, grad_t *dW) {
  cpu_head_wgrad(be, M, N, K, dz, x, sum, add, dW);
  if (dW) round_in_place(dW, N * K);
}

static void twin_embed_backward(Backend *be, int64_t M, const int32_t *tokens, const act_t *dx,
                                grad_t *dE, bool accumulate) {
  const Spec *c = &be->spec;
  cpu_embed_backward(be, M, tokens, dx, dE, accumulate);
  round_in_place(dE, c->V * c->D);
}

// ---- The update

static void twin_grads_finish(Backend *be, const ParamTensor *list, int count) {
  cpu_grads_finish(be, list, count);
  for (int i = 0; i < count; i++)
    if (list[i].grad) round_in_place(list[i].grad, list[i].rows * list[i].cols);
}

static void round_copies(const ParamTensor *list, int count) {
  for (int i = 0; i < count; i++) {
    const int64_t n = list[i].rows * list[i].cols;
    if (list[i].compute.data) round_in_place(list[i].compute.data, n);
    if (list[i].folded.data) round_in_place(list[i].folded.data, n);
  }
}

static void twin_adamw(Backend *be, const ParamTensor *list, int count) {
  cpu_adamw(be, list, count);
  round_copies(list, count);
}

static void twin_refresh(Backend *be, const ParamTensor *list, int count) {
  cpu_refresh(be, list, count);
  round_copies(list, count);
}

void bf16_twin(Backend *cpu, bool grads_fp32) {
  cpu->qkv = twin_qkv;
  cpu->attention = twin_attention;
  cpu->out = cpu->down = twin_residual;
  cpu->gate_up = twin_gate_up;
  cpu->row_logits = twin_row_logits;
  cpu->validation_loss = cpu->head_loss = twin_head_loss;
  cpu->lm_head_dgrad = twin_head_dgrad;
  cpu->gate_up_dgrad = cpu->qkv_dgrad = twin_norm_dgrad;
  cpu->down_dgrad = twin_down_dgrad;
  cpu->out_dgrad = twin_dgrad;
  cpu->attention_backward = twin_attention_backward;
  cpu->rope_backward = twin_rope_backward;
  cpu->adamw = twin_adamw;
  cpu->services.refresh = twin_refresh;
  if (grads_fp32) return;
  cpu->spec.grads_fp32 = false;
  cpu->down_wgrad = cpu->gate_up_wgrad = cpu->out_wgrad = cpu->qkv_wgrad = twin_wgrad;
  cpu->lm_head_wgrad = twin_head_wgrad;
  cpu->embed_backward = twin_embed_backward;
  cpu->grads_finish = twin_grads_finish;
}
