// The unfused CUDA backend: cuBLASLt GEMMs, cuDNN attention, and one kernel for everything around a
// GEMM.
#pragma once
#include "kernels/ops.h"

typedef struct UnfusedOptions {
  bool train;      // false: forward only, no scratch of the backward
  bool grads_fp32; // gradients fp32 (several micro-batches a step) instead of bf16
  // Attention's backward gives the same bits every time, at a cost in memory and time.
  bool deterministic;
  // The run's micro-batch: attention and products of this shape are planned and timed at the start,
  // others when they first occur. 0: all when they first occur, and untimed.
  int64_t batch, seq;
  int64_t loss_tokens;    // rows of the logits at a time; divides batch x seq
  const char *gemm_cache; // as for gemm_open; NULL = the usual place
} UnfusedOptions;

// NULL and a sentence on failure: no GPU, too old a driver, no cuDNN, a head size it cannot do, no
// memory.
Backend *backend_unfused_create(const OpsConfig *config, const UnfusedOptions *options, Error *err);

// lm_head, loss and loss_backward in one, which saves passes over the logits: adds scale * sum over
// m of (log-sum-exp - target logit) to the running loss, and where s is not NULL leaves dlogits'
// and s. lm_head scales the logits by r, which is a pass of its own, for generation alone.
//   x [M, D] in, sumsq in, W [V, D] in (folded), targets [M] in, logits [M, V] out: dlogits' with
//   s, else scratch
void unfused_head_loss(Backend *be, int64_t M, const act_t *x, const stat_t *sumsq, const act_t *W,
                       const int32_t *targets, act_t *logits, double scale, stat_t *s);

// Where the hyperparameters must change inside a captured step: adamw with hyper NULL takes those
// of the last call.
void unfused_set_hyper(Backend *be, const AdamW *hyper);
