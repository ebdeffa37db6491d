// The forward operations: a GEMM each, and a kernel for what is around it.
#include "kernels/unfused/state.h"

void unfused_op_embed(Backend *be, int64_t M, const int32_t *tokens, const act_t *E, act_t *x,
                      stat_t *sumsq) {
  const Unfused *u = unfused_of(be);
  unfused_embed(M, u->config.D, tokens, E, x, sumsq, u->gpu.stream);
}

// out = a W^T (+ x)
static void product_nt(Unfused *u, int64_t M, int64_t N, int64_t K, const act_t *a, const act_t *W,
                       const act_t *x, act_t *out) {
  const GemmProblem p = {.M = M, .N = N, .K = K, .form = GEMM_NT, .add = x != NULL};
  gemm_run(&u->gemm, p, a, W, x, out);
}

void unfused_op_qkv(Backend *be, int64_t M, int64_t T, int64_t first, const act_t *x,
                    const stat_t *sumsq, const act_t *W, act_t *qkv) {
  Unfused *u = unfused_of(be);
  const OpsConfig *c = &u->config;
  const RopeShape shape = {.rotated = (c->H + c->KV) * c->d,
                           .R = packed_width(c),
                           .d = c->d,
                           .T = T,
                           .first = first,
                           .table = u->rope};
  product_nt(u, M, shape.R, c->D, x, W, NULL, qkv);
  unfused_rope(M, shape, row_scale(u, sumsq), qkv, u->gpu.stream);
}

void unfused_op_attention_decode(Backend *be, int64_t T, int64_t rows, const act_t *qkv, act_t *o) {
  const Unfused *u = unfused_of(be);
  const OpsConfig *c = &u->config;
  unfused_attention_decode(T, rows, c->H, c->KV, c->d, qkv, o, u->gpu.stream);
}

void unfused_op_residual(Backend *be, int64_t M, int64_t K, const act_t *a, const act_t *W,
                         const act_t *x, act_t *out, stat_t *sumsq) {
  Unfused *u = unfused_of(be);
  product_nt(u, M, u->config.D, K, a, W, x, out);
  unfused_row_sumsq(M, u->config.D, out, sumsq, u->gpu.stream);
}

// z stays the plain product: down_dgrad, its only reader, applies r as it reads.
void unfused_op_gate_up(Backend *be, int64_t M, const act_t *x, const stat_t *sumsq, const act_t *W,
                        act_t *z, act_t *y) {
  Unfused *u = unfused_of(be);
  const int64_t F = u->config.F;
  product_nt(u, M, 2 * F, u->config.D, x, W, NULL, z);
  unfused_swiglu(M, F, row_scale(u, sumsq), z, y, u->gpu.stream);
}

void unfused_op_lm_head(Backend *be, int64_t M, const act_t *x, const stat_t *sumsq, const act_t *W,
                        act_t *logits) {
  Unfused *u = unfused_of(be);
  const int64_t V = u->config.V;
  product_nt(u, M, V, u->config.D, x, W, NULL, logits);
  unfused_scale_rows(M, V, row_scale(u, sumsq), logits, u->gpu.stream);
}

// The logits stay the plain product; cross entropy applies r as it reads them.
void unfused_op_head_loss(Backend *be, int64_t M, const act_t *x, const stat_t *sumsq,
                          const act_t *W, const int32_t *targets, act_t *logits, double scale,
                          stat_t *s) {
  Unfused *u = unfused_of(be);
  product_nt(u, M, u->config.V, u->config.D, x, W, NULL, logits);
  const CrossEntropy args = {.M = M,
                             .V = u->config.V,
                             .logits = logits,
                             .targets = targets,
                             .r = row_scale(u, sumsq),
                             .clusters = u->gpu.major >= 9,
                             .multiprocessors = u->gpu.sm_count,
                             .grad_scale = (float)scale,
                             .row_loss = u->row_loss,
                             .s = s};
  unfused_cross_entropy(&args, u->gpu.stream);
  unfused_add_loss(M, u->row_loss, scale, u->state, u->gpu.stream);
}
