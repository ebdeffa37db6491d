// The unfused CUDA backend: cuBLASLt GEMMs, cuDNN attention, and one kernel for everything around a
// GEMM.
#pragma once
#include "kernels/ops.h"

// Operations that another backend does: they need neither scratch nor timed products here.
typedef struct Elsewhere {
  bool qkv, out, mlp /* gate_up and down_dgrad */, down, qkv_dgrad, gate_up_dgrad, head_dgrad;
} Elsewhere;

typedef struct UnfusedOptions {
  bool train;      // false: forward only, no scratch of the backward
  bool grads_fp32; // gradients fp32 (several micro-batches a step) instead of bf16
  // Attention's backward gives the same bits every time, at a cost in memory and time.
  bool deterministic;
  bool graphs; // replay records what it launches in CUDA graphs
  // The run's micro-batch: attention and products of this shape are planned and timed at the start,
  // others when they first occur. 0: all when they first occur, and untimed.
  int64_t batch, seq;
  int64_t loss_tokens;    // rows of the logits at a time; divides batch x seq
  const char *gemm_cache; // as for gemm_open; NULL = the usual place
  // For kernels/fused, whose options these are, too.
  bool every_program; // also where its measurements say that the twin is faster; for tests
  Elsewhere elsewhere;
} UnfusedOptions;

// NULL and a sentence on failure: no GPU, too old a driver, no cuDNN, a head size it cannot do, no
// memory.
Backend *backend_unfused_create(const OpsConfig *config, const UnfusedOptions *options, Error *err);
