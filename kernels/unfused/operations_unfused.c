// The operations: a GEMM each, and a kernel for what is around it.
#include "kernels/unfused/unfused.h"

static RopeShape rope_shape(const Cuda *c, int64_t T, int64_t first) {
  const OpsConfig *o = &c->config;
  return (RopeShape){.rotated = (o->H + o->KV) * o->d,
                     .R = packed_width(o),
                     .d = o->d,
                     .T = T,
                     .first = first,
                     .table = c->rope};
}

void unfused_qkv(Backend *be, int64_t M, int64_t T, int64_t first, Operand x, RowStat sumsq,
                 Operand W, act_t *qkv) {
  Cuda *c = cuda_of(be);
  cuda_gemm(c, GEMM_NT, M, packed_width(&c->config), c->config.D, x.data, W.data, NULL, qkv);
  launch_rope(M, rope_shape(c, T, first), row_scale(c, sumsq), qkv, c->gpu.stream);
}

void unfused_qkv_token(Backend *be, const int32_t *position, Operand x, RowStat sumsq, Operand W,
                       act_t *cache) {
  Cuda *c = cuda_of(be);
  RopeShape shape = rope_shape(c, 1, 0);
  shape.position = position;
  launch_gemv(shape.R, c->config.D, x.data, W.data, NULL, position, cache, c->gpu.stream);
  launch_rope(1, shape, row_scale(c, sumsq), cache, c->gpu.stream);
}

void unfused_residual(Backend *be, int64_t M, int64_t K, Operand a, Operand W, const act_t *x,
                      RowStat x_sumsq, Operand out, RowStat *sumsq) {
  Cuda *c = cuda_of(be);
  (void)x_sumsq;
  cuda_gemm(c, GEMM_NT, M, c->config.D, K, a.data, W.data, x, out.data);
  launch_row_sumsq(M, c->config.D, out.data, sumsq, c->gpu.stream);
}

// z stays the plain product: down_dgrad, its only reader, applies r as it reads.
void unfused_gate_up(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *z,
                     Operand y) {
  Cuda *c = cuda_of(be);
  cuda_gemm(c, GEMM_NT, M, 2 * c->config.F, c->config.D, x.data, W.data, NULL, z);
  launch_swiglu(M, c->config.F, row_scale(c, sumsq), z, y.data, c->gpu.stream);
}

void unfused_lm_head(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *logits) {
  Cuda *c = cuda_of(be);
  cuda_gemm(c, GEMM_NT, M, c->config.V, c->config.D, x.data, W.data, NULL, logits);
  launch_scale_rows(M, c->config.V, row_scale(c, sumsq), logits, c->gpu.stream);
}

// The logits stay the plain product; cross entropy applies r as it reads them.
void unfused_head_loss(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W,
                       const int32_t *targets, act_t *logits, double scale, HeadGradient *g) {
  Cuda *c = cuda_of(be);
  cuda_gemm(c, GEMM_NT, M, c->config.V, c->config.D, x.data, W.data, NULL, logits);
  if (g) g->s.parts = 1;
  const CrossEntropy args = {.M = M,
                             .V = c->config.V,
                             .logits = logits,
                             .targets = targets,
                             .r = row_scale(c, sumsq),
                             .clusters = c->gpu.major >= 9,
                             .multiprocessors = c->gpu.sm_count,
                             .grad_scale = (float)scale,
                             .row_loss = c->row_loss,
                             .s = g ? (float *)g->s.data : NULL};
  launch_cross_entropy(&args, c->gpu.stream);
  launch_add_loss(M, c->row_loss, scale, c->state, c->gpu.stream);
}

void unfused_norm_dgrad(Backend *be, int64_t M, int64_t N, Operand dz, Operand W, Operand x,
                        RowStat sumsq, RowStat s, const act_t *residual, Operand dx) {
  Cuda *c = cuda_of(be);
  act_t *product = unfused_of(be)->product;
  // Not in place: where its result lies on what it adds to, cuBLASLt rounds the product to bf16
  // before the addition.
  cuda_gemm(c, GEMM_NN, M, c->config.D, N, dz.data, W.data, residual, product);
  launch_norm_backward(M, row_scale(c, sumsq), x.data, s, product, dx.data, c->gpu.stream);
}

void unfused_head_dgrad(Backend *be, int64_t M, const HeadGradient *g, Operand W, Operand x,
                        RowStat sumsq, Operand dx) {
  unfused_norm_dgrad(be, M, cuda_of(be)->config.V, g->p, W, x, sumsq, g->s, NULL, dx);
}

void unfused_down_dgrad(Backend *be, int64_t M, Operand dx, Operand W, const act_t *z, Operand x,
                        RowStat sumsq, Operand dz, RowStat *s) {
  (void)x;
  Cuda *c = cuda_of(be);
  act_t *product = unfused_of(be)->product;
  cuda_gemm(c, GEMM_NN, M, c->config.F, c->config.D, dx.data, W.data, NULL, product);
  launch_swiglu_backward(M, c->config.F, row_scale(c, sumsq), z, product, dz.data, s,
                         c->gpu.stream);
}

void unfused_rope_backward(Backend *be, int64_t M, int64_t T, act_t *dqkv, const act_t *qkv,
                           Operand x, RowStat sumsq, Operand out, RowStat *s) {
  (void)x, (void)out;
  const Cuda *c = cuda_of(be);
  launch_rope_backward(M, rope_shape(c, T, 0), row_scale(c, sumsq), qkv, dqkv, s, c->gpu.stream);
}
