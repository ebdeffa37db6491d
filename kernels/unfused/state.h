// Inside the unfused backend: its state, and its operations by file.
#pragma once
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/cuda/trace.h"
#include "kernels/unfused/backend_unfused.h"
#include "kernels/unfused/unfused.h"

enum { MAX_ATTENTION_SHAPES = 8, STAGES = 4, STAGE_BYTES = 1 << 20 };

// A part of a step on its way from launches to a graph.
typedef struct Recording {
  int64_t calls;
  cudaGraphExec_t graph; // from the second call on
} Recording;

// Pinned memory that writes go through, so that they wait neither for the GPU nor for the driver.
typedef struct Staging {
  char *memory; // [STAGES, STAGE_BYTES]
  cudaEvent_t taken[STAGES];
  int64_t used;
} Staging;

// Attention as planned for one shape; a run has one, validation may add another.
typedef struct PlannedAttention {
  int64_t B, T;
  AttentionCudnn *plan;
  void *workspace; // its own: a recorded step goes on using it when another shape comes
} PlannedAttention;

typedef struct Unfused {
  Backend base; // first: a Backend * of this backend is an Unfused *
  OpsConfig config;
  UnfusedOptions options;
  Gpu gpu;
  Gemm gemm;
  float *rope; // [max_positions, d/2, 2]
  // [max_tokens, product_cols] results of down_dgrad's and norm_dgrad's GEMMs
  bf16_bits *product;
  int64_t product_cols;
  float *row_loss; // [max_tokens]
  void *embed_scratch;
  StepState *state; // on the device
  // Results of steps on their way to the host: put there by step_end, taken in the same order.
  StepState *results; // [MAX_RESULTS] pinned
  cudaEvent_t result_ready[MAX_RESULTS];
  int64_t published, taken;
  Staging staging;
  Recording recordings[REPLAY_SLOTS];
  // The parameters' tables, rebuilt when the list changes
  ParamTable table;
  char *table_memory;
  ParamTensor *table_list; // the list that they were built from
  int table_count;
  // cuDNN
  CudnnApi cudnn;
  CudnnHandle cudnn_handle;
  PlannedAttention attention[MAX_ATTENTION_SHAPES];
  int attention_count;
  size_t attention_workspace_bytes; // of all shapes
  Trace *trace;                     // NULL: nothing is traced
} Unfused;

static inline Unfused *unfused_of(Backend *be) {
  return (Unfused *)be;
}
static inline int64_t packed_width(const OpsConfig *c) {
  return (c->H + 2 * c->KV) * c->d;
}
static inline RowScale row_scale(const Unfused *u, const stat_t *sumsq) {
  return (RowScale){.sumsq = sumsq,
                    .D = u->config.D,
                    .eps = (float)u->config.rms_norm_eps,
                    .parts = (int32_t)u->base.parts.sumsq,
                    .stride = u->config.max_tokens};
}

// backend_unfused.c: opens into zeroed memory; on failure nothing is left open. The fused backend
// embeds an Unfused and replaces operations in u->base.
int unfused_open(Unfused *u, const OpsConfig *config, const UnfusedOptions *options, Error *err);
void unfused_close(Unfused *u);
// Workspace, counted and cleared on the backend's stream.
int unfused_take(Unfused *u, void **memory, size_t bytes, Error *err);
// Last, when all memory is taken and all kernels are loaded: fills in what the backend says of
// itself.
void unfused_describe(Unfused *u);

// forward_unfused.c, backward_unfused.c: kernels/ops.h's operations
void unfused_op_embed(Backend *, int64_t, const int32_t *, const act_t *, act_t *, stat_t *);
void unfused_op_qkv(Backend *, int64_t, int64_t, int64_t, const act_t *, const stat_t *,
                    const act_t *, act_t *);
void unfused_op_attention_decode(Backend *, int64_t, int64_t, const act_t *, act_t *);
void unfused_op_residual(Backend *, int64_t, int64_t, const act_t *, const act_t *, const act_t *,
                         act_t *, stat_t *);
void unfused_op_gate_up(Backend *, int64_t, const act_t *, const stat_t *, const act_t *, act_t *,
                        act_t *);
void unfused_op_lm_head(Backend *, int64_t, const act_t *, const stat_t *, const act_t *, act_t *);
void unfused_op_head_loss(Backend *, int64_t, const act_t *, const stat_t *, const act_t *,
                          const int32_t *, act_t *, double, stat_t *);
void unfused_op_norm_dgrad(Backend *, int64_t, int64_t, const act_t *, const act_t *, const act_t *,
                           const stat_t *, const stat_t *, int64_t, const act_t *, act_t *);
void unfused_op_down_dgrad(Backend *, int64_t, const act_t *, const act_t *, const act_t *,
                           const stat_t *, act_t *, stat_t *, act_t *);
void unfused_op_dgrad(Backend *, int64_t, int64_t, const act_t *, const act_t *, act_t *);
void unfused_op_rope_backward(Backend *, int64_t, int64_t, act_t *, const act_t *, const stat_t *,
                              stat_t *);
void unfused_op_wgrad(Backend *, int64_t, int64_t, int64_t, const act_t *, const act_t *, grad_t *,
                      bool);
void unfused_op_embed_backward(Backend *, int64_t, const int32_t *, const act_t *, grad_t *, bool);
// The training run's products, for gemm_prepare.
int unfused_prepare_gemms(Unfused *u, Error *err);

// attention_unfused.c
int unfused_attention_open(Unfused *u, Error *err);
void unfused_attention_close(Unfused *u);
void unfused_op_attention(Backend *, int64_t, int64_t, const act_t *, act_t *, stat_t *);
void unfused_op_attention_backward(Backend *, int64_t, int64_t, const act_t *, const act_t *,
                                   const stat_t *, const act_t *, act_t *);

// update_unfused.c
void unfused_op_step_begin(Backend *);
void unfused_op_grads_finish(Backend *, const ParamTensor *, int);
void unfused_op_set_hyper(Backend *, const AdamW *);
void unfused_op_adamw(Backend *, const ParamTensor *, int);
void unfused_op_step_end(Backend *);
void unfused_op_refresh(Backend *, const ParamTensor *, int);
StepResult unfused_op_step_result(Backend *);
void unfused_op_set_updates(Backend *, int64_t);
void unfused_table_free(Unfused *u);
size_t unfused_op_list_bytes(const ParamTensor *, int);

// replay_unfused.c
int unfused_staging_open(Unfused *u, Error *err);
void unfused_replay_close(Unfused *u);
void unfused_op_write(Backend *, void *, const void *, size_t);
void unfused_op_replay(Backend *, ReplaySlot, void (*)(void *), void *);
