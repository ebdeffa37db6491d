// The kernels that both GPU backends launch, as C sees them. Each launch_ function only launches:
// on `stream`, without waiting, allocating or reading anything back, so that all of them can be
// captured in a CUDA graph. The backends' own kernels (kernels/unfused, kernels/fused) follow this
// rule, too.
//
// Names as in kernels/ops.h; activations are bf16, rounded to nearest even, arithmetic and row
// statistics fp32. All matrices are row-major and start at 16-byte boundaries; where a row's bytes
// are a multiple of 16 too, accesses are 16 bytes wide, otherwise slower kernels do the same. Sums
// run in a fixed order.
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>
#include "base/bf16.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// Scales of FP8 copies, on the device. A tensor's copies hold scale * value, saturated. The scale
// is a power of two and delayed: it follows from the largest values of earlier steps, so that an
// epilogue knows it before it has seen the tensor. A kernel that writes copies also finds the
// largest value, and all scales are updated once a step.
enum { MAXIMA = 32 }; // words that blocks spread their largest values over: a warp's lanes

typedef struct Scaling {
  float inverse, scale; // 1 / scale, which cuBLASLt wants at a 16-byte boundary, and what copies
                        // were multiplied by: both powers of two. 0: none
  int32_t format;       // Fp8Format
  int32_t fixed;        // the scale never changes: maxima are read for saturation only
  float history[SCALE_HISTORY]; // largest values of the last steps, newest first; 0 = none
  uint32_t maxima[MAXIMA]; // bits of the largest |value| of the running step, before `scale`; the
                           // largest of them counts. Bits of floats >= 0 compare as integers.
} Scaling;

// RMSNorm's row scale r = rsqrt(sumsq of the row / D + eps). Rows are multiplied by r / q.
typedef struct RowScale {
  RowStat sumsq;
  int64_t D;
  float eps;
  const float *q; // [M] row_scale of an Operand with FP8 copies; NULL: 1
} RowScale;

// Kernels that write FP8 copies share a row out among blocks, and each writes a part of its sum.
enum { COPY_WALK = 1024 }; // columns of a block
static inline int64_t copy_parts(int64_t N) {
  return (N + COPY_WALK - 1) / COPY_WALK;
}

// The results and state of a step, on the device.
typedef struct StepState {
  double loss, grad_norm;
  int64_t applied;                    // 0 or 1
  int32_t saturated, saturated_first; // as in StepResult
  int64_t updates; // this and the next fields outlive the step; those before start at 0
  AdamW hyper;
  float scale, step_size, per_root; // factors of the running update, see optimizer.cu
} StepState;

// ---- scales.cu
// Called once a step, before copies are written with the new scales: stores the largest values of
// the step in the histories, and computes the delayed scales from those (fp8_counted; a parameter's
// as fp8_weight_reach says, since its copies are written after the update). A largest value of 0 is
// ignored in other tensors: no copies were written. A skipped update (state->applied) changes no
// scale: its largest values are dropped, except for those of the first `parameters` tensors, whose
// copies stay. Writes into the state which tensors had values beyond their scale's reach. all
// [count] in, out
void launch_scalings_update(Scaling *all, int parameters, int count, StepState *state,
                            cudaStream_t stream);
// Sets the scale of a delayed scaling from the largest value so far, which is kept.
void launch_scaling_set(Scaling *scaling, cudaStream_t stream);

// ---- draw.cu
// Any kernel, to ask for which compute capability this program's kernels were compiled.
const void *cuda_any_kernel(void);
// Row places[n] of `to` becomes deviation * rng_normal(key, (first + n) cols + k), k < cols.
//   to [.., cols] out, fp32 or bf16, places [rows] in, pinned on the host
void launch_draw(master_t *to, bool bf16, const int32_t *places, int64_t first, int64_t rows,
                 int64_t cols, uint64_t key, double deviation, cudaStream_t stream);

// ---- documents.cu
// Of windows of T rows: 0 where a row's key is of its own document or behind it, else so low that
// the key has no weight.
//   first [M] in, the first row of the row's document, counted from its window's; bias bf16 [M, T]
//   out
void launch_document_bias(int64_t M, int64_t T, const int32_t *first, void *bias,
                          cudaStream_t stream);

// ---- loss.cu
typedef struct CrossEntropy {
  int64_t M, V, stride;   // of the logits' rows: padded_vocab
  act_t *logits;          // [M, V], before r; overwritten by dlogits' where s is not NULL
  const int32_t *targets; // [M]; negative: the row does not count
  RowScale r;
  bool clusters; // the kernels know thread block clusters: compiled for 9.0 or later
  int multiprocessors;
  float grad_scale; // dlogits' = r * grad_scale * (softmax - onehot)
  float *row_loss;  // [M] out: log-sum-exp - target logit, or 0
  float *s;         // [M] out: row sum of dlogits' * logits, or NULL: the loss only
} CrossEntropy;
void launch_cross_entropy(const CrossEntropy *args, cudaStream_t stream);
// Of row_loss, s and the like nothing is read.   scores [M] out, of rows that count
void launch_score_rows(const CrossEntropy *args, RowScore *scores, cudaStream_t stream);
// state->loss += scale * sum of row_loss.   row_loss [M] in
void launch_add_loss(int64_t M, const float *row_loss, double scale, StepState *state,
                     cudaStream_t stream);

// ---- The parameters' tables, for optimizer.cu and momentum.cu: one launch serves all tensors.

// A MatrixPart of a tensor, and the place where it becomes orthogonal.
typedef struct DevicePart {
  int64_t first, rows;         // row i is the tensor's row first + (i << shift)
  int32_t shift, slot, slots;  // slot: which of the tensor's parts, which are so many
  float rate;                  // of the update, as a multiple of the learning rate
  bf16_bits *direction;        // [rows, cols] what Muon makes orthogonal, and then its result
  float *factor;               // of both: 1 / |u| of the former
  int64_t first_block, blocks; // of the tensor, in the launch over the momentum
} DevicePart;

typedef struct DeviceTensor {
  int64_t rows, cols;
  master_t *master; // fp32 of a vector
  moment_t *m, *v;
  grad_t *grad, *grad_folded;
  bf16_bits *compute, *folded; // the bf16 copies; NULL where the master is the compute weight
  uint8_t *by_row, *by_col;    // the e4m3 copies, of the matrix times norm if it has one
  int64_t stride;              // as in Operand
  Scaling *scaling;
  const float *norm;      // [cols] master of the norm weight folded in, or NULL, as the next three
  float *norm_before;     // [cols] its copy from grads_finish, for adamw: the update changes it
  grad_t *norm_grad;      // [cols] its gradient
  float *column_partials; // [row tiles, cols] of dW' * W
  int64_t first_update;   // this tensor's first block of the update
  int64_t first_tile;     // in the launch over the gradients
  int64_t first_column;   // in the column sums' launch
  int64_t first_momentum; // in the launch over Muon's momentum
  const DevicePart *parts;
  int32_t part_count; // 0: AdamW updates the tensor
  int32_t vector;     // 0 or 1, as in ParamTensor
  int32_t index;      // in the list, which has another order
} DeviceTensor;

// A block of a launch, by its number among all of the launch, and its tensor.
typedef struct LaunchBlock {
  int32_t tensor, block;
} LaunchBlock;

typedef struct ParamTable {
  DeviceTensor *tensors; // [count], vectors first
  // Blocks as they are launched: [update_blocks], [tiles], [momentum_blocks]
  LaunchBlock *update_order, *gradient_order, *momentum_order;
  int32_t *column_owner; // tensor of each block
  // Blocks of the update: those of vectors, which are norm weights, end at vector_blocks, those of
  // other tensors without FP8 copies at plain_blocks, and the rest are tiles.
  int64_t vector_blocks, plain_blocks, update_blocks;
  int64_t tiles, columns;
  DevicePart *parts; // Muon's, of all tensors
  int64_t momentum_blocks, part_count;
  float *momentum_sums; // [momentum_blocks, MOST_PARTS] sums of squares of each part's share
  float *sumsq;         // [tiles + columns] partial sums of squares of the gradients
  bool grads_fp32;
} ParamTable;

enum {
  UPDATE_BLOCK = 8192, // elements of a tensor that a block updates, or whose momentum it does ...
  WEIGHT_TILE = 128,   // ... or rows and columns, where it writes FP8 copies
  TILE_ROWS = 128,     // a block's share of a folded matrix ...
  TILE_COLS = 256,
  TILE_ELEMENTS = TILE_ROWS * TILE_COLS, // ... or of any other tensor
  COLUMN_BLOCK = 32                      // columns whose partial sums a block adds up
};

#ifdef __cplusplus
}
#endif
