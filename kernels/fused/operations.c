// The operations: a program each, in bf16, or in FP8 where both operands have copies.
#include "kernels/fused/fused.h"

// The largest K of FP8 sums without promotion: at 4096 sums of one sign are 6 % too small, those of
// random signs 0.02 %.
enum { LONG_K = 4096 };

static bool in_fp8(Operand A, Operand W) {
  return A.by_row && W.by_row;
}

// The GEMM A W^T, or A W in a dgrad, as the program has it. norm: the operand whose RMSNorm the
// program applies or undoes, with its sums of squares.
static ProgramCall call_of(const Fused *f, int64_t M, int64_t N, int64_t K, Operand A, Operand W,
                           bool dgrad, Operand norm, RowStat sumsq) {
  const Cuda *u = &f->unfused.cuda;
  ProgramCall call = {.M = M,
                      .N = N,
                      .K = K,
                      .A = A.data,
                      .B = W.data,
                      .stride_a = A.row_stride,
                      .args = {.in = {sumsq},
                               .inverse_D = (float)(1 / (double)u->base.spec.D),
                               .eps = (float)u->base.spec.rms_norm_eps}};
  if (!in_fp8(A, W)) return call;
  call.A = A.by_row;
  call.B = dgrad ? W.by_col : W.by_row;
  call.stride_b = dgrad ? W.stride : 0;
  call.args.a = &u->scalings[A.scaling];
  call.args.b = &u->scalings[W.scaling];
  call.args.row_scale = (const float *)norm.row_scale;
  return call;
}

// sums: the row statistic that the program writes, one part per tile of columns, or NULL.
static void run(const Fused *f, ProgramName name, ProgramCall *call, RowStat *sums) {
  const TileShape tile = tile_choose(f->kernels.mainloop, name, call->M, call->N, call->K);
  if (sums) {
    sums->parts = tile_parts(tile, call->N);
    call->args.out[0] = *sums;
  }
  fused_launch(&f->kernels.programs[name], tile, call, f->unfused.cuda.gpu.stream);
}

// The same for an FP8 program, which also writes copies of out [M, cols] if out has them.
static void run_copied(const Fused *f, ProgramName name, ProgramCall *call, int64_t cols,
                       Operand out, RowStat *sums) {
  const Cuda *u = &f->unfused.cuda;
  const int64_t M = call->M;
  if (out.by_row) {
    call->copies[0] = (Matrix){out.by_row, M, cols};
    call->copies[1] = (Matrix){out.by_col, cols, fp8_padded(M)};
    call->by_col_stride = out.stride;
    call->args.copies = &u->scalings[out.scaling];
    call->args.row_scale_out = (float *)out.row_scale;
  }
  for (int pass = 0; cuda_launch_again(u, pass, out); pass++) run(f, name, call, sums);
}

// ---- Forward

// Row m's position is first + m % T. A step reads 64 consecutive rows of the table: a single
// sequence and sequences of whole steps find them in the table; for others they are laid out first.
static Matrix rope_angles(const Fused *f, int64_t M, int64_t T, int64_t first, ProgramArgs *args) {
  const Cuda *u = &f->unfused.cuda;
  const int64_t d = u->base.spec.d, cols = rope_table_cols(d);
  args->params[ROPE_PERIOD].i = (int32_t)T;
  if (M <= T || T % 64 == 0) {
    args->params[ROPE_FIRST].i = (int32_t)first;
    return (Matrix){f->rope, u->base.spec.max_positions, cols};
  }
  launch_rope_table(T + 63, d, T, u->rope + first * d, f->rope_periodic, u->gpu.stream);
  return (Matrix){f->rope_periodic, T + 63, cols};
}

void fused_qkv(Backend *be, int64_t M, int64_t T, int64_t first, Operand x, RowStat sumsq,
               Operand W, act_t *qkv) {
  const Fused *f = fused_of(be);
  const Spec *c = &f->unfused.cuda.base.spec;
  const int64_t R = packed_width(c);
  if (cuda_one_row(&f->unfused.cuda, M)) {
    unfused_qkv(be, M, T, first, x, sumsq, W, qkv);
    return;
  }
  ProgramCall call = call_of(f, M, R, c->D, x, W, false, x, sumsq);
  call.stores[0] = (Matrix){qkv, M, R};
  call.args.params[ROPE_HEAD_DIM].i = (int32_t)c->d;
  call.args.params[ROPE_ROTATED].i = (int32_t)((c->H + c->KV) * c->d);
  call.loads[0] = rope_angles(f, M, T, first, &call.args);
  run(f, in_fp8(x, W) ? PROGRAM_ROPE_FP8 : PROGRAM_ROPE, &call, NULL);
}

void fused_residual(Backend *be, int64_t M, int64_t K, Operand a, Operand W, const act_t *x,
                    RowStat x_sumsq, Operand out, RowStat *sumsq) {
  const Fused *f = fused_of(be);
  const Spec *c = &f->unfused.cuda.base.spec;
  if (cuda_one_row(&f->unfused.cuda, M)) {
    unfused_residual(be, M, K, a, W, x, x_sumsq, out, sumsq);
    return;
  }
  ProgramCall call = call_of(f, M, c->D, K, a, W, false, operand_of(NULL), x_sumsq);
  call.loads[0] = (Matrix){x, M, c->D};
  call.stores[0] = (Matrix){out.data, M, c->D};
  if (in_fp8(a, W)) {
    run_copied(f, K > LONG_K ? PROGRAM_RESIDUAL_PROMOTED_FP8 : PROGRAM_RESIDUAL_FP8, &call, c->D,
               out, sumsq);
    return;
  }
  run(f, PROGRAM_RESIDUAL, &call, sumsq);
  if (out.by_row) cuda_cast_rows(cuda_of(be), M, c->D, out, x_sumsq, NULL);
}

void fused_gate_up(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *z,
                   Operand y) {
  const Fused *f = fused_of(be);
  const Spec *c = &f->unfused.cuda.base.spec;
  if (cuda_one_row(&f->unfused.cuda, M)) {
    unfused_gate_up(be, M, x, sumsq, W, z, y);
    return;
  }
  ProgramCall call = call_of(f, M, 2 * c->F, c->D, x, W, false, x, sumsq);
  call.stores[0] = (Matrix){z, M, 2 * c->F};
  if (in_fp8(x, W)) {
    call.stores[0].cols = c->F; // of two bytes each
    run_copied(f, PROGRAM_SWIGLU_FP8, &call, c->F, y, NULL);
    return;
  }
  call.stores[1] = (Matrix){y.data, M, c->F};
  run(f, PROGRAM_SWIGLU, &call, NULL);
}

// The softmax before its normaliser, into P. Its sums of rows are the backend's own, and the result
// says where they lie.
static HeadFinish run_probabilities(const Fused *f, int64_t M, Operand x, RowStat sumsq, Operand W,
                                    const int32_t *targets, act_t *P) {
  const Cuda *u = &f->unfused.cuda;
  const Spec *c = &u->base.spec;
  const ProgramName name = in_fp8(x, W) ? PROGRAM_PROBABILITIES_FP8 : PROGRAM_PROBABILITIES;
  const TileShape tile = tile_choose(f->kernels.mainloop, name, f->head.sum.stride, c->V, c->D);
  HeadFinish finish = {.M = M,
                       .r = row_scale_of(u, x, sumsq),
                       .sum = f->head.sum,
                       .entropy = f->head.entropy,
                       .targets = targets,
                       .x = x.data,
                       .row_loss = u->row_loss};
  finish.sum.parts = finish.entropy.parts = tile_parts(tile, c->V);
  ProgramCall call = call_of(f, M, c->V, c->D, x, W, false, x, sumsq);
  call.stores[0] = (Matrix){P, M, padded_vocab(c)};
  call.args.in[1] = f->head.aim;
  call.args.out[0] = finish.sum;
  call.args.out[1] = finish.entropy;
  launch_head_aim(M, finish.r, x, W, u->scalings, targets, f->head.aim, u->gpu.stream);
  fused_launch(&f->kernels.programs[name], tile, &call, u->gpu.stream);
  return finish;
}

// Where W has FP8 copies, g gets dlogits' themselves: P times u, cast.
void fused_head_loss(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W,
                     const int32_t *targets, act_t *logits, double scale, HeadGradient *g) {
  const Fused *f = fused_of(be);
  Cuda *c = cuda_of(be);
  const bool fits = g ? g->u || g->p.by_row : M <= f->head.sum.stride;
  if (!fits) {
    unfused_head_loss(be, M, x, sumsq, W, targets, logits, scale, g);
    return;
  }
  HeadFinish finish = run_probabilities(f, M, x, sumsq, W, targets, logits);
  finish.scale = (float)scale;
  if (g) {
    g->s.parts = 1;
    finish.gradient = *g;
    finish.gradient.p.data = logits;
  }
  if (g && !g->u) {
    finish.gradient.u = f->head.u;
    finish.gradient.ux.data = NULL;
  }
  launch_head_finish(&finish, c->gpu.stream);
  launch_add_loss(M, c->row_loss, scale, c->state, c->gpu.stream);
  if (g && !g->u) cuda_cast_dlogits(c, M, g->p, logits, f->head.u, scale);
}

// ---- Backward

void fused_norm_dgrad(Backend *be, int64_t M, int64_t N, Operand dz, Operand W, Operand x,
                      RowStat sumsq, RowStat s, const act_t *residual, Operand dx) {
  const Fused *f = fused_of(be);
  const Spec *c = &f->unfused.cuda.base.spec;
  ProgramCall call = call_of(f, M, c->D, N, dz, W, true, x, sumsq);
  call.loads[0] = (Matrix){x.data, M, c->D};
  call.loads[1] = (Matrix){residual, M, c->D};
  call.stores[0] = (Matrix){dx.data, M, c->D};
  call.args.in[1] = s;
  if (in_fp8(dz, W))
    run_copied(
        f, N > LONG_K ? PROGRAM_NORM_DGRAD_RESIDUAL_PROMOTED_FP8 : PROGRAM_NORM_DGRAD_RESIDUAL_FP8,
        &call, c->D, dx, NULL);
  else
    run(f, PROGRAM_NORM_DGRAD_RESIDUAL, &call, NULL);
}

void fused_head_dgrad(Backend *be, int64_t M, const HeadGradient *g, Operand W, Operand x,
                      RowStat sumsq, Operand dx) {
  const Fused *f = fused_of(be);
  const Spec *c = &f->unfused.cuda.base.spec;
  const int64_t V = in_fp8(g->p, W) ? padded_vocab(c) : c->V; // in the copies' order
  ProgramCall call = call_of(f, M, c->D, V, g->p, W, true, x, sumsq);
  if (g->u) call.args.row_scale = (const float *)g->u;
  call.loads[0] = (Matrix){x.data, M, c->D};
  call.stores[0] = (Matrix){dx.data, M, c->D};
  call.args.in[1] = g->s;
  if (in_fp8(g->p, W)) {
    run_copied(f, PROGRAM_NORM_DGRAD_FP8, &call, c->D, dx, NULL);
    return;
  }
  run(f, PROGRAM_NORM_DGRAD, &call, NULL);
  if (dx.by_row) cuda_cast_rows(cuda_of(be), M, c->D, dx, (RowStat){0}, NULL);
}

void fused_down_dgrad(Backend *be, int64_t M, Operand dx, Operand W, const act_t *z, Operand x,
                      RowStat sumsq, Operand dz, RowStat *s) {
  const Fused *f = fused_of(be);
  const Spec *c = &f->unfused.cuda.base.spec;
  ProgramCall call = call_of(f, M, c->F, c->D, dx, W, true, x, sumsq);
  call.loads[0] = (Matrix){z, M, 2 * c->F};
  if (in_fp8(dx, W)) {
    call.loads[0].cols = c->F;
    run_copied(f, PROGRAM_SWIGLU_BACKWARD_FP8, &call, 2 * c->F, dz, s);
    return;
  }
  call.stores[0] = (Matrix){dz.data, M, 2 * c->F};
  run(f, PROGRAM_SWIGLU_BACKWARD, &call, s);
}

// ---- Muon

// A product of all matrices of a batch: out [count, M, N].
static void launch_of_batch(Cuda *c, ProgramName name, int64_t count, ProgramArgs args, int64_t M,
                            int64_t N, int64_t K, const bf16_bits *A, const bf16_bits *B,
                            bf16_bits *out) {
  const OpenProgram *open = &fused_of(&c->base)->kernels.programs[name];
  const Matrix result = {out, M, N}, loaded = {A, M, N};
  const ProgramCall call = {.M = M,
                            .N = N,
                            .K = K,
                            .A = A,
                            .B = B,
                            .loads = {name == PROGRAM_POLYNOMIAL ? loaded : (Matrix){0}},
                            .stores = {result},
                            .batch = count,
                            .args = args};
  const TileShape tile = tile_of_batch(name, count, M, N, K, open->program->symmetric);
  fused_launch(open, tile, &call, c->gpu.stream);
}

// The symmetric matrices [count, n, n] of all shapes of a launch, in changing roles.
typedef struct Squares {
  int64_t count, n;
  bf16_bits *A, *Z, *Q, *free;
  const MuonPolynomial *polynomial; // of the step
} Squares;

static void launch_of_squares(Cuda *c, ProgramName name, const Squares *s, const bf16_bits *A,
                              const bf16_bits *B, bf16_bits *out) {
  const MuonPolynomial *p = s->polynomial;
  const ProgramArgs args = {.params = {{.f = (float)p->a}, {.f = (float)p->b}, {.f = (float)p->c}}};
  launch_of_batch(c, name, s->count, args, s->n, s->n, s->n, A, B, out);
}

static void exchange(bf16_bits **a, bf16_bits **b) {
  bf16_bits *const t = *a;
  *a = *b;
  *b = t;
}

// Z = a + b A + c A A, and Q = Z Q, or Z where it is the first. The last one has no need of A, and
// leaves `free` alone.
static void multiply_by_polynomial(Cuda *c, Squares *s, bool first, bool last) {
  bf16_bits **const result = last ? &s->A : &s->free;
  launch_of_squares(c, PROGRAM_POLYNOMIAL, s, s->A, s->A, first ? s->Q : s->Z);
  if (first) return;
  launch_of_squares(c, PROGRAM_COMMUTING, s, s->Z, s->Q, *result);
  exchange(&s->Q, result);
}

// A = Z A Z.
static void next_gram(Cuda *c, Squares *s, bool first) {
  const bf16_bits *Z = first ? s->Q : s->Z;
  launch_of_squares(c, PROGRAM_COMMUTING, s, Z, s->A, s->free);
  launch_of_squares(c, PROGRAM_COMMUTING, s, s->free, Z, s->A);
}

static void gram(Cuda *c, const MuonBatch *b, bool from_Y, int64_t n, bf16_bits *A) {
  const bool tall = b->rows > b->cols;
  const bf16_bits *from = from_Y ? b->Y : b->X;
  launch_of_batch(c, tall ? PROGRAM_GRAM_TALL : PROGRAM_GRAM, b->count,
                  (ProgramArgs){.factors = b->factors}, n, n, tall ? b->rows : b->cols, from, from,
                  A);
}

static void apply(Cuda *c, const MuonBatch *b, bool from_Y, int64_t n, const bf16_bits *Q) {
  const bool tall = b->rows > b->cols;
  const bf16_bits *from = from_Y ? b->Y : b->X;
  launch_of_batch(c, tall ? PROGRAM_APPLY_TALL : PROGRAM_APPLY, b->count, (ProgramArgs){0}, b->rows,
                  b->cols, n, tall ? from : Q, tall ? Q : from, from_Y ? b->X : b->Y);
}

static int64_t smaller_side(const MuonBatch *b) {
  return b->rows < b->cols ? b->rows : b->cols;
}

// `steps` of the iteration by the first polynomials: Y = Q X, or X = Q Y. The destination of Q X
// must be free on entry.
static void iterate(Cuda *c, const MuonLaunch *launch, const MuonPolynomial *polynomials, int steps,
                    bool from_Y) {
  const MuonBatch *const first = launch->batches, *const end = first + launch->shapes;
  const int64_t n = smaller_side(first);
  Squares s = {0, n, first->S[0], first->S[1], first->S[2], from_Y ? first->X : first->Y, NULL};
  for (const MuonBatch *b = first; b < end; s.count += b++->count)
    gram(c, b, from_Y, n, s.A + s.count * n * n);
  for (int i = 0; i < steps; i++) {
    s.polynomial = &polynomials[i];
    multiply_by_polynomial(c, &s, i == 0, i + 1 == steps);
    if (i + 1 < steps) next_gram(c, &s, i == 0);
  }
  const bf16_bits *Q = s.Q;
  for (const MuonBatch *b = first; b < end; Q += b++->count * n * n) apply(c, b, from_Y, n, Q);
}

// By Gram matrices, each for the next few steps; an even number of them ends in X. X keeps u's
// norm, and so do the factors.
void fused_orthogonalize(Cuda *c, const MuonLaunch *launch) {
  static const int of_long[] = {2, 2, 0}, of_square[] = {1, 1, 1, 1, 0};
  const MuonBatch *first = launch->batches;
  for (int i = 0; i < launch->shapes; i++)
    if (first[i].rows % 8 != 0 || first[i].cols % 8 != 0) { // rows of X or A: no whole 16 bytes
      cuda_orthogonalize(c, launch);
      return;
    }
  const MuonPolynomial *next = muon_polynomials;
  bool from_Y = false;
  const int *steps = muon_is_long(first->rows, first->cols) ? of_long : of_square;
  for (; *steps; next += *steps++, from_Y = !from_Y) iterate(c, launch, next, *steps, from_Y);
}
