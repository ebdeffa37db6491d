// The operations: a program each. Those that serve several GEMMs of the model leave some of them to
// the unfused kernels, as Backend.kinds says.
#include "kernels/fused/fused.h"
#include "kernels/fused/rope.h"

static bool is_fused(const Backend *be, Operation operation) {
  return be->kinds[operation] == KERNEL_FUSED;
}

// The GEMM A B^T or A B, as the program has it. sumsq: of the rows of A, where the program needs r.
static ProgramCall call_of(const Fused *f, int64_t M, int64_t N, int64_t K, const act_t *A,
                           const act_t *B, RowStat sumsq) {
  const OpsConfig *c = &f->unfused.cuda.config;
  return (ProgramCall){.M = M,
                       .N = N,
                       .K = K,
                       .A = A,
                       .B = B,
                       .args = {.in = {sumsq},
                                .inverse_D = (float)(1 / (double)c->D),
                                .eps = (float)c->rms_norm_eps}};
}

// sums: the row statistic that the program leaves, a part a tile of columns; NULL: none.
static void run(const Fused *f, ProgramName name, ProgramCall *call, RowStat *sums) {
  const TileShape tile = tile_choose(name, call->M, call->N, call->K);
  if (sums) {
    sums->parts = tile_parts(tile, call->N);
    call->args.out[0] = *sums;
  }
  fused_launch(&f->kernels.programs[name], tile, call, f->unfused.cuda.gpu.stream);
}

// ---- Forward

// Row m's position is first + m % T. A step takes 64 consecutive rows of the table: of a single
// sequence, and of sequences of whole steps, those are there; for others they are laid out first.
static Matrix rope_angles(const Fused *f, int64_t M, int64_t T, int64_t first, ProgramArgs *args) {
  const Cuda *u = &f->unfused.cuda;
  const int64_t d = u->config.d, cols = rope_table_cols(d);
  args->params[ROPE_PERIOD].i = (int32_t)T;
  if (M <= T || T % 64 == 0) {
    args->params[ROPE_FIRST].i = (int32_t)first;
    return (Matrix){f->rope, u->config.max_positions, cols};
  }
  launch_rope_table(T + 63, d, T, u->rope + first * d, f->rope_periodic, u->gpu.stream);
  return (Matrix){f->rope_periodic, T + 63, cols};
}

void fused_qkv(Backend *be, int64_t M, int64_t T, int64_t first, Operand x, RowStat sumsq,
               Operand W, act_t *qkv) {
  const Fused *f = fused_of(be);
  const OpsConfig *c = &f->unfused.cuda.config;
  const int64_t R = packed_width(c);
  if (cuda_one_row(&f->unfused.cuda, M)) {
    unfused_qkv(be, M, T, first, x, sumsq, W, qkv);
    return;
  }
  ProgramCall call = call_of(f, M, R, c->D, x.data, W.data, sumsq);
  call.stores[0] = (Matrix){qkv, M, R};
  call.args.params[ROPE_HEAD_DIM].i = (int32_t)c->d;
  call.args.params[ROPE_ROTATED].i = (int32_t)((c->H + c->KV) * c->d);
  call.loads[0] = rope_angles(f, M, T, first, &call.args);
  run(f, PROGRAM_ROPE, &call, NULL);
}

void fused_residual(Backend *be, int64_t M, int64_t K, Operand a, Operand W, const act_t *x,
                    RowStat x_sumsq, Operand out, RowStat *sumsq) {
  const Fused *f = fused_of(be);
  const OpsConfig *c = &f->unfused.cuda.config;
  if (!is_fused(be, K == c->F ? OP_DOWN : OP_OUT) || cuda_one_row(&f->unfused.cuda, M)) {
    unfused_residual(be, M, K, a, W, x, x_sumsq, out, sumsq);
    return;
  }
  ProgramCall call = call_of(f, M, c->D, K, a.data, W.data, (RowStat){0});
  call.loads[0] = (Matrix){x, M, c->D};
  call.stores[0] = (Matrix){out.data, M, c->D};
  run(f, PROGRAM_RESIDUAL, &call, sumsq);
}

void fused_gate_up(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *z,
                   Operand y) {
  const Fused *f = fused_of(be);
  const OpsConfig *c = &f->unfused.cuda.config;
  if (cuda_one_row(&f->unfused.cuda, M)) {
    unfused_gate_up(be, M, x, sumsq, W, z, y);
    return;
  }
  ProgramCall call = call_of(f, M, 2 * c->F, c->D, x.data, W.data, sumsq);
  call.stores[0] = (Matrix){z, M, 2 * c->F};
  call.stores[1] = (Matrix){y.data, M, c->F};
  run(f, PROGRAM_SWIGLU, &call, NULL);
}

void fused_lm_head(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *logits) {
  const Fused *f = fused_of(be);
  const OpsConfig *c = &f->unfused.cuda.config;
  if (cuda_one_row(&f->unfused.cuda, M)) {
    unfused_lm_head(be, M, x, sumsq, W, logits);
    return;
  }
  ProgramCall call = call_of(f, M, c->V, c->D, x.data, W.data, sumsq);
  call.stores[0] = (Matrix){logits, M, padded_vocab(c)};
  run(f, PROGRAM_LOGITS, &call, NULL);
}

// The softmax before its normaliser, into P, and its sums of rows into the backend's own.
static void run_probabilities(const Fused *f, int64_t M, Operand x, RowStat sumsq, Operand W,
                              const int32_t *targets, act_t *P) {
  const Cuda *u = &f->unfused.cuda;
  const OpsConfig *c = &u->config;
  ProgramCall call = call_of(f, M, c->V, c->D, x.data, W.data, sumsq);
  call.stores[0] = (Matrix){P, M, padded_vocab(c)};
  call.args.in[1] = f->head.aim;
  call.args.out[0] = f->head.sum;
  call.args.out[1] = f->head.entropy;
  launch_head_aim(M, row_scale(u, sumsq), x, W, u->scalings, targets, f->head.aim, u->gpu.stream);
  fused_launch(&f->kernels.programs[PROGRAM_PROBABILITIES], f->head.tile, &call, u->gpu.stream);
}

void fused_head_loss(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W,
                     const int32_t *targets, act_t *logits, double scale, HeadGradient *g) {
  const Fused *f = fused_of(be);
  const Cuda *c = &f->unfused.cuda;
  const bool folds = g ? is_fused(be, OP_HEAD_LOSS) && g->u
                       : is_fused(be, OP_VALIDATION_LOSS) && M <= f->head.sum.stride;
  if (!folds) {
    unfused_head_loss(be, M, x, sumsq, W, targets, logits, scale, g);
    return;
  }
  run_probabilities(f, M, x, sumsq, W, targets, logits);
  HeadFinish finish = {.M = M,
                       .r = row_scale(c, sumsq),
                       .sum = f->head.sum,
                       .entropy = f->head.entropy,
                       .scale = (float)scale,
                       .row_loss = c->row_loss};
  if (g) {
    g->s.parts = 1;
    finish.gradient = *g;
    finish.targets = targets;
    finish.x = x.data;
  }
  launch_head_finish(&finish, c->gpu.stream);
  launch_add_loss(M, c->row_loss, scale, c->state, c->gpu.stream);
}

// ---- Backward

// The width tells which of the model's GEMMs it is.
static Operation norm_dgrad_operation(const OpsConfig *c, int64_t N) {
  return N == packed_width(c) ? OP_QKV_DGRAD : OP_GATE_UP_DGRAD;
}

void fused_norm_dgrad(Backend *be, int64_t M, int64_t N, Operand dz, Operand W, Operand x,
                      RowStat sumsq, RowStat s, const act_t *residual, Operand dx) {
  const Fused *f = fused_of(be);
  const OpsConfig *c = &f->unfused.cuda.config;
  if (!is_fused(be, norm_dgrad_operation(c, N))) {
    unfused_norm_dgrad(be, M, N, dz, W, x, sumsq, s, residual, dx);
    return;
  }
  ProgramCall call = call_of(f, M, c->D, N, dz.data, W.data, sumsq);
  call.loads[0] = (Matrix){x.data, M, c->D};
  call.loads[1] = (Matrix){residual, M, c->D};
  call.stores[0] = (Matrix){dx.data, M, c->D};
  call.args.in[1] = s;
  run(f, PROGRAM_NORM_DGRAD_RESIDUAL, &call, NULL);
}

void fused_head_dgrad(Backend *be, int64_t M, const HeadGradient *g, Operand W, Operand x,
                      RowStat sumsq, Operand dx) {
  const Fused *f = fused_of(be);
  const OpsConfig *c = &f->unfused.cuda.config;
  if (!is_fused(be, OP_LM_HEAD_DGRAD)) {
    unfused_head_dgrad(be, M, g, W, x, sumsq, dx);
    return;
  }
  ProgramCall call = call_of(f, M, c->D, c->V, g->p.data, W.data, sumsq);
  call.stride_a = g->p.row_stride;
  call.args.row_scale = (const float *)g->u;
  call.loads[0] = (Matrix){x.data, M, c->D};
  call.stores[0] = (Matrix){dx.data, M, c->D};
  call.args.in[1] = g->s;
  run(f, PROGRAM_NORM_DGRAD, &call, NULL);
}

void fused_down_dgrad(Backend *be, int64_t M, Operand dx, Operand W, const act_t *z, Operand x,
                      RowStat sumsq, Operand dz, RowStat *s) {
  (void)x;
  const Fused *f = fused_of(be);
  const OpsConfig *c = &f->unfused.cuda.config;
  ProgramCall call = call_of(f, M, c->F, c->D, dx.data, W.data, sumsq);
  call.loads[0] = (Matrix){z, M, 2 * c->F};
  call.stores[0] = (Matrix){dz.data, M, 2 * c->F};
  run(f, PROGRAM_SWIGLU_BACKWARD, &call, s);
}
