// The backward operations: a GEMM each, and a kernel for what is around it; and the list of the
// products of a training run, so that their algorithms are chosen before it starts.
#include "kernels/unfused/state.h"

static RopeShape rope_shape(const Unfused *u, int64_t T) {
  const OpsConfig *c = &u->config;
  return (RopeShape){
      .rotated = (c->H + c->KV) * c->d, .R = packed_width(c), .d = c->d, .T = T, .table = u->rope};
}

// out = dz W (+ residual)
static void product_nn(Unfused *u, int64_t M, int64_t N, int64_t K, const act_t *dz, const act_t *W,
                       const act_t *residual, act_t *out) {
  const GemmProblem p = {.M = M, .N = N, .K = K, .form = GEMM_NN, .add = residual != NULL};
  gemm_run(&u->gemm, p, dz, W, residual, out);
}

void unfused_op_norm_dgrad(Backend *be, int64_t M, int64_t N, const act_t *dz, const act_t *W,
                           const act_t *x, const stat_t *sumsq, const stat_t *s, int64_t parts_s,
                           const act_t *residual, act_t *dx) {
  Unfused *u = unfused_of(be);
  // Not in place: where its result lies on what it adds to, cuBLASLt rounds the product to bf16
  // before the addition.
  product_nn(u, M, u->config.D, N, dz, W, residual, u->product);
  const RowSums sums = {s, (int32_t)parts_s, u->config.max_tokens};
  unfused_norm_backward(M, row_scale(u, sumsq), x, sums, u->product, dx, u->gpu.stream);
}

void unfused_op_down_dgrad(Backend *be, int64_t M, const act_t *dx, const act_t *W, const act_t *z,
                           const stat_t *sumsq, act_t *dz, stat_t *s, act_t *y) {
  Unfused *u = unfused_of(be);
  product_nn(u, M, u->config.F, u->config.D, dx, W, NULL, u->product);
  unfused_swiglu_backward(M, u->config.F, row_scale(u, sumsq), z, u->product, dz, s, y,
                          u->gpu.stream);
}

void unfused_op_dgrad(Backend *be, int64_t M, int64_t K, const act_t *dy, const act_t *W,
                      act_t *da) {
  Unfused *u = unfused_of(be);
  product_nn(u, M, K, u->config.D, dy, W, NULL, da);
}

void unfused_op_rope_backward(Backend *be, int64_t M, int64_t T, act_t *dqkv, const act_t *qkv,
                              const stat_t *sumsq, stat_t *s) {
  const Unfused *u = unfused_of(be);
  unfused_rope_backward(M, rope_shape(u, T), row_scale(u, sumsq), qkv, dqkv, s, u->gpu.stream);
}

void unfused_op_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, const act_t *dz, const act_t *x,
                      grad_t *dW, bool accumulate) {
  Unfused *u = unfused_of(be);
  const GemmProblem p = {.M = N,
                         .N = K,
                         .K = M,
                         .form = GEMM_TN,
                         .out_fp32 = u->options.grads_fp32,
                         .add = accumulate};
  gemm_run(&u->gemm, p, dz, x, dW, dW);
}

void unfused_op_embed_backward(Backend *be, int64_t M, const int32_t *tokens, const act_t *dx,
                               grad_t *dE, bool accumulate) {
  const Unfused *u = unfused_of(be);
  unfused_embed_backward(M, u->config.V, u->config.D, tokens, dx, dE, u->options.grads_fp32,
                         accumulate, u->embed_scratch, u->gpu.stream);
}

typedef struct RunProduct {
  bool elsewhere, backward, of_head;
  GemmProblem problem;
} RunProduct;

int unfused_prepare_gemms(Unfused *u, Error *err) {
  const OpsConfig *c = &u->config;
  const int64_t M = u->options.batch * u->options.seq, D = c->D, F = c->F, R = packed_width(c),
                Hd = c->H * c->d, V = c->V, head = u->options.loss_tokens;
  const bool fp32 = u->options.grads_fp32;
  const Elsewhere *e = &u->options.elsewhere;
  const RunProduct all[] = {
      {e->qkv, false, false, {.M = M, .N = R, .K = D, .form = GEMM_NT}},
      {e->out, false, false, {.M = M, .N = D, .K = Hd, .form = GEMM_NT, .add = true}},
      {e->mlp, false, false, {.M = M, .N = 2 * F, .K = D, .form = GEMM_NT}},
      {e->down, false, false, {.M = M, .N = D, .K = F, .form = GEMM_NT, .add = true}},
      {false, false, true, {.M = head, .N = V, .K = D, .form = GEMM_NT}},
      {e->head_dgrad, true, true, {.M = head, .N = D, .K = V, .form = GEMM_NN}},
      {e->mlp, true, false, {.M = M, .N = F, .K = D, .form = GEMM_NN}},
      {e->gate_up_dgrad, true, false, {.M = M, .N = D, .K = 2 * F, .form = GEMM_NN, .add = true}},
      {false, true, false, {.M = M, .N = Hd, .K = D, .form = GEMM_NN}},
      {e->qkv_dgrad, true, false, {.M = M, .N = D, .K = R, .form = GEMM_NN, .add = true}},
      {false, true, true, {.M = V, .N = D, .K = head, .form = GEMM_TN, .out_fp32 = fp32}},
      {false, true, false, {.M = D, .N = F, .K = M, .form = GEMM_TN, .out_fp32 = fp32}},
      {false, true, false, {.M = 2 * F, .N = D, .K = M, .form = GEMM_TN, .out_fp32 = fp32}},
      {false, true, false, {.M = D, .N = Hd, .K = M, .form = GEMM_TN, .out_fp32 = fp32}},
      {false, true, false, {.M = R, .N = D, .K = M, .form = GEMM_TN, .out_fp32 = fp32}},
  };
  enum { ALL = sizeof all / sizeof *all };
  GemmProblem list[2 * ALL];
  int count = 0;
  for (int i = 0; i < ALL; i++) {
    if (all[i].elsewhere || (all[i].backward && !u->options.train)) continue;
    list[count++] = all[i].problem;
    // Weight gradients are added to where there are several micro-batches, and lm_head's over the
    // chunks of the loss.
    if (all[i].problem.form == GEMM_TN && (fp32 || (all[i].of_head && head < M))) {
      list[count] = all[i].problem;
      list[count++].add = true;
    }
  }
  for (int i = 0; i < count; i++) list[i].alignment = 16;
  return M > 0 ? gemm_prepare(&u->gemm, list, count, err) : 0;
}
