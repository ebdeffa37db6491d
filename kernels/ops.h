// The interface between the model and what runs it: a function for each GEMM with everything around
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
// squares of each row of x, left by the operation that made x. Backward, with dz' = r dz and s =
// sum over a row of dz' * z:
//     dx = dz' W' - (r / D) s x
//     dW' = dz'^T x        dW = dW' * wn        dwn[k] = sum_n dW'[n,k] W[n,k]
//
// Element order: columns 2p and 2p+1 of z are gate and up of one feature (packed_row in
// model/packing.h says which), and q and k are stored so that RoPE rotates columns (2j, 2j+1) of a
// head. y and v are in natural order.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "kernels/activity.h"
#include "kernels/operations.h"

typedef struct Backend Backend;
typedef struct OperationCall OperationCall; // kernels/record.h

// Storage classes. The model only passes pointers on; the types are incomplete, so that arguments
// of different classes cannot be swapped.
typedef struct Activation act_t; // activations and compute weights: bf16 on a GPU, real (fp32; fp64
                                 // in test builds) on the CPU
typedef struct Statistic stat_t; // row statistics, log-sum-exp: fp32 on a GPU, real on the CPU
typedef struct Gradient grad_t;  // gradients of parameters: bf16 on a GPU, fp32 there when
                                 // micro-batches add up; real on the CPU
typedef struct Master master_t;  // master weights and AdamW moments: fp32 on a GPU, real on the CPU

// A statistic of rows: for each row `parts` partial sums, which its consumer adds up in their
// order. A producer leaves one part a tile of columns and fills in how many; stride and memory are
// the model's.
typedef struct RowStat {
  stat_t *data;   // [parts, stride], room for Backend.most_parts
  int64_t stride; // rows from one part to the next, at least M
  int32_t parts;
} RowStat;

enum { MAX_HEAD_DIM = 1024 };

// What a backend must know before any memory is allocated. All sizes are final for its life.
typedef struct OpsConfig {
  int64_t D, F, H, KV, d, V;
  int64_t max_tokens;    // largest M of any call
  int64_t max_positions; // RoPE positions 0 .. max_positions - 1 occur
  double rms_norm_eps;
  double inv_freq[MAX_HEAD_DIM / 2]; // RoPE: angle per position of each of the d/2 pairs
  int threads;                       // CPU threads; 0 = all
  // The calls of a run in their order (kernels/record.h): a GPU backend chooses kernels and
  // cuBLASLt's algorithms by them. Read while it is created; none is fine.
  const OperationCall *calls;
  int call_count;
} OpsConfig;

// R: the columns of a packed row.
static inline int64_t packed_width(const OpsConfig *c) {
  return (c->H + 2 * c->KV) * c->d;
}

// What a GPU backend must know besides.
typedef struct GpuOptions {
  KernelChoice kernels;
  bool train;         // false: forward only, no scratch of the backward
  bool grads_fp32;    // gradients fp32 (several micro-batches a step) instead of bf16
  bool deterministic; // attention's backward gives the same bits every time, at a cost
  bool graphs;        // replay_begin records what is launched in CUDA graphs
  // The run's micro-batch: attention and GEMMs of this shape are planned and timed at the start,
  // others when they first occur. 0: all when they first occur, and untimed.
  int64_t batch, seq;
  int64_t loss_tokens;    // rows of the logits at a time; divides batch x seq
  const char *gemm_cache; // as for gemm_open; NULL = the usual place
} GpuOptions;

// One parameter tensor of the optimizer's list, [rows, cols] row-major. Vectors have rows = 1.
// A matrix is used plain (compute, grad), folded with the norm weight list[norm] (folded,
// grad_folded), or, a tied embedding, both ways. An unused pair is NULL; a matrix used only folded
// has grad == grad_folded, and grads_finish turns the one into the other in place.
typedef struct ParamTensor {
  int64_t rows, cols;
  master_t *master, *m, *v; // weight, AdamW's first and second moment
  grad_t *grad;             // dW, complete after grads_finish
  grad_t *grad_folded;      // dW' = gradient with respect to the folded copy
  act_t *compute;           // W as the GEMMs read it
  act_t *folded;            // W * wn, wn = list[norm].master [cols]
  int norm;                 // index in the list, -1 = folded with nothing
  bool decay;               // AdamW's weight decay applies
} ParamTensor;

typedef struct AdamW {
  double learning_rate, beta1, beta2, eps, weight_decay;
  double clip_norm; // gradients are scaled by min(1, clip_norm / norm); 0 = no clipping
} AdamW;

// What a training step reports. Lives in the backend, read with step_result.
typedef struct StepResult {
  double loss;      // mean over the step's tokens, nats
  double grad_norm; // L2 norm of all gradients, before clipping
  bool applied;     // false: loss or grad_norm was not finite and adamw changed nothing
  int64_t updates;  // updates applied since the start of the run; AdamW's t for bias correction
} StepResult;

enum { MAX_RESULTS = 4 };

// Parts of a step that are the same at every step.
typedef enum ReplaySlot {
  REPLAY_FORWARD,
  REPLAY_LOSS,           // of a validation
  REPLAY_FIRST_BACKWARD, // starts the gradients
  REPLAY_NEXT_BACKWARD,  // adds to them
  REPLAY_UPDATE,
  REPLAY_TOKEN, // generation: one token through all layers
  REPLAY_SLOTS
} ReplaySlot;

// ---- The operations' types. A backend declares a function of each: `QkvOp fused_qkv;`.

// x[m] = E[tokens[m]]; sumsq of x.
//   tokens [M] int32 in, E [V, D] in, x [M, D] out, sumsq out
typedef void EmbedOp(Backend *be, int64_t M, const int32_t *tokens, const act_t *E, act_t *x,
                     RowStat *sumsq);
// qkv = r * (x W'^T); q and k heads rotated by RoPE at position first + m % T.
//   x [M, D] in, sumsq in, W [R, D] in (folded), qkv [M, R] out
typedef void QkvOp(Backend *be, int64_t M, int64_t T, int64_t first, const act_t *x, RowStat sumsq,
                   const act_t *W, act_t *qkv);
// Causal softmax(q k^T / sqrt(d)) v, grouped queries, per sequence of T rows.
//   qkv [B, T, R] in, o [B, T, H d] out, lse [B, H, T] out, natural log, of the scaled scores
typedef void AttentionOp(Backend *be, int64_t B, int64_t T, const act_t *qkv, act_t *o,
                         stat_t *lse);
// The same for generation: one sequence, and only its last `rows` positions ask.
//   qkv [T, R] in (the KV cache), o [rows, H d] out
typedef void AttentionDecodeOp(Backend *be, int64_t T, int64_t rows, const act_t *qkv, act_t *o);
// qkv and attention_decode of one row, whose position the backend reads as it runs, so that they
// can be recorded once and replayed for every token.
//   position [1] int32 in, the backend's memory; x [1, D] in, sumsq in, W [R, D] in (folded);
//   cache [.., R]: row *position out
typedef void QkvTokenOp(Backend *be, const int32_t *position, const act_t *x, RowStat sumsq,
                        const act_t *W, act_t *cache);
//   cache [*position + 1, R] in, o [1, H d] out
typedef void AttentionTokenOp(Backend *be, const int32_t *position, const act_t *cache, act_t *o);
// out = x + a W^T; sumsq of out as stored. Serves the attention output and the MLP's down
// projection.
//   a [M, K] in, W [D, K] in, x [M, D] in, out [M, D] out (not x), sumsq out
typedef void ResidualOp(Backend *be, int64_t M, int64_t K, const act_t *a, const act_t *W,
                        const act_t *x, act_t *out, RowStat *sumsq);
// z = r * (x W'^T); y = silu(gate) * up over the column pairs of z. z is for down_dgrad alone,
// which knows whether this backend stored it with or without r.
//   x [M, D] in, sumsq in, W [2F, D] in (folded), z [M, 2F] out, y [M, F] out
typedef void GateUpOp(Backend *be, int64_t M, const act_t *x, RowStat sumsq, const act_t *W,
                      act_t *z, act_t *y);
// logits = r * (x W'^T), for generation.
//   x [M, D] in, sumsq in, W [V, D] in (folded), logits [M, V] out
typedef void LmHeadOp(Backend *be, int64_t M, const act_t *x, RowStat sumsq, const act_t *W,
                      act_t *logits);
// The same for training and validation, with the loss: adds scale * sum over m of (log-sum-exp -
// target's logit) to the loss of the running step. Where s is not NULL the gradient follows at
// once, since the logits pass by only once: logits become dlogits' = r * scale * (softmax -
// onehot(target)), and s their row sums.
//   x [M, D] in, sumsq in, W [V, D] in (folded), targets [M] int32 in,
//   logits [M, V] out: dlogits', without s scratch; s out or NULL
typedef void HeadLossOp(Backend *be, int64_t M, const act_t *x, RowStat sumsq, const act_t *W,
                        const int32_t *targets, act_t *logits, double scale, RowStat *s);

// dx = dz' W' - (r / D) s x + residual. Serves lm_head, gate_up and qkv.
//   dz [M, N] in, W [N, D] in (folded), x [M, D] in, sumsq of x in, s in,
//   residual [M, D] in or NULL (none), dx [M, D] out (may be residual itself)
typedef void NormDgradOp(Backend *be, int64_t M, int64_t N, const act_t *dz, const act_t *W,
                         const act_t *x, RowStat sumsq, RowStat s, const act_t *residual,
                         act_t *dx);
// SwiGLU backward on top of down's dgrad: dy = dx W; dz' = r * (dy d(silu(gate) up)); s = row sum
// of dz' z.
//   dx [M, D] in, W [D, F] in, z [M, 2F] in, sumsq of gate_up's x in,
//   dz [M, 2F] out (may be z), s out
typedef void DownDgradOp(Backend *be, int64_t M, const act_t *dx, const act_t *W, const act_t *z,
                         RowStat sumsq, act_t *dz, RowStat *s);
// da = dy W, the plain dgrad of the attention output projection.
//   dy [M, D] in, W [D, K] in, da [M, K] out
typedef void DgradOp(Backend *be, int64_t M, int64_t K, const act_t *dy, const act_t *W, act_t *da);
//   qkv, o, lse as attention left them, do_ [B, T, H d] in, dqkv [B, T, R] out
typedef void AttentionBackwardOp(Backend *be, int64_t B, int64_t T, const act_t *qkv,
                                 const act_t *o, const stat_t *lse, const act_t *do_, act_t *dqkv);
// Rotates dq and dk back and multiplies all by r; s = row sum of dqkv' qkv (a rotation keeps the
// product).
//   dqkv [M, R] in, out; qkv [M, R] in; sumsq of qkv's x in; s out
typedef void RopeBackwardOp(Backend *be, int64_t M, int64_t T, act_t *dqkv, const act_t *qkv,
                            RowStat sumsq, RowStat *s);
// dW = dz^T x, or += where accumulate.
// Where gradients are bf16 every addition rounds: C chunks of the loss leave lm_head's with an L2
// error of 0.25 % (C = 2), 0.4 % (8), 1 % (64) where one chunk leaves 0.17 % (simulated, parts
// independent). In fixtures bf16 activations alone cost gradients 1 to 5 %.
//   dz [M, N] in, x [M, K] in, dW [N, K] out or in, out
typedef void WgradOp(Backend *be, int64_t M, int64_t N, int64_t K, const act_t *dz, const act_t *x,
                     grad_t *dW, bool accumulate);
// dE[tokens[m]] += dx[m], in a fixed order; where not accumulate, dE is overwritten (zero where
// no token points).
//   tokens [M] int32 in, dx [M, D] in, dE [V, D]
typedef void EmbedBackwardOp(Backend *be, int64_t M, const int32_t *tokens, const act_t *dx,
                             grad_t *dE, bool accumulate);

// Folded gradients become true ones (dW and dwn above), and the norm over all gradients is taken.
typedef void GradsFinishOp(Backend *be, const ParamTensor *list, int count);
// Decoupled AdamW on all tensors with the parameters of the last set_hyper, norm weights first,
// then the compute copies. If the loss or the gradient norm is not finite it changes nothing and
// says so in the result.
typedef void AdamwOp(Backend *be, const ParamTensor *list, int count);

// X(type, name) of each.
#define BACKEND_OPERATIONS(X)                                                                      \
  X(EmbedOp, embed)                                                                                \
  X(QkvOp, qkv)                                                                                    \
  X(AttentionOp, attention)                                                                        \
  X(AttentionDecodeOp, attention_decode)                                                           \
  X(QkvTokenOp, qkv_token)                                                                         \
  X(AttentionTokenOp, attention_token)                                                             \
  X(ResidualOp, residual)                                                                          \
  X(GateUpOp, gate_up)                                                                             \
  X(LmHeadOp, lm_head)                                                                             \
  X(HeadLossOp, head_loss)                                                                         \
  X(NormDgradOp, norm_dgrad)                                                                       \
  X(DownDgradOp, down_dgrad)                                                                       \
  X(DgradOp, dgrad)                                                                                \
  X(AttentionBackwardOp, attention_backward)                                                       \
  X(RopeBackwardOp, rope_backward)                                                                 \
  X(WgradOp, wgrad)                                                                                \
  X(EmbedBackwardOp, embed_backward)                                                               \
  X(GradsFinishOp, grads_finish)                                                                   \
  X(AdamwOp, adamw)
#define BACKEND_OPERATION(type, name) type *name;

struct Backend {
  const char *name;      // "cpu", ...
  char description[512]; // hardware and libraries, for the start-up table
  char costs[128];       // what a choice in the configuration costs, for the same; empty: nothing
  size_t act_bytes, stat_bytes, grad_bytes, master_bytes; // size of one element of each class
  // The most parts that a producer leaves of a row statistic.
  struct {
    int64_t sumsq; // of a residual stream's row
    int64_t s;     // of the backward's row sums
  } most_parts;
  KernelKind kinds[OPERATION_COUNT]; // what runs each operation: for profilers
  // For kernels/record.c: the operation under way in model/forward.c or model/backward.c; and that
  // profilers are told of none, since nothing runs.
  Operation operation;
  bool silent;
  int64_t max_tokens;     // of OpsConfig
  size_t workspace_bytes; // what the backend holds for itself, its libraries' code included
  size_t granule;         // allocations take multiples of so many bytes; 0: what they ask for
  size_t memory_bytes;    // memory the machine or GPU has for all of it
  double peak_flops;      // dense matrix FLOP/s of the hardware at its best, 0 = not known

  void (*destroy)(Backend *be);

  // Bytes that the backend takes besides when it first sees this list of parameters (in refresh,
  // for one), of which rows, cols and norm are set. NULL: none.
  size_t (*list_bytes)(const ParamTensor *list, int count);

  // ---- Memory of the backend. alloc returns NULL when there is not enough.
  void *(*alloc)(Backend *be, size_t bytes);
  // Bytes taken on the GPU since the backend was opened, by the driver's count. NULL on the CPU.
  size_t (*memory_taken)(Backend *be);
  void (*release)(Backend *be, void *memory);
  void (*zero)(Backend *be, void *memory, size_t bytes);
  void (*write)(Backend *be, void *to, const void *from_host, size_t bytes);
  void (*read)(Backend *be, void *to_host, const void *from, size_t bytes);
  // master_t <-> host float
  void (*write_master)(Backend *be, master_t *to, const float *from_host, int64_t count);
  void (*read_master)(Backend *be, float *to_host, const master_t *from, int64_t count);
  void (*read_act)(Backend *be, float *to_host, const act_t *from, int64_t count);
  void (*read_grad)(Backend *be, float *to_host, const grad_t *from, int64_t count);

  // ---- The operations
  BACKEND_OPERATIONS(BACKEND_OPERATION)
#undef BACKEND_OPERATION

  // ---- The update. A step: set_hyper, step_begin, head_loss for every micro-batch, grads_finish,
  // adamw, step_end. A validation: step_begin, head_loss, step_end. Results are taken in the order
  // of the step_ends.
  void (*set_hyper)(Backend *be, const AdamW *hyper);
  void (*step_begin)(Backend *be);
  void (*step_end)(Backend *be); // puts the result on its way; at most MAX_RESULTS may be untaken
  StepResult (*step_result)(Backend *be); // waits for the oldest result and takes it
  // Writes the compute copies from the masters (after init or load).
  void (*refresh)(Backend *be, const ParamTensor *list, int count);
  void (*set_updates)(Backend *be, int64_t updates); // after load

  // A part of a step, which is the same at every call with this slot: the same operations (from
  // embed to adamw, and step_begin), pointers, shapes and flags.
  //     if (be->replay_begin(be, slot)) { operations; be->replay_end(be, slot); }
  // A GPU backend records what is launched the second time. From then on replay_begin launches the
  // record and returns false, so that the host's share of a step is one call. Records are forgotten
  // when memory is released, which they may point to.
  bool (*replay_begin)(Backend *be, ReplaySlot slot);
  void (*replay_end)(Backend *be, ReplaySlot slot);
  int steps_ahead; // steps worth asking for before the first one's result is taken: 1 on a GPU, 0
                   // on the CPU
  // Opens or closes the window that profilers record (cudaProfilerStart, cudaProfilerStop), once
  // the GPU has done all that it was asked for. Nothing on the CPU.
  void (*profile)(Backend *be, bool open);
  // Tracing of single steps: what is asked for between trace_begin and trace_end, both of which
  // wait until the GPU has done all that it was asked for. The activities are valid until the next
  // trace_begin. trace_open, which comes once and before them, fails where something is missing;
  // NULL, all three: there is no GPU to trace.
  int (*trace_open)(Backend *be, Error *err);
  int (*trace_begin)(Backend *be, Error *err);
  int (*trace_end)(Backend *be, Activities *activities, Error *err);
};

// Element `index` of an array of activations. NULL stays NULL.
static inline act_t *act_at(const Backend *be, const act_t *p, int64_t index) {
  return p ? (act_t *)((uintptr_t)p + (size_t)index * be->act_bytes) : NULL;
}

// The statistic of the rows from `row` on.
static inline RowStat row_stat_from(const Backend *be, RowStat s, int64_t row) {
  if (s.data) s.data = (stat_t *)((uintptr_t)s.data + (size_t)row * be->stat_bytes);
  return s;
}

// The CPU reference. NULL never: memory failure exits.
Backend *backend_cpu_create(const OpsConfig *config);
