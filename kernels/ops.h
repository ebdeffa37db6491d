// The interface between the model and what runs it: a function for each GEMM with everything around
// it. The model (model/forward.c, model/backward.c) is
// written once, over this; kernels/cpu implements it in plain C as the reference.
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
// Element order: columns 2p and 2p+1 of z are gate and up of one feature (layout_packed_row in
// model/packing.h says which), and q and k are stored so that RoPE rotates columns (2j, 2j+1) of a
// head. y and v are in natural order.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "kernels/activity.h"
#include "kernels/operations.h"

// Storage classes. Opaque to the model, which only passes pointers on.
typedef void act_t;  // activations and compute weights: bf16 on a GPU, real (fp32; fp64 in test
                     // builds) on the CPU
typedef void stat_t; // row statistics, log-sum-exp: fp32 on a GPU, real on the CPU
typedef void grad_t; // gradients of parameters: bf16 on a GPU, fp32 when micro-batches add up; real
                     // on the CPU
typedef void master_t; // master weights and AdamW moments: fp32 on a GPU, real on the CPU

// What a backend must know before any memory is allocated. All sizes are final for its life.
typedef struct OpsConfig {
  int64_t D, F, H, KV, d, V;
  int64_t max_tokens;    // largest M of any call
  int64_t max_positions; // RoPE positions 0 .. max_positions - 1 occur
  double rms_norm_eps;
  const double
      *inv_freq; // [d/2], RoPE angle per position and pair, llama3 scaling included; copied
  int threads;   // CPU threads; 0 = all
} OpsConfig;

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
  REPLAY_FIRST_MICRO_BATCH, // forward and backward that start the gradients
  REPLAY_NEXT_MICRO_BATCH,  // that add to them
  REPLAY_UPDATE,
  REPLAY_VALIDATION,
  REPLAY_SLOTS
} ReplaySlot;

typedef struct Backend Backend;

struct Backend {
  const char *name;      // "cpu", ...
  char description[512]; // hardware and libraries, for the start-up table
  char costs[128];       // what a choice in the configuration costs, for the same; empty: nothing
  size_t act_bytes, stat_bytes, grad_bytes, master_bytes; // size of one element of each class
  // A row statistic of kind k is [parts_k, max_tokens]: the producer leaves that many partial
  // results a row, and the consumer adds them up. Row m of a call is element m of each part, so a
  // pointer to row m0 serves the rows from m0 on.
  struct {
    int64_t sumsq;   // sums of squares of a residual stream's row [D]
    int64_t gate_up; // s at z [2F]
    int64_t qkv;     // s at qkv [R]
    int64_t logits;  // s at the logits [V]
  } parts;
  KernelKind kinds[OPERATION_COUNT]; // what runs each operation: for profilers
  int64_t max_tokens;                // of OpsConfig
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
  // Bytes taken on the GPU since the backend was opened, by the driver's count; 0 on the CPU.
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

  // ---- Forward
  // x[m] = E[tokens[m]]; sumsq of x.
  //   tokens [M] int32 in, E [V, D] in, x [M, D] out, sumsq [parts.sumsq, max_tokens] out
  void (*embed)(Backend *be, int64_t M, const int32_t *tokens, const act_t *E, act_t *x,
                stat_t *sumsq);
  // qkv = r * (x W'^T); q and k heads rotated by RoPE at position first + m % T.
  //   x [M, D] in, sumsq in, W [R, D] in (folded), qkv [M, R] out
  void (*qkv)(Backend *be, int64_t M, int64_t T, int64_t first, const act_t *x, const stat_t *sumsq,
              const act_t *W, act_t *qkv);
  // Causal softmax(q k^T / sqrt(d)) v, grouped queries, per sequence of T rows.
  //   qkv [B, T, R] in, o [B, T, H d] out, lse [B, H, T] out, natural log, of the scaled scores
  void (*attention)(Backend *be, int64_t B, int64_t T, const act_t *qkv, act_t *o, stat_t *lse);
  // The same for generation: one sequence, and only its last `rows` positions ask.
  //   qkv [T, R] in (the KV cache), o [rows, H d] out
  void (*attention_decode)(Backend *be, int64_t T, int64_t rows, const act_t *qkv, act_t *o);
  // out = x + a W^T; sumsq of out as stored. Serves the attention output and the MLP's down
  // projection.
  //   a [M, K] in, W [D, K] in, x [M, D] in, out [M, D] out (not x), sumsq [parts.sumsq,
  //   max_tokens] out
  void (*residual)(Backend *be, int64_t M, int64_t K, const act_t *a, const act_t *W,
                   const act_t *x, act_t *out, stat_t *sumsq);
  // z = r * (x W'^T); y = silu(gate) * up over the column pairs of z. z is for down_dgrad alone,
  // which knows whether this backend stored it with or without r.
  //   x [M, D] in, sumsq in, W [2F, D] in (folded), z [M, 2F] out, y [M, F] out
  void (*gate_up)(Backend *be, int64_t M, const act_t *x, const stat_t *sumsq, const act_t *W,
                  act_t *z, act_t *y);
  // logits = r * (x W'^T), for generation.
  //   x [M, D] in, sumsq in, W [V, D] in (folded), logits [M, V] out
  void (*lm_head)(Backend *be, int64_t M, const act_t *x, const stat_t *sumsq, const act_t *W,
                  act_t *logits);
  // The same for training and validation, with the loss: adds scale * sum over m of (log-sum-exp -
  // target's logit) to the loss of the running step. Where s is not NULL the gradient follows at
  // once, since the logits pass by only once: logits become dlogits' = r * scale * (softmax -
  // onehot(target)), and s their row sums.
  //   x [M, D] in, sumsq in, W [V, D] in (folded), targets [M] int32 in,
  //   logits [M, V] out: dlogits', without s scratch; s [parts.logits, max_tokens] out or NULL
  void (*head_loss)(Backend *be, int64_t M, const act_t *x, const stat_t *sumsq, const act_t *W,
                    const int32_t *targets, act_t *logits, double scale, stat_t *s);

  // ---- Backward
  // dx = dz' W' - (r / D) s x + residual. Serves lm_head, gate_up and qkv.
  //   dz [M, N] in, W [N, D] in (folded), x [M, D] in, sumsq of x in, s [parts_s, max_tokens] in,
  //   residual [M, D] in or NULL (none), dx [M, D] out (may be residual itself)
  void (*norm_dgrad)(Backend *be, int64_t M, int64_t N, const act_t *dz, const act_t *W,
                     const act_t *x, const stat_t *sumsq, const stat_t *s, int64_t parts_s,
                     const act_t *residual, act_t *dx);
  // SwiGLU backward on top of down's dgrad: dy = dx W; dz' = r * (dy d(silu(gate) up)); s = row sum
  // of dz' z.
  //   dx [M, D] in, W [D, F] in, z [M, 2F] in, sumsq of gate_up's x in,
  //   dz [M, 2F] out (may be z), s [parts.gate_up, max_tokens] out, y [M, F] out again, or NULL
  //   where the forward's is kept
  void (*down_dgrad)(Backend *be, int64_t M, const act_t *dx, const act_t *W, const act_t *z,
                     const stat_t *sumsq, act_t *dz, stat_t *s, act_t *y);
  // da = dy W, the plain dgrad of the attention output projection.
  //   dy [M, D] in, W [D, K] in, da [M, K] out
  void (*dgrad)(Backend *be, int64_t M, int64_t K, const act_t *dy, const act_t *W, act_t *da);
  //   qkv, o, lse as attention left them, do_ [B, T, H d] in, dqkv [B, T, R] out
  void (*attention_backward)(Backend *be, int64_t B, int64_t T, const act_t *qkv, const act_t *o,
                             const stat_t *lse, const act_t *do_, act_t *dqkv);
  // Rotates dq and dk back and multiplies all by r; s = row sum of dqkv' qkv (a rotation keeps the
  // product).
  //   dqkv [M, R] in, out; qkv [M, R] in; sumsq of qkv's x in; s [parts.qkv, max_tokens] out
  void (*rope_backward)(Backend *be, int64_t M, int64_t T, act_t *dqkv, const act_t *qkv,
                        const stat_t *sumsq, stat_t *s);
  // dW = dz^T x, or += where accumulate.
  // Where gradients are bf16 every addition rounds: C chunks of the loss leave lm_head's with an L2
  // error of 0.25 % (C = 2), 0.4 % (8), 1 % (64) where one chunk leaves 0.17 % (simulated, parts
  // independent). In fixtures bf16 activations alone cost gradients 1 to 5 %.
  //   dz [M, N] in, x [M, K] in, dW [N, K] out or in, out
  void (*wgrad)(Backend *be, int64_t M, int64_t N, int64_t K, const act_t *dz, const act_t *x,
                grad_t *dW, bool accumulate);
  // dE[tokens[m]] += dx[m], in a fixed order; where not accumulate, dE is overwritten (zero where
  // no token points).
  //   tokens [M] int32 in, dx [M, D] in, dE [V, D]
  void (*embed_backward)(Backend *be, int64_t M, const int32_t *tokens, const act_t *dx, grad_t *dE,
                         bool accumulate);

  // ---- The update. A step: set_hyper, step_begin, head_loss for every micro-batch, grads_finish,
  // adamw, step_end. A validation: step_begin, head_loss, step_end. Results are taken in the order
  // of the step_ends.
  void (*set_hyper)(Backend *be, const AdamW *hyper);
  void (*step_begin)(Backend *be);
  // Folded gradients become true ones (dW and dwn above), and the norm over all gradients is taken.
  void (*grads_finish)(Backend *be, const ParamTensor *list, int count);
  // Decoupled AdamW on all tensors with the parameters of the last set_hyper, norm weights first,
  // then the compute copies. Where the loss or the gradient norm is not finite it changes nothing
  // and says so in the result.
  void (*adamw)(Backend *be, const ParamTensor *list, int count);
  void (*step_end)(Backend *be); // puts the result on its way; at most MAX_RESULTS may be untaken
  StepResult (*step_result)(Backend *be); // waits for the oldest result and takes it
  // Writes the compute copies from the masters (after init or load).
  void (*refresh)(Backend *be, const ParamTensor *list, int count);
  void (*set_updates)(Backend *be, int64_t updates); // after load

  // Calls issue(context), which may do nothing but call operations above (from embed to adamw),
  // with the same pointers, shapes and flags at every call with this slot. A GPU backend records
  // what it launches the second time, and from then on replays the record, so that the host's share
  // of a step is one call.
  void (*replay)(Backend *be, ReplaySlot slot, void (*issue)(void *context), void *context);
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

// The CPU reference. NULL never: memory failure exits.
Backend *backend_cpu_create(const OpsConfig *config);
