// The kernels of the unfused backend, as C sees them. Each only launches: on `stream`, without
// waiting, allocating or reading anything back, so that all of them can be captured in a CUDA
// graph.
//
// Names as in kernels/ops.h. All matrices are row-major and start at 16-byte boundaries; where a
// row's bytes are a multiple of 16 too, accesses are 16 bytes wide, otherwise slower kernels do the
// same. bf16 is rounded to nearest even; arithmetic and row statistics are fp32. The row statistics
// that kernels write have one part. Sums run in a fixed order.
#pragma once
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint16_t bf16_bits;

// RMSNorm's row scale r = rsqrt(sum over the parts of sumsq[m] / D + eps).
typedef struct RowScale {
  const float *sumsq; // [parts, stride]
  int64_t D;
  float eps;
  int32_t parts;
  int64_t stride; // at least M
} RowScale;

// A statistic of rows that was left in parts.
typedef struct RowSums {
  const float *data; // [parts, stride]
  int32_t parts;
  int64_t stride; // at least M
} RowSums;

// The packed row: H + KV heads of d that RoPE rotates, then KV that it does not.
typedef struct RopeShape {
  int64_t rotated;    // (H + KV) d
  int64_t R;          // (H + 2 KV) d
  int64_t d;          // a multiple of 8
  int64_t T, first;   // row m is at position first + m % T
  const float *table; // [max_positions, d/2, 2] cosine and sine
} RopeShape;

// What a step leaves on the device.
typedef struct StepState {
  double loss;
  double grad_norm;
  int64_t updates;
  int32_t applied;
  AdamW hyper;
  float clip, step_size, per_root; // factors of the running update, see adamw.cu
} StepState;

// ---- rows.cu
// x[m] = E[tokens[m]]; sumsq.   tokens [M], E [V, D] in; x [M, D], sumsq [M] out
void unfused_embed(int64_t M, int64_t D, const int32_t *tokens, const bf16_bits *E, bf16_bits *x,
                   float *sumsq, cudaStream_t stream);
// sumsq[m] = sum of squares of x's row.   x [M, D] in, sumsq [M] out
void unfused_row_sumsq(int64_t M, int64_t D, const bf16_bits *x, float *sumsq, cudaStream_t stream);
// dx[m] = from[m] - (r / D) s[m] x[m].   x, from [M, D], s in; dx [M, D] out, not from
void unfused_norm_backward(int64_t M, RowScale r, const bf16_bits *x, RowSums s,
                           const bf16_bits *from, bf16_bits *dx, cudaStream_t stream);
// x[m] *= r.   x [M, N] in, out
void unfused_scale_rows(int64_t M, int64_t N, RowScale r, bf16_bits *x, cudaStream_t stream);

// ---- rope.cu
// qkv[m] *= r, then q and k heads rotated.   qkv [M, R] in, out
void unfused_rope(int64_t M, RopeShape shape, RowScale r, bf16_bits *qkv, cudaStream_t stream);
// dqkv[m] *= r, rotated back; s = row sum of dqkv qkv.   qkv [M, R] in; dqkv [M, R] in, out; s [M]
// out
void unfused_rope_backward(int64_t M, RopeShape shape, RowScale r, const bf16_bits *qkv,
                           bf16_bits *dqkv, float *s, cudaStream_t stream);

// ---- swiglu.cu. z here is the product x W'^T before the row scale r, which these kernels apply as
// they read it: so the forward pass need not write z again. y = silu(r gate) * r up, in natural
// order.   z [M, 2F] in, y [M, F] out
void unfused_swiglu(int64_t M, int64_t F, RowScale r, const bf16_bits *z, bf16_bits *y,
                    cudaStream_t stream);
// dz' = r d(silu(gate) up) dy; s = row sum of dz' (r z).   z [M, 2F], dy [M, F] in; dz [M, 2F] out,
// may be z; s [M] out; y [M, F] out again, or NULL
void unfused_swiglu_backward(int64_t M, int64_t F, RowScale r, const bf16_bits *z,
                             const bf16_bits *dy, bf16_bits *dz, float *s, bf16_bits *y,
                             cudaStream_t stream);

// ---- loss.cu
typedef struct CrossEntropy {
  int64_t M, V;
  bf16_bits *logits;      // [M, V]; dlogits' take their place where s is not NULL
  const int32_t *targets; // [M]
  RowScale r;
  bool clusters; // the GPU has thread block clusters: compute capability 9.0 and later
  int multiprocessors;
  float grad_scale; // dlogits' = r * grad_scale * (softmax - onehot)
  float *row_loss;  // [M] out: log-sum-exp - target logit
  float *s;         // [M] out: row sum of dlogits' * logits, or NULL: the loss only
} CrossEntropy;
void unfused_cross_entropy(const CrossEntropy *args, cudaStream_t stream);
// state->loss += scale * sum of row_loss.   row_loss [M] in
void unfused_add_loss(int64_t M, const float *row_loss, double scale, StepState *state,
                      cudaStream_t stream);

// ---- embed_backward.cu
// Scratch of unfused_embed_backward, in bytes.
size_t unfused_embed_backward_scratch(int64_t max_tokens, int64_t V, int64_t D);
// dE[tokens[m]] += dx[m], every sum over ascending m; where not accumulate, other rows become 0.
//   tokens [M], dx [M, D] in; dE [V, D], fp32 or bf16
void unfused_embed_backward(int64_t M, int64_t V, int64_t D, const int32_t *tokens,
                            const bf16_bits *dx, void *dE, bool grads_fp32, bool accumulate,
                            void *scratch, cudaStream_t stream);

// ---- decode.cu
// One sequence of T positions, the last `rows` of which ask.   qkv [T, R] in, o [rows, H d] out
void unfused_attention_decode(int64_t T, int64_t rows, int64_t H, int64_t KV, int64_t d,
                              const bf16_bits *qkv, bf16_bits *o, cudaStream_t stream);

// ---- The parameters' tables, for grads.cu and adamw.cu: one launch serves all tensors.
typedef struct DeviceTensor {
  int64_t rows, cols;
  float *master, *m, *v;
  void *grad, *grad_folded;
  bf16_bits *compute, *folded;
  const float *norm;      // [cols] master of the norm weight folded in, or NULL
  void *norm_grad;        // [cols] its gradient, or NULL
  float *column_partials; // [row tiles, cols] of dW' * W, or NULL
  int64_t first_update;   // this tensor's first block in the update's launch
  int64_t first_tile;     // in the unfold's launch
  int64_t first_column;   // in the column sums' launch
  int32_t decay;
} DeviceTensor;

typedef struct ParamTable {
  DeviceTensor *tensors;                             // [count], norm weights first
  int32_t *update_owner, *tile_owner, *column_owner; // tensor of each block
  int64_t norm_blocks, update_blocks; // norm weights' blocks are the first norm_blocks
  int64_t tiles, columns;
  float *sumsq; // [tiles + columns] partial sums of squares of the gradients
  bool grads_fp32;
} ParamTable;

enum {
  UPDATE_BLOCK = 8192, // elements of a tensor that a block updates
  TILE_ROWS = 128,     // a block's share of a folded matrix ...
  TILE_COLS = 256,
  TILE_ELEMENTS = TILE_ROWS * TILE_COLS, // ... or of any other tensor
  COLUMN_BLOCK = 32                      // columns whose partial sums a block adds up
};

// ---- grads.cu
// dW' becomes dW, dwn is summed, and state->grad_norm taken.
void unfused_grads_finish(const ParamTable *table, StepState *state, cudaStream_t stream);

// ---- adamw.cu
void unfused_step_begin(StepState *state, cudaStream_t stream);
void unfused_set_updates(int64_t updates, StepState *state, cudaStream_t stream);
// For the updates that follow. Outside of a captured graph, which would freeze the values.
void unfused_write_hyper(const AdamW *hyper, StepState *state, cudaStream_t stream);
void unfused_adamw(const ParamTable *table, StepState *state, cudaStream_t stream);
// Only the compute copies.
void unfused_refresh(const ParamTable *table, StepState *state, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
