// The interface between the model and its backends: a function for each GEMM with everything around
// it. The model (model/forward.c, model/backward.c) is written once, over this. Three backends
// implement it: kernels/cpu is the reference in plain C, kernels/unfused and kernels/fused run on a
// GPU.
//
// Dimensions, everywhere in this tree:
//   M  tokens in a call (batch x sequence)      D  hidden_size          V  vocab_size
//   F  intermediate_size                        H  query heads          KV key/value heads
//   d  head_dim                                 R  (H + 2 KV) d: a row of q, k and v heads
//
// RMSNorm is not an operation here. h = r * x * wn with r = rsqrt(mean(x^2) + eps), so in z = h W^T
// the column scale wn is folded into the compute copy of the weight, W' = W * wn (AdamW writes it),
// and the row scale r is applied where the GEMM's result is stored. Its only trace is the sum of
// squares of each row of x, written by the operation that computes x. Backward, with dz' = r dz and
// s = sum over a row of dz' * z:
//     dx = dz' W' - (r / D) s x
//     dW' = dz'^T x        dW = dW' * wn        dwn[k] = sum_n dW'[n,k] W[n,k]
//
// Element order: columns 2p and 2p+1 of z are gate and up of one feature (packed_row in
// model/tensors.def says which), and q and k are stored so that RoPE rotates columns (2j, 2j+1) of
// a head. y and v are in natural order.
#pragma once
#include "base/os.h"
#include "kernels/operations.h"
#include "kernels/services.h"
#include "kernels/spec.h"

// ---- The operations' types. A backend declares a function of each: `QkvOp fused_qkv;`.

// x[m] = E[tokens[m]]; sumsq of x.
//   tokens [M] int32 in, E [V, D] in, x [M, D] out, sumsq out
typedef void EmbedOp(Backend *be, int64_t M, const int32_t *tokens, const act_t *E, Operand x,
                     RowStat *sumsq);
// qkv = r * (x W'^T); q and k heads rotated by RoPE at position first + m % T.
//   x [M, D] in, sumsq in, W [R, D] in (folded), qkv [M, R] out
typedef void QkvOp(Backend *be, int64_t M, int64_t T, int64_t first, Operand x, RowStat sumsq,
                   Operand W, act_t *qkv);
// Causal softmax(q k^T / sqrt(d)) v, grouped queries, per sequence of T rows; where documents are
// set, per document. RoPE's positions run through the sequence: scores depend on differences alone.
//   qkv [B, T, R] in, o [B, T, H d] out, lse [B, H, T] out, natural log, of the scaled scores; of
//   documents in the backend's own order
typedef void AttentionOp(Backend *be, int64_t B, int64_t T, const act_t *qkv, Operand o,
                         stat_t *lse);
// qkv and attention of generation. The backend reads the position as it runs, so that the calls of
// a token can be recorded once and replayed for every token.
//   position [1] int32 in, the backend's memory; x [1, D] in, sumsq in, W [R, D] in (folded);
//   cache [.., R]: row *position out
typedef void QkvTokenOp(Backend *be, const int32_t *position, Operand x, RowStat sumsq, Operand W,
                        act_t *cache);
// Attention of one sequence for the queries of its last `rows` positions; *position is the first of
// them.
//   cache [*position + rows, R] in, o [rows, H d] out
typedef void AttentionDecodeOp(Backend *be, const int32_t *position, int64_t rows,
                               const act_t *cache, Operand o);
// out = x + a W^T; sumsq of out as stored. Serves the attention output and the MLP's down
// projection. A backend that only generates (Spec.context) may leave out the sumsq of a single row:
// its operations of one row compute it from x.
//   a [M, K] in, W [D, K] in, x [M, D] and its sumsq in, out [M, D] out (not x), sumsq out
typedef void ResidualOp(Backend *be, int64_t M, int64_t K, Operand a, Operand W, const act_t *x,
                        RowStat x_sumsq, Operand out, RowStat *sumsq);
// z = r * (x W'^T); y = silu(gate) * up over the column pairs of z. z is for down_dgrad alone,
// which knows whether this backend stored it with or without r. In FP8 it is e4m3 (Z_DIVISOR in
// kernels/formats.h), with r; y is of z before it is rounded.
//   x [M, D] in, sumsq in, W [2F, D] in (folded), z [M, 2F] out, y [M, F] out
typedef void GateUpOp(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *z,
                      Operand y);
// logits = r * (x W'^T) of one row, for generation.
//   x [1, D] in, sumsq in, W [V, D] in (folded), logits [V] out
typedef void RowLogitsOp(Backend *be, Operand x, RowStat sumsq, Operand W, act_t *logits);
// Chooses the next token: temperature, then top-k, then top-p, then the uniform draw. Top-k keeps
// the k largest, top-p the fewest of these whose probabilities reach top_p; among equal logits the
// lower ids. The draw takes the kept tokens in the order of falling logits, or, where all are kept,
// in the order of ids. -infinity has probability 0. Equal logits give equal tokens on every
// backend. The token goes to Services.token_take: -1 where a logit is NaN or the largest is not
// finite.
//   logits [V] in; draw [1], the backend's memory, in, out: it moves on to the row behind the fed
//   ones, and to the next index; next [1] int32 out: the token, or 0 where there is none
typedef void ChooseOp(Backend *be, const act_t *logits, Draw *draw, int32_t *next);
// Scoring: attention again for the rows of branches, which see their prefix, and themselves
// causally, as if they stood right behind it. qkv has them rotated for where they do stand: queries
// are rotated back by that distance before they meet the prefix. Overwrites o of these rows.
//   branches [count] in, the backend's memory; qkv [M, R] in; o [M, H d] in, out
typedef void AttentionBranchesOp(Backend *be, int64_t M, int64_t count, const Branch *branches,
                                 const act_t *qkv, Operand o);
// Scoring: of each row with a target its loss, and whether the target is the likeliest token.
// Scores of other rows are left as they are.
//   x [M, D] in, sumsq in, W [V, D] in (folded), targets [M] int32 in, logits [M, V] scratch, rows
//   of padded_vocab, scores [M] out
typedef void ScoreRowsOp(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W,
                         const int32_t *targets, act_t *logits, RowScore *scores);
// The logits of a training step or a validation, and their loss: adds scale * sum over m of
// (log-sum-exp - target's logit) to the loss of the running step. Where g is not NULL the gradient
// is computed in the same call, since the logits are read only once: dlogits' = r * scale *
// (softmax - onehot(target)). A row with a negative target does not count: it adds nothing to the
// loss, and its p, s, u and u x are 0.
//   x [M, D] in, sumsq in, W [V, D] in (folded), targets [M] int32 in, logits [M, V] scratch, rows
//   of padded_vocab; g's p and s out, u and ux as HeadGradient says
typedef void HeadLossOp(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W,
                        const int32_t *targets, act_t *logits, double scale, HeadGradient *g);
// dx = u (p W') - (r / D) s x.
//   g in, W [V, D] in (folded), x [M, D] in, sumsq in, dx [M, D] out
typedef void HeadDgradOp(Backend *be, int64_t M, const HeadGradient *g, Operand W, Operand x,
                         RowStat sumsq, Operand dx);

// dx = dz' W' - (r / D) s x + residual. Serves gate_up and qkv.
//   dz [M, N] in, W [N, D] in (folded), x [M, D] in, sumsq of x in, s in,
//   residual [M, D] in, dx [M, D] out (data may be residual itself where there are no copies)
typedef void NormDgradOp(Backend *be, int64_t M, int64_t N, Operand dz, Operand W, Operand x,
                         RowStat sumsq, RowStat s, const act_t *residual, Operand dx);
// SwiGLU backward on top of down's dgrad: dy = dx W; dz' = r * (dy d(silu(gate) up)); s = row sum
// of dz' z.
//   dx [M, D] in, W [D, F] in, z [M, 2F] in, gate_up's x (its row_scale) and sumsq in,
//   dz [M, 2F] out (data may be z where that is bf16), s out
typedef void DownDgradOp(Backend *be, int64_t M, Operand dx, Operand W, const act_t *z, Operand x,
                         RowStat sumsq, Operand dz, RowStat *s);
// da = dy W, the plain dgrad of the attention output projection.
//   dy [M, D] in, W [D, K] in, da [M, K] out
typedef void DgradOp(Backend *be, int64_t M, int64_t K, Operand dy, Operand W, act_t *da);
//   qkv, o, lse as attention wrote them, do_ [B, T, H d] in, dqkv [B, T, R] out
typedef void AttentionBackwardOp(Backend *be, int64_t B, int64_t T, const act_t *qkv,
                                 const act_t *o, const stat_t *lse, const act_t *do_, act_t *dqkv);
// Rotates dq and dk back and multiplies all by r; s = row sum of dqkv' qkv (a rotation keeps the
// product).
//   dqkv [M, R] in; qkv [M, R] in; qkv's x (its row_scale) and sumsq in; out [M, R] out (data, if
//   there is any, is dqkv); s out
typedef void RopeBackwardOp(Backend *be, int64_t M, int64_t T, act_t *dqkv, const act_t *qkv,
                            Operand x, RowStat sumsq, Operand out, RowStat *s);
// dW = dz^T x, or += where accumulate.
//   dz [M, N] in, x [M, K] in, dW [N, K] out or in, out
typedef void WgradOp(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x,
                     grad_t *dW, bool accumulate);
// lm_head's wgrad, a part for each loss chunk. Without a sum it is wgrad's. Where gradients are
// bf16 every addition to dW would round: 8 parts have an error of 0.4 %, one has 0.17 %. So
// sum = dz^T x, or += where add; with the last part dW = sum.
//   dz [M, N] in, x [M, K] in, sum [N, K] out or in, out, or NULL; dW [N, K] out, with a sum NULL
//   before the last part.
typedef void HeadWgradOp(Backend *be, int64_t M, int64_t N, int64_t K, Operand dz, Operand x,
                         stat_t *sum, bool add, grad_t *dW);
// dE[tokens[m]] += dx[m], in a fixed order; where not accumulate, dE is overwritten (zero where
// no token points).
//   tokens [M] int32 in, dx [M, D] in, dE [V, D]
typedef void EmbedBackwardOp(Backend *be, int64_t M, const int32_t *tokens, const act_t *dx,
                             grad_t *dE, bool accumulate);
// Rewrites x's FP8 copies from its data and row_scale, where a backward recomputes a layer. Does
// nothing where x has no copies.
//   x [M, N] data and row_scale in, copies out
typedef void RequantizeOp(Backend *be, int64_t M, int64_t N, Operand x);

// Writes the gradients dwn of the norm weights, and computes the norm over all gradients. The
// gradients of the matrices are only read; their folded copies may be read in place of W.
typedef void GradsFinishOp(Backend *be, const ParamTensor *list, int count);
// Muon, if the list has parts. It runs between grads_finish and adamw; together with adamw it
// updates a tensor with parts. For each part by itself, with dW its gradient as adamw scales it and
// m its momentum:
//     m = momentum m + (1 - momentum) dW       X = (1 - momentum) dW + momentum m
//     X = X / max(|X|, MUON_EPS)               |X|: Frobenius norm; 0 where the part is noise
//                                              (MUON_NOISE)
//     MUON_STEPS times: A = X X^T, X = a X + (b A + c A A) X        a, b, c: muon_polynomials
//     W = (1 - lr decay) W - lr MUON_SCALE sqrt(max(rows, cols)) X
// A part with more rows than columns has A = X^T X, X = a X + X (b A + c A A). The scale gives an
// update about the root mean square of AdamW's, so that both have one learning rate and decay
// (arXiv 2502.16982; torch.optim.Muon with adjust_lr_fn="match_rms_adamw", but our polynomials).
typedef void MuonOp(Backend *be, const ParamTensor *list, int count);
// Multiplies the step's loss, norm and gradients by gradient_scale, and updates the delayed scales.
// Then updates all tensors that have no parts with decoupled AdamW and the parameters of the last
// set_hyper, norm weights first and with norm_rate times its rate, and writes the compute copies of
// all. If the loss or the gradient norm is not finite, no weight and no moment changes, and the
// result says so. A gradient of 0 is finite: moments and weights decay.
typedef void AdamwOp(Backend *be, const ParamTensor *list, int count);

struct Backend {
  const char *name;      // "cpu", ...
  char description[512]; // hardware and libraries, for the start-up table
  Phases opening;        // the time that each phase of its opening took
  char costs[128]; // the cost of a choice in the configuration, for the same table; empty if none
  Spec spec;       // as it was opened for: formats, sizes, and now the memory that it takes and has
  KernelKind kinds[OPERATION_COUNT]; // the kernels that run each operation, for profilers
  Observed observed; // marks are noted of these; unless it is nothing, no replay takes place
  double peak_flops; // dense matrix FLOP/s of the hardware at its best, in FP8 where a run is in
                     // FP8, else in bf16; 0 = not known
  int steps_ahead; // steps to queue before the first one's result is read: 1 on a GPU, 0 on the CPU
  // FP8: no scales are known yet; true until the first update (set_hyper) or scalings_write. Until
  // then an operation that writes copies runs twice: first to find their largest value and set the
  // scale. So no operation may work in place, and no CUDA graph is recorded.
  bool calibrating;
  Services services;
#define OP(name, type, ...) type *name;
#define GENERATION(name, type) type *name;
#include "kernels/ops.def"
#undef OP
#undef GENERATION
};

// Element `index` of an array of activations. NULL stays NULL.
static inline act_t *act_at(const Backend *be, const act_t *p, int64_t index) {
  return p ? (act_t *)((uintptr_t)p + (size_t)index * act_bytes(&be->spec)) : NULL;
}

static inline fp8_t *fp8_at(const Backend *be, const fp8_t *p, int64_t index) {
  return p ? (fp8_t *)((uintptr_t)p + (size_t)index * fp8_bytes(&be->spec)) : NULL;
}
static inline stat_t *stat_at(const Backend *be, const stat_t *p, int64_t index) {
  return p ? (stat_t *)((uintptr_t)p + (size_t)index * stat_bytes(&be->spec)) : NULL;
}

// The rows from `row` on of an operand with rows of `cols` elements. With copies, row is a multiple
// of FP8_GROUP.
static inline Operand operand_from(const Backend *be, Operand x, int64_t row, int64_t cols) {
  x.data = act_at(be, x.data, row * cols);
  x.by_row = fp8_at(be, x.by_row, row * cols);
  x.by_col = fp8_at(be, x.by_col, row);
  x.row_scale = stat_at(be, x.row_scale, row);
  return x;
}

// The statistic of the rows from `row` on.
static inline RowStat row_stat_from(const Backend *be, RowStat s, int64_t row) {
  s.data = stat_at(be, s.data, row);
  return s;
}

// The CPU reference. Never NULL: if memory fails, the program exits.
Backend *backend_cpu_create(const Spec *spec);

// ---- The work of an operation, as its row in kernels/ops.def has it.

typedef enum OperationClass { CLASS_GEMM, CLASS_ATTENTION, CLASS_MEMORY } OperationClass;

typedef struct OperationWork {
  OperationClass kind;
  GemmForm form;   // of a GEMM of A and B; the result is [M, N]
  int64_t M, N, K; // of other operations M and N are what they work on; 0: all parameters
  bool adds;
  int64_t lda, ldd;   // elements from one row, as stored, to the next; 0: the row's own
  double flops;       // of the GEMM, attention (causal: half of the scores) or Muon
  double bytes;       // that must move (of CLASS_MEMORY)
  double floor_bytes; // that a floor counts besides GEMM and attention
} OperationWork;

// list [count]: of the update; NULL: it has no bytes.
OperationWork operation_work(const Spec *spec, const ParamTensor *list, int count,
                             Operation operation);
