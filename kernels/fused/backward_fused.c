// The backward operations that are a product with something around it: a program each.
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
  call.args.in[1] = (RowParts){(float *)(uintptr_t)s, c->max_tokens, (int32_t)parts_s};
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
                      .stores = {{dz, M, 2 * c->F}},
                      .args = norm_args(f, sumsq)};
  call.args.out[0] = (RowParts){s, c->max_tokens, (int32_t)be->parts.gate_up};
  run_program(f, PROGRAM_SWIGLU_BACKWARD, &call);
}
