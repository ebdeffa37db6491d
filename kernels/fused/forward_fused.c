// The forward operations: a program each.
#include "kernels/cuda/check.h"
#include "kernels/fused/programs/rope.h"
#include "kernels/fused/state.h"

void fused_clear_other_parts(const Fused *f, int64_t M, int64_t parts, stat_t *statistic) {
  const size_t stride = (size_t)f->twin.config.max_tokens * sizeof(float);
  if (parts > 1)
    CUDA_CHECK(cudaMemset2DAsync((char *)statistic + stride, stride, 0, (size_t)M * sizeof(float),
                                 (size_t)parts - 1, f->twin.gpu.stream));
}

void fused_op_embed(Backend *be, int64_t M, const int32_t *tokens, const act_t *E, act_t *x,
                    stat_t *sumsq) {
  unfused_op_embed(be, M, tokens, E, x, sumsq);
  fused_clear_other_parts(fused_of(be), M, be->parts.sumsq, sumsq);
}

// Row m's position is first + m % T. A step takes 64 consecutive rows of the table: of a single
// sequence, and of sequences of whole steps, those are there; for others they are laid out first.
static Matrix rope_angles(const Fused *f, int64_t M, int64_t T, int64_t first, ProgramArgs *args) {
  const OpsConfig *c = &f->twin.config;
  const int64_t cols = rope_table_cols(c->d);
  if (M <= T || T % 64 == 0) {
    args->params[ROPE_FIRST].i = (int32_t)first;
    args->params[ROPE_PERIOD].i = (int32_t)T;
    return (Matrix){f->rope, c->max_positions, cols};
  }
  args->params[ROPE_FIRST].i = 0;
  args->params[ROPE_PERIOD].i = (int32_t)T;
  fused_rope_table(T + 63, c->d, T, f->twin.rope + first * c->d, f->rope_periodic,
                   f->twin.gpu.stream);
  return (Matrix){f->rope_periodic, T + 63, cols};
}

void fused_op_qkv(Backend *be, int64_t M, int64_t T, int64_t first, const act_t *x,
                  const stat_t *sumsq, const act_t *W, act_t *qkv) {
  const Fused *f = fused_of(be);
  const OpsConfig *c = &f->twin.config;
  const int64_t R = packed_width(c);
  if (!fused_takes(f, PROGRAM_ROPE, R, c->D)) {
    unfused_op_qkv(be, M, T, first, x, sumsq, W, qkv);
    return;
  }
  ProgramCall call = {.M = M,
                      .N = R,
                      .K = c->D,
                      .A = x,
                      .B = W,
                      .stores = {{qkv, M, R}},
                      .args = norm_args(f, sumsq)};
  call.args.params[ROPE_HEAD_DIM].i = (int32_t)c->d;
  call.args.params[ROPE_ROTATED].i = (int32_t)((c->H + c->KV) * c->d);
  call.loads[0] = rope_angles(f, M, T, first, &call.args);
  run_program(f, PROGRAM_ROPE, &call);
}

void fused_op_residual(Backend *be, int64_t M, int64_t K, const act_t *a, const act_t *W,
                       const act_t *x, act_t *out, stat_t *sumsq) {
  const Fused *f = fused_of(be);
  const OpsConfig *c = &f->twin.config;
  if (!fused_takes(f, PROGRAM_RESIDUAL, c->D, K)) {
    unfused_op_residual(be, M, K, a, W, x, out, sumsq);
    fused_clear_other_parts(f, M, be->parts.sumsq, sumsq);
    return;
  }
  const ProgramCall call = {
      .M = M,
      .N = c->D,
      .K = K,
      .A = a,
      .B = W,
      .loads = {{x, M, c->D}},
      .stores = {{out, M, c->D}},
      .args.out = {{sumsq, c->max_tokens, (int32_t)be->parts.sumsq}},
  };
  run_program(f, PROGRAM_RESIDUAL, &call);
}

void fused_op_gate_up(Backend *be, int64_t M, const act_t *x, const stat_t *sumsq, const act_t *W,
                      act_t *z, act_t *y) {
  const Fused *f = fused_of(be);
  const OpsConfig *c = &f->twin.config;
  if (!fused_takes(f, PROGRAM_SWIGLU, 2 * c->F, c->D)) {
    unfused_op_gate_up(be, M, x, sumsq, W, z, y);
    return;
  }
  const ProgramCall call = {.M = M,
                            .N = 2 * c->F,
                            .K = c->D,
                            .A = x,
                            .B = W,
                            .stores = {{z, M, 2 * c->F}, {y, M, c->F}},
                            .args = norm_args(f, sumsq)};
  run_program(f, PROGRAM_SWIGLU, &call);
}

static ProgramCall logits_call(const Fused *f, int64_t M, const act_t *x, const stat_t *sumsq,
                               const act_t *W, act_t *logits) {
  const OpsConfig *c = &f->twin.config;
  return (ProgramCall){.M = M,
                       .N = c->V,
                       .K = c->D,
                       .A = x,
                       .B = W,
                       .stores = {{logits, M, c->V}},
                       .args = norm_args(f, sumsq)};
}

void fused_op_lm_head(Backend *be, int64_t M, const act_t *x, const stat_t *sumsq, const act_t *W,
                      act_t *logits) {
  const Fused *f = fused_of(be);
  if (!f->head) {
    unfused_op_lm_head(be, M, x, sumsq, W, logits);
    return;
  }
  const ProgramCall call = logits_call(f, M, x, sumsq, W, logits);
  fused_launch(&f->kernels.programs[PROGRAM_LOGITS], f->head_tile, &call, f->twin.gpu.stream);
}

// For a loss alone the program saves the pass over the logits. With a gradient there is a pass
// anyway, and it finds the maxima and sums on its way: the twin is as fast with much of K, and
// faster with little.
void fused_op_head_loss(Backend *be, int64_t M, const act_t *x, const stat_t *sumsq, const act_t *W,
                        const int32_t *targets, act_t *logits, double scale, stat_t *s) {
  Fused *f = fused_of(be);
  const Unfused *u = &f->twin;
  if (!(s ? f->head_gradient : f->head) || M > f->softmax_stride) {
    unfused_op_head_loss(be, M, x, sumsq, W, targets, logits, scale, s);
    return;
  }
  ProgramCall call = logits_call(f, M, x, sumsq, W, logits);
  call.args.out[0] =
      (RowParts){(float *)f->softmax, f->softmax_stride, tile_parts(f->head_tile, u->config.V)};
  fused_launch(&f->kernels.programs[PROGRAM_LOGITS], f->head_tile, &call, u->gpu.stream);
  const SoftmaxParts parts = {f->softmax, tile_parts(f->head_tile, u->config.V), f->softmax_stride};
  fused_cross_entropy(M, u->config.V, parts, row_scale(u, sumsq), (float)scale, logits, targets,
                      u->row_loss, s, u->gpu.stream);
  unfused_add_loss(M, u->row_loss, scale, u->state, u->gpu.stream);
}
