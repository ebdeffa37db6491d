// The unfused backend: a GEMM for each operation, and a kernel for the work around it.
#include "base/memory.h"
#include "kernels/unfused/unfused.h"

static RopeShape rope_shape(const Cuda *c, int64_t T, int64_t first) {
  const Spec *o = &c->base.spec;
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
  cuda_forward(c, M, packed_width(&c->base.spec), c->base.spec.D, x, W, NULL, qkv, 0);
  launch_rope(M, rope_shape(c, T, first), row_scale_of(c, x, sumsq), qkv, c->gpu.stream);
}

void unfused_residual(Backend *be, int64_t M, int64_t K, Operand a, Operand W, const act_t *x,
                      RowStat x_sumsq, Operand out, RowStat *sumsq) {
  Cuda *c = cuda_of(be);
  cuda_forward(c, M, c->base.spec.D, K, a, W, x, out.data, 0);
  if (out.by_row)
    cuda_cast_rows(c, M, c->base.spec.D, out, x_sumsq, sumsq);
  else if (!cuda_token_row(c, M))
    launch_row_sumsq(M, c->base.spec.D, out.data, sumsq, c->gpu.stream);
}

// In bf16 z stays the plain product: down_dgrad, its only reader, applies r as it reads.
void unfused_gate_up(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *z,
                     Operand y) {
  Cuda *c = cuda_of(be);
  const RowScale r = row_scale_of(c, x, sumsq);
  if (cuda_one_row(c, M)) {
    cuda_gate_up_row(c, x.data, W, z, y.data);
    return;
  }
  act_t *product = y.by_row ? unfused_of(be)->product : z;
  cuda_forward(c, M, 2 * c->base.spec.F, c->base.spec.D, x, W, NULL, product, 0);
  for (int pass = 0; y.by_row && cuda_launch_again(c, pass, y); pass++)
    launch_swiglu_fp8(M, c->base.spec.F, r, product, z, y, c->scalings + y.scaling, c->gpu.stream);
  if (!y.by_row) launch_swiglu(M, c->base.spec.F, r, z, y.data, c->gpu.stream);
}

// The logits stay the plain product; cross entropy applies r as it reads them.
void unfused_head_loss(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W,
                       const int32_t *targets, act_t *logits, double scale, HeadGradient *g) {
  Cuda *c = cuda_of(be);
  cuda_forward(c, M, c->base.spec.V, c->base.spec.D, x, W, NULL, logits,
               padded_vocab(&c->base.spec));
  if (g) g->s.parts = 1;
  const CrossEntropy args = {.M = M,
                             .V = c->base.spec.V,
                             .stride = padded_vocab(&c->base.spec),
                             .logits = logits,
                             .targets = targets,
                             .r = row_scale_of(c, x, sumsq),
                             .clusters = c->gpu.compiled_for >= 90,
                             .multiprocessors = c->gpu.sm_count,
                             .grad_scale = (float)scale,
                             .row_loss = c->row_loss,
                             .s = g ? (float *)g->s.data : NULL};
  launch_cross_entropy(&args, c->gpu.stream);
  launch_add_loss(M, c->row_loss, scale, c->state, c->gpu.stream);
  if (!g || !g->p.by_row) return;
  cuda_cast_dlogits(c, M, g->p, logits, NULL, scale);
}

void unfused_score_rows(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W,
                        const int32_t *targets, act_t *logits, RowScore *scores) {
  Cuda *c = cuda_of(be);
  const int64_t stride = padded_vocab(&c->base.spec);
  cuda_forward(c, M, c->base.spec.V, c->base.spec.D, x, W, NULL, logits, stride);
  const CrossEntropy args = {.M = M,
                             .V = c->base.spec.V,
                             .stride = stride,
                             .logits = logits,
                             .targets = targets,
                             .r = row_scale_of(c, x, sumsq)};
  launch_score_rows(&args, scores, c->gpu.stream);
}

// u: of dz's rows, or NULL.
static void norm_dgrad(Backend *be, int64_t M, int64_t N, Operand dz, const stat_t *u, Operand W,
                       Operand x, RowStat sumsq, RowStat s, const act_t *residual, Operand dx) {
  Cuda *c = cuda_of(be);
  act_t *product = unfused_of(be)->product;
  // Not in place: where its result overwrites the addend, cuBLASLt rounds the product to bf16
  // before the addition.
  const GemmProblem p = {.M = M, .N = c->base.spec.D, .K = N, .form = GEMM_NN, .accurate = true};
  const RowScale r = row_scale(c, sumsq);
  if (!dz.by_row) {
    cuda_multiply(c, p, dz, W, residual, product);
    launch_norm_backward(M, r, x.data, s, u, product, dx.data, c->gpu.stream);
    return;
  }
  // The product still lacks the factor q, so the residual is added after that multiplication.
  cuda_multiply(c, p, dz, W, NULL, product);
  for (int pass = 0; cuda_launch_again(c, pass, dx); pass++)
    launch_norm_backward_fp8(M, r, x, s, residual, product, dx, c->scalings + dx.scaling,
                             c->gpu.stream);
}

void unfused_norm_dgrad(Backend *be, int64_t M, int64_t N, Operand dz, Operand W, Operand x,
                        RowStat sumsq, RowStat s, const act_t *residual, Operand dx) {
  norm_dgrad(be, M, N, dz, NULL, W, x, sumsq, s, residual, dx);
}

void unfused_head_dgrad(Backend *be, int64_t M, const HeadGradient *g, Operand W, Operand x,
                        RowStat sumsq, Operand dx) {
  norm_dgrad(be, M, be->spec.V, g->p, g->u, W, x, sumsq, g->s, NULL, dx);
}

void unfused_down_dgrad(Backend *be, int64_t M, Operand dx, Operand W, const act_t *z, Operand x,
                        RowStat sumsq, Operand dz, RowStat *s) {
  Cuda *c = cuda_of(be);
  act_t *product = unfused_of(be)->product;
  const GemmProblem p = {
      .M = M, .N = c->base.spec.F, .K = c->base.spec.D, .form = GEMM_NN, .accurate = true};
  const RowScale r = row_scale_of(c, x, sumsq);
  cuda_multiply(c, p, dx, W, NULL, product);
  for (int pass = 0; dz.by_row && cuda_launch_again(c, pass, dz); pass++)
    launch_swiglu_backward_fp8(M, c->base.spec.F, r, z, product, dz, c->scalings + dz.scaling, s,
                               c->gpu.stream);
  if (!dz.by_row)
    launch_swiglu_backward(M, c->base.spec.F, r, z, product, dz.data, s, c->gpu.stream);
}

void unfused_rope_backward(Backend *be, int64_t M, int64_t T, act_t *dqkv, const act_t *qkv,
                           Operand x, RowStat sumsq, Operand out, RowStat *s) {
  const Cuda *c = cuda_of(be);
  const RopeShape shape = rope_shape(c, T, 0);
  const RowScale r = row_scale_of(c, x, sumsq);
  for (int pass = 0; out.by_row && cuda_launch_again(c, pass, out); pass++)
    launch_rope_backward_fp8(M, shape, r, qkv, dqkv, out, c->scalings + out.scaling, s,
                             c->gpu.stream);
  if (!out.by_row) launch_rope_backward(M, shape, r, qkv, dqkv, s, c->gpu.stream);
}

// ---- The backend

// Columns of the scratch, for the operations that no fused kernel runs.
static int64_t product_cols(const Backend *be, const Spec *c) {
  static const Operation norm_dgrads[] = {OP_lm_head_dgrad, OP_gate_up_dgrad, OP_qkv_dgrad};
  int64_t cols = be->kinds[OP_down_dgrad] == KERNEL_FUSED ? 0 : c->F * (c->fp8 ? 2 : 1);
  for (size_t i = 0; i < sizeof norm_dgrads / sizeof *norm_dgrads; i++)
    if (be->kinds[norm_dgrads[i]] != KERNEL_FUSED && cols < c->D) cols = c->D;
  return cols;
}

void unfused_set_operations(Backend *be) {
#define OP(name, type, function, ...) be->name = unfused_##function;
#define GENERATION(name, type) be->name = unfused_##name;
#include "kernels/ops.def"
#undef OP
#undef GENERATION
}

int unfused_take_product(Unfused *u, Error *err) {
  const Backend *be = &u->cuda.base;
  const int64_t elements = be->spec.max_tokens * product_cols(be, &be->spec);
  cuda_give_back(&u->cuda, u->product);
  u->product = NULL;
  if (!be->spec.train || elements == 0) return 0;
  u->product = cuda_take(&u->cuda, (size_t)elements * sizeof(bf16_bits), err);
  return u->product ? 0 : -1;
}

int unfused_open(Unfused *u, const Spec *spec, const Gpu *gpu, Error *err) {
  Backend *be = &u->cuda.base;
  if (cuda_open(&u->cuda, spec, gpu, err)) return -1;
  unfused_set_operations(be);
  be->spec.most_parts.sumsq = copy_parts(spec->D);
  be->spec.most_parts.s =
      copy_parts(spec->F * 2 > packed_width(spec) ? spec->F * 2 : packed_width(spec));
  return unfused_take_product(u, err);
}

Backend *backend_unfused_create(const Spec *spec, const Gpu *gpu, Error *err) {
  Unfused *u = xcalloc(1, sizeof *u);
  Backend *be = &u->cuda.base;
  for (int i = 0; i < OPERATION_COUNT; i++) be->kinds[i] = KERNEL_UNFUSED;
  if (unfused_open(u, spec, gpu, err) == 0 && cuda_ready(&u->cuda, "cuda, unfused", err) == 0)
    return be;
  cuda_destroy(be);
  return NULL;
}
