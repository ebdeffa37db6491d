// Causal grouped-query attention on the GPU through cuDNN, for one shape.
//
// Plans are made once, at creation; a call afterwards only launches, on the stream of the handle,
// and can be captured into a CUDA graph.
#pragma once
#include "kernels/cuda/attention_choices.h"

typedef struct AttentionCudnn AttentionCudnn;

typedef struct AttentionOptions {
  bool deterministic; // the backward gives the same bits in every run
  bool forward_only;  // no backward: for validation and generation
  // The backward's other form is compiled and timed, too: kept where it is faster and allowed, else
  // there for comparison.
  bool both_forms;
  // Which of the configurations that cuDNN offers: the k-th, or one of the values below.
  int forward_config, backward_config;
  // What is known already, and takes over what is found; NULL: everything is timed anew. A choice
  // that cuDNN does not offer as it did, or that does not compile any more, counts as unknown.
  AttentionChoices *choices;
} AttentionOptions;
enum {
  // Times all on scratch memory, which it frees again, and keeps the fastest; the first that
  // compiles where there is no room for the scratch.
  ATTENTION_FASTEST = -1,
  // The first that compiles. Two runs make the same choice, as `deterministic` needs.
  ATTENTION_FIRST = -2
};

// What cuDNN offered for one direction, for the start-up table.
typedef struct AttentionConfig {
  int64_t engine, kernel; // cuDNN's ids
  bool deterministic;     // of a backward: its form
  size_t workspace;
  double plan_seconds; // time to compile, 0 = not tried
  double milliseconds; // median of one call, 0 = not timed
  bool chosen;
} AttentionConfig;

// cuDNN's handle (cudnnCreate) with its stream set; it must outlive the object, as must api. NULL
// and a sentence on failure. Waits for the device; may not be called during a capture.
AttentionCudnn *attention_cudnn_create(const CudnnApi *api, CudnnHandle handle,
                                       struct CUstream_st *stream, const AttentionShape *shape,
                                       const AttentionOptions *options, Error *err);
void attention_cudnn_destroy(AttentionCudnn *a); // NULL is fine

// Points *list at the configurations; lives as long as the object.
int attention_cudnn_configs(const AttentionCudnn *a, AttentionDirection direction,
                            const AttentionConfig **list);

// What was chosen for one direction; lives as long as the object.
const AttentionChoice *attention_cudnn_choice(const AttentionCudnn *a,
                                              AttentionDirection direction);

// Device memory that a call needs, 256-byte aligned. Its contents are free between calls, so that
// all layers share it.
size_t attention_cudnn_workspace(const AttentionCudnn *a, AttentionDirection direction);

// What a call reads and writes, all of it 16-byte aligned; the forward knows the first three alone.
typedef struct AttentionTensors {
  const void *qkv; // bf16 [B, T, R]
  void *o;         // bf16 [B, T, H, d], left by the forward
  float *lse;      // fp32 [B, H, T], likewise
  const void *do_; // bf16 [B, T, H, d]
  void *dqkv;      // bf16 [B, T, R], left by the backward
  void *workspace;
} AttentionTensors;
int attention_cudnn_run(const AttentionCudnn *a, AttentionDirection direction,
                        const AttentionTensors *tensors, Error *err);
