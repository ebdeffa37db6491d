// What both GPU backends are made of: the GPU and its libraries, memory, replays, the update, and
// the operations that have nothing to fuse. A backend starts with a Cuda, sets the operations that
// it does itself, and knows its kernels; this part knows neither of them.
#pragma once
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

// Generation's attention shares a token's keys out over so many blocks a head.
enum { DECODE_SPLITS = 16 };
enum { MAX_ATTENTION_SHAPES = 8, MAX_WORKSPACES = 24, STAGES = 4, STAGE_BYTES = 1 << 20 };

// A part of a step on its way from launches to a graph.
typedef struct Recording {
  int64_t calls;
  cudaGraphExec_t graph; // from the second call on
} Recording;

// Attention as planned for one shape; a run has one, validation may add another.
typedef struct PlannedAttention {
  int64_t B, T;
  AttentionCudnn *plan;
  void *workspace; // its own: a recorded step goes on using it when another shape comes
} PlannedAttention;

typedef struct Cuda {
  Backend base;       // first: a Backend * of a GPU backend is a Cuda *
  OpsConfig config;   // its pointers are read while the backend is opened, and NULL from then on
  GpuOptions options; // the same
  Gpu gpu;
  Gemm gemm;
  void *workspaces[MAX_WORKSPACES]; // of cuda_take
  int workspace_count;
  float *rope;         // [max_positions, d/2, 2] cosine and sine
  float *row_loss;     // [max_tokens]
  float *decode_parts; // [DECODE_SPLITS, H, d + 2] of generation's attention
  void *embed_scratch; // of the embedding's backward
  StepState *state;    // on the device
  // Pinned memory. Results of steps lie there on their way to the host: put there by step_end,
  // taken in the same order. Writes go through the stages, so that they wait neither for the GPU
  // nor for the driver.
  struct {
    char stages[STAGES][STAGE_BYTES];
    StepState results[MAX_RESULTS];
  } * pinned;
  cudaEvent_t result_ready[MAX_RESULTS], stage_free[STAGES];
  int64_t published, taken, staged;
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
  Trace *trace; // NULL: nothing is traced
} Cuda;

static inline Cuda *cuda_of(Backend *be) {
  return (Cuda *)be;
}
static inline RowScale row_scale(const Cuda *c, RowStat sumsq) {
  return (RowScale){sumsq, c->config.D, (float)c->config.rms_norm_eps};
}

// ---- backend_cuda.c
// Opens into zeroed memory in which base.kinds already says what runs each operation. Prepares the
// GEMMs of config->calls that no fused kernel runs, and sets the operations that are declared here.
// After a failure, too, the caller calls cuda_destroy.
int cuda_open(Cuda *c, const OpsConfig *config, const GpuOptions *options, Error *err);
// Comes last, when all memory is taken and all kernels are loaded: waits for that, and fills in
// what the backend says of itself.
int cuda_ready(Cuda *c, const char *name, Error *err);
// Closes the backend and frees it: it starts with a Cuda and was allocated in one piece.
void cuda_destroy(Backend *be);
// Workspace: counted, cleared on the backend's stream, freed with the backend. NULL and a sentence
// when there is none left.
void *cuda_take(Cuda *c, size_t bytes, Error *err);

// ---- memory_cuda.c: the functions of kernels/ops.h
void cuda_set_memory(Cuda *c);
// Pinned memory and its events.
int cuda_memory_open(Cuda *c, Error *err);
void cuda_memory_close(Cuda *c);

// ---- attention_cuda.c
int cuda_attention_open(Cuda *c, Error *err);
void cuda_attention_close(Cuda *c);
AttentionOp cuda_attention;
AttentionBackwardOp cuda_attention_backward;

// ---- products_cuda.c
// out = A B (+ add, or NULL), A [M, K] and B [K, N] stored as the form says; out is not add.
void cuda_gemm(Cuda *c, GemmForm form, int64_t M, int64_t N, int64_t K, const act_t *A,
               const act_t *B, const act_t *add, act_t *out);
// Whether a product of M rows is a walk over the weights: one row, in a backend that only writes.
static inline bool cuda_one_row(const Cuda *c, int64_t M) {
  return M == 1 && !c->options.train;
}
DgradOp cuda_dgrad;
WgradOp cuda_wgrad;

// ---- embed.cu, decode.cu
EmbedOp cuda_embed;
EmbedBackwardOp cuda_embed_backward;
// Bytes of the embedding's backward's scratch.
size_t cuda_embed_scratch(int64_t max_tokens, int64_t V, int64_t D);
AttentionDecodeOp cuda_attention_decode;
AttentionTokenOp cuda_attention_token;

// ---- update_cuda.c
void cuda_set_update(Cuda *c);
// The tables of the list, built where the last call was for another.
const ParamTable *cuda_table(Cuda *c, const ParamTensor *list, int count);
void cuda_table_free(Cuda *c);

// ---- grads.cu, adamw.cu
GradsFinishOp cuda_grads_finish;
AdamwOp cuda_adamw;
void cuda_refresh(Backend *be, const ParamTensor *list, int count); // only the compute copies

// ---- replay_cuda.c
bool cuda_replay_begin(Backend *be, ReplaySlot slot);
void cuda_replay_end(Backend *be, ReplaySlot slot);
void cuda_replay_close(Cuda *c); // forgets what was recorded

#ifdef __cplusplus
}
#endif
