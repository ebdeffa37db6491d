// The backward operations that are a product with something around it: a program each.
#include <assert.h>

#include "kernels/fused/state.h"

void fused_op_norm_dgrad(Backend *be, int64_t M, int64_t N, const act_t *dz, const act_t *W,
                         const act_t *x, const stat_t *sumsq, const stat_t *s, int64_t parts_s,
                         const act_t *residual, act_t *dx) {
  const Fused *f = fused_of(be);
  const OpsConfig *c = &f->twin.config;
  if (!fused_takes(f, residual ? PROGRAM_NORM_DGRAD_RESIDUAL : PROGRAM_NORM_DGRAD, c->D, N)) {
    unfused_op_norm_dgrad(be, M, N, dz, W, x, sumsq, s, parts_s, residual, dx);
    return;
  }
  ProgramCall call = {.M = M,
                      .N = c->D,
                      .K = N,
                      .A = dz,
                      .B = W,
                      .loads = {{x, M, c->D}, {residual, M, c->D}},
                      .stores = {{dx, M, c->D}},
                      .args = norm_args(f, sumsq)};
  call.args.s = (RowParts){(float *)(uintptr_t)s, c->max_tokens, (int32_t)parts_s};
  run_program(f, residual ? PROGRAM_NORM_DGRAD_RESIDUAL : PROGRAM_NORM_DGRAD, &call);
}

void fused_op_down_dgrad(Backend *be, int64_t M, const act_t *dx, const act_t *W, const act_t *z,
                         const stat_t *sumsq, act_t *dz, stat_t *s, act_t *y) {
  const Fused *f = fused_of(be);
  const OpsConfig *c = &f->twin.config;
  if (!fused_takes(f, PROGRAM_SWIGLU, 2 * c->F, c->D)) { // as the forward pass left z
    unfused_op_down_dgrad(be, M, dx, W, z, sumsq, dz, s, y);
    fused_clear_other_parts(f, M, be->parts.gate_up, s);
    return;
  }
  ProgramCall call = {.M = M,
                      .N = c->F,
                      .K = c->D,
                      .A = dx,
                      .B = W,
                      .loads = {{z, M, 2 * c->F}},
                      .stores = {{dz, M, 2 * c->F}, {y, M, c->F}},
                      .args = norm_args(f, sumsq)};
  call.args.sums = (RowParts){s, c->max_tokens, (int32_t)be->parts.gate_up};
  run_program(f, y ? PROGRAM_SWIGLU_BACKWARD_Y : PROGRAM_SWIGLU_BACKWARD, &call);
}

// ---- Weight gradients: of tensors with one_wgrad the program also does what the pass over the
// gradients (unfused/grads.cu) would.

static ProgramName wgrad_program(const ParamTensor *t) {
  return t->norm >= 0 ? PROGRAM_WGRAD_FOLDED : PROGRAM_WGRAD;
}

int64_t fused_finished_tiles(const Unfused *u, const ParamTensor *t) {
  const UnfusedOptions *o = &u->options;
  const int64_t tokens = o->batch * o->seq;
  const ProgramName name = wgrad_program(t);
  const bool takes = o->finish_gradients && o->train && !o->grads_fp32 && t->one_wgrad &&
                     tokens > 0 && t->rows % 8 == 0 && t->cols % 8 == 0 &&
                     (o->every_program || tile_pays_wgrad(name, t->rows, t->cols, tokens));
  return takes ? tile_parts(tile_choose(name, t->rows, t->cols, tokens), t->cols) : 0;
}

// The names of what runs the operations, which hang on the list.
void fused_op_refresh(Backend *be, const ParamTensor *list, int count) {
  const Unfused *u = unfused_of(be);
  const OpsConfig *c = &u->config;
  unfused_op_refresh(be, list, count);
  for (int i = 0; i < count; i++) {
    if (!u->finished[i].squares) continue;
    const int64_t rows = list[i].rows, cols = list[i].cols;
    if (list[i].norm < 0)
      be->kinds[cols == c->F ? OP_DOWN_WGRAD : OP_OUT_WGRAD] = KERNEL_FUSED;
    else
      be->kinds[rows == c->V       ? OP_LM_HEAD_WGRAD
                : rows == 2 * c->F ? OP_GATE_UP_WGRAD
                                   : OP_QKV_WGRAD] = KERNEL_FUSED;
  }
}

// The index in the parameters' list of a gradient that its product finishes; -1: none.
static int finished_index(const Unfused *u, const grad_t *dW) {
  for (int i = 0; i < u->table_count; i++)
    if (u->table_list[i].grad == dW && u->finished[i].squares) return i;
  return -1;
}

void fused_op_wgrad(Backend *be, int64_t M, int64_t N, int64_t K, const act_t *dz, const act_t *x,
                    grad_t *dW, bool accumulate) {
  const Fused *f = fused_of(be);
  const Unfused *u = &f->twin;
  const int i = finished_index(u, dW);
  if (i < 0) {
    unfused_op_wgrad(be, M, N, K, dz, x, dW, accumulate);
    return;
  }
  assert(!accumulate && M == u->options.batch * u->options.seq);
  const ParamTensor *t = &u->table_list[i];
  const ProgramCall call = {.M = N,
                            .N = K,
                            .K = M,
                            .A = dz,
                            .B = x,
                            .loads = {{t->folded, N, K}},
                            .stores = {{dW, N, K}},
                            .args = {.norm = t->norm >= 0 ? u->table_list[t->norm].master : NULL,
                                     .column_sums = u->finished[i].column_sums,
                                     .squares = u->finished[i].squares}};
  run_program(f, wgrad_program(t), &call);
}
