// The activations of a run: what each buffer is, its shape, and how long it lives. The memory plan
// is the sum of this table and of the parameters' table; it is printed before anything is
// allocated.
#pragma once
#include "kernels/ops.h"
#include "model/config/config.h"

// Shapes of a run: what the tables need besides the model.
typedef struct RunShape {
  int64_t batch;       // B, sequences in a micro-batch
  int64_t seq;         // T
  int64_t loss_chunks; // divides batch * seq in training
  Recompute recompute; // what the backward makes again instead of keeping
  bool train;          // false: forward only, nothing kept for a backward
  int64_t context;     // positions that a generator beside it holds, 0 = there is none
  bool fp8;            // products multiply in FP8
} RunShape;

// The dimensions of kernels/ops.h, of a micro-batch.
typedef struct Sizes {
  int64_t B, T, M, D, F, H, Hd, R, V, L;
  int64_t padded_V;  // of padded_vocab
  int64_t head_rows; // rows of logits that exist together: M / loss_chunks, rounded up
} Sizes;
Sizes model_sizes(const ModelConfig *model, const RunShape *shape);

// What one layer leaves for its backward. Of FP8 copies the layers keep those that weight gradients
// read (by_col); by_row is used up in the forward, and all of a size share one.
typedef struct LayerActs {
  Operand x;        // [M, D]  residual stream into the layer
  RowStat x_sumsq;  // its rows' sums of squares
  act_t *qkv;       // [M, R]  after RoPE
  act_t *cache;     // [context, R] generation: qkv of all positions so far; NULL in training
  Operand o;        // [M, H d]
  stat_t *lse;      // [B, H, T]
  Operand x1;       // [M, D]  after attention
  RowStat x1_sumsq; // its rows' sums of squares
  act_t *z;         // [M, 2F] gate and up pairs
  Operand y;        // [M, F]
} LayerActs;

typedef struct Acts {
  LayerActs *layers;   // [L]
  Operand x_final;     // [M, D]
  RowStat final_sumsq; // its rows' sums of squares
  act_t *logits;       // [M / chunks, V]
  HeadGradient head;   // of a chunk; in bf16 p takes the logits' place
  // Backward, shared by all layers. The scalings are those of the layer under way.
  Operand dx;         // [M, D]  gradient of the residual stream where a layer starts
  Operand dx1;        // [M, D]  and after attention; in bf16 the same memory
  act_t *da;          // [M, H d] gradient of the attention output
  act_t *dqkv;        // [M, R]
  Operand dz;         // [M, 2F] FP8 copies; in bf16 the gradient of z takes z's place
  Operand dqkv_prime; // [M, R]  times r; in bf16 in dqkv
  RowStat s;          // row sums for RMSNorm's backward
  // The micro-batch
  int32_t *tokens;  // [M]
  int32_t *targets; // [M]
} Acts;

enum { PLAN_MAX_ITEMS = 40 };

// One line of the memory plan.
typedef struct PlanItem {
  const char *name;  // "z"
  const char *shape; // "L x [M, 2F]"
  size_t bytes;      // all layers together
} PlanItem;

typedef struct MemoryPlan {
  int count;
  PlanItem items[PLAN_MAX_ITEMS];
  size_t params_bytes, grads_bytes, acts_bytes; // the three allocations
  size_t sampler_bytes;                         // the generator's
  size_t workspace_bytes; // what the backend holds for itself, and what allocations are rounded by
  size_t total_bytes;
} MemoryPlan;

// Bytes of everything a run allocates on this backend.
void memory_plan(MemoryPlan *plan, const ModelConfig *model, const RunShape *shape,
                 const Backend *be);
void memory_plan_print(const MemoryPlan *plan);

// Whether the loss' chunks add up lm_head's gradient in memory of their own, finer than the
// gradient's (wgrad_part). It lies where the other gradients come later: not in a micro-batch whose
// gradients add to those of an earlier one.
static inline bool chunks_apart(const RunShape *shape, const Backend *be) {
  return shape->train && shape->loss_chunks > 1 && be->rounds_gradients;
}

// Each lays one class of buffers out in a block, sets the pointers, and books them in the plan
// (NULL: nowhere). With block = NULL they only count. They return the bytes used. Gradients exist
// in a training run only.
size_t params_layout(ParamTensor *tensors, const ModelConfig *model, const RunShape *shape,
                     const Backend *be, char *block, MemoryPlan *plan);
// tensors: as params_layout left them.
size_t grads_layout(ParamTensor *tensors, const ModelConfig *model, const RunShape *shape,
                    const Backend *be, char *block, MemoryPlan *plan);
// acts->layers: [num_hidden_layers], the caller's.
size_t acts_layout(Acts *acts, const ModelConfig *model, const RunShape *shape, const Backend *be,
                   char *block, MemoryPlan *plan);
// The buffers of a generator with shape->context positions: acts_layout's for shape->seq rows, and
// a cache of qkv in each layer.
size_t sampler_layout(Acts *acts, const ModelConfig *model, const RunShape *shape,
                      const Backend *be, char *block);
// The shape of a generator beside a run of `shape`.
RunShape sampler_shape(const RunShape *run, int64_t context, const Backend *be);
