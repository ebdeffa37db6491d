// The operands of operations: classes of memory, row statistics, operands of products with
// their FP8 copies and scales, and parameters.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/formats.h"
#include "kernels/operations.h"

typedef struct Backend Backend;

// Storage classes. The model only passes pointers on; the types are incomplete, so that arguments
// of different classes cannot be swapped.
typedef struct Activation act_t; // activations and compute weights: bf16 on a GPU, real (fp32; fp64
                                 // in test builds) on the CPU
typedef struct Fp8Copy fp8_t;    // FP8 copies of either: a byte on a GPU, rounded reals on the CPU
typedef struct Statistic stat_t; // row statistics, sums: fp32 on a GPU, real on the CPU
typedef struct Gradient grad_t;  // gradients of parameters: bf16 on a GPU, fp32 there when
                                 // micro-batches add up; real on the CPU
typedef struct Master master_t;  // master weights: on a GPU fp32, matrices' also bf16; real on the
                                 // CPU
typedef struct Moment moment_t;  // AdamW's moments: fp32 or bf16 on a GPU, real on the CPU

// A statistic of rows: for each row `parts` partial sums, which its consumer adds up in their
// order. A producer writes one part per tile of columns and sets `parts`; the model sets stride and
// allocates the memory.
typedef struct RowStat {
  stat_t *data;   // [parts, stride], room for Spec.most_parts
  int64_t stride; // rows from one part to the next, at least M
  int32_t parts;
} RowStat;

// A matrix [rows, cols] that products read: an activation, a gradient or a weight. Products read
// its FP8 copies where it has them, and multiply in FP8 where both operands have copies; other
// operands are read in bf16, or widened to it. The model decides which operands have copies. Copies
// hold scale * value, where scale is a power of two: the tensor's scale times the row's. Their
// order and rounding are in kernels/formats.h. An operation writes every part of its output operand
// that has memory.
typedef struct Operand {
  act_t *data;        // [rows, cols]; NULL where only products read the tensor
  fp8_t *by_row;      // [rows, cols], for products that sum over columns
  fp8_t *by_col;      // [cols, stride], for products that sum over rows; NULL where there are none
  int64_t stride;     // a multiple of FP8_GROUP, at least rows
  int64_t row_stride; // of data and by_row: elements from one row to the next; 0: cols
  stat_t *row_scale;  // [rows], q of the residual stream's rows (see below); else NULL
  int scaling;        // the tensor's index in Spec.scalings
  bool fp8;           // has copies, also in a model without memory
} Operand;

// An operand without copies.
static inline Operand operand_of(act_t *data) {
  const Operand x = {data, NULL, NULL, 0, 0, NULL, 0, false};
  return x;
}

// How a tensor's copies are scaled. A delayed scale keeps the largest value of the last
// SCALE_HISTORY steps inside the format, so that no pass over the tensor has to find its largest
// value first; a weight's scale leaves room for the update, too. A fixed scale never changes.
//
// The residual stream's rows differ, and its scale needs no history: row m is multiplied by
// q = 2^floor(log2 r_prev), r_prev RMSNorm's r of the row one addition earlier (of the embedding:
// of itself). Its consumer multiplies by r / q. Backward, with dz'' = (r / q) dz and s = sum over a
// row of dz'' z:
//     dx = q (dz'' W') - (r / D) q s x        dW' = dz''^T (q x)
typedef struct ScalingKind {
  Fp8Format format;
  float fixed; // the fixed scale; 0 for a delayed one
} ScalingKind;

enum { SCALE_HISTORY = 16 };

// The state of a scaling in a checkpoint. A scale of 0 is not set yet.
typedef struct ScalingState {
  float scale;
  float history[SCALE_HISTORY]; // largest values of the last steps, newest first
} ScalingState;

// head_loss writes this for the backward: the gradient of the logits is dlogits' = u p, row by row.
// A backend that folds the softmax's normaliser (Spec.folds_softmax) gets memory for u and ux.
// In other backends, and in FP8, u is NULL and counts as 1, p is dlogits' itself, and the model
// sets ux to x. ux may share the memory into which head_dgrad writes dx.
typedef struct HeadGradient {
  Operand p;  // [M, V], rows of padded_vocab; data is the logits' memory
  Operand ux; // [M, D] u x, for the weight gradient p^T (u x)
  stat_t *u;  // [M]
  RowStat s;  // row sums of dlogits' z
} HeadGradient;

// What a row of logits says about its target (ScoreRowsOp).
typedef struct RowScore {
  float loss;        // log-sum-exp - the target's logit, nats
  int32_t likeliest; // 1: no logit is larger, and no equal one has a smaller id; else 0
} RowScore;

// Generation's next token: how it is chosen, and what was fed for it (ChooseOp).
typedef struct Draw {
  float scale;            // 1 / temperature; 0: the likeliest token is chosen
  double top_p;           // 1: all
  int64_t top_k;          // 0: all
  uint64_t seed;          // the uniform draw is rng_uniform(seed, index)
  uint64_t index;         // of the token in the text
  int32_t position, rows; // of the first row that is fed, and how many are
} Draw;

// Rows [first, first + rows) continue the rows [prefix, prefix + prefix_rows), which do not stand
// right in front of them (AttentionBranchesOp).
typedef struct Branch {
  int32_t prefix, prefix_rows, first, rows;
} Branch;

// A matrix inside of a parameter that Muon makes orthogonal by itself, such as q in qkv or gate in
// gate_up: its row i is row first + i step of the parameter, and it has all columns.
typedef struct MatrixPart {
  int64_t first, step, rows;
} MatrixPart;

enum { MOST_PARTS = 3, MUON_STEPS = 4 };

// Muon's constants (kernels/ops.h: MuonOp). A step of Newton-Schulz makes a s + b s^3 + c s^5 of a
// singular value s. The polynomials are fitted together: to 1 over log s for s from 0.001 to 1.03,
// and so that a relative error of s after a step (bf16 rounds by 2^-9) is multiplied by little in
// those that follow. From 0.003 to 1.03 they end within 0.70 and 1.20.
typedef struct MuonPolynomial {
  double a, b, c;
} MuonPolynomial;
static const MuonPolynomial muon_polynomials[MUON_STEPS] = {
    {7.8827, -21.7331, 15.0505},
    {3.7806, -2.9184, 0.5752},
    {3.2660, -2.7015, 0.6181},
    {2.6260, -2.2348, 0.6395},
};
#define MUON_EPS 1e-7
// A part is noise if its |X| is at most this fraction of the largest in its tensor. Gradients of q
// and k are differences of numbers as large as v's gradient. Where the exact difference is 0
// (documents with one target), rounding leaves 1e-9 to 9e-7 of v's; else 1e-2 or more was seen.
#define MUON_NOISE 0x1p-16
#define MUON_SCALE 0.2

// One parameter tensor of the optimizer's list, [rows, cols] row-major.
// A matrix is used plain (compute, grad) or folded with the norm weight list[norm] (folded,
// grad_folded); a tied embedding is used both ways. An unused pair has no memory. A norm weight is
// folded into one matrix. The gradient of the loss is dW = grad + grad_folded * wn, where an unused
// term is 0 and wn is the norm weight that the forward used: adamw computes dW as it reads, and no
// array holds it.
typedef struct ParamTensor {
  int64_t rows, cols;
  master_t *master;          // weight
  moment_t *m, *v;           // AdamW's first and second moment; Muon's momentum, v NULL
  moment_t *m_near, *v_near; // the memory that they borrow for the update (Loan), else NULL
  grad_t *grad;              // gradient with respect to the plain use; a norm weight's: dwn
  grad_t *grad_folded;       // dW' = gradient with respect to the folded copy
  stat_t *part_sum;          // lm_head's, where the loss' chunks add up (HeadWgradOp), else NULL
  Operand compute; // W as the GEMMs read it; data may be the master (computes_with_masters)
  Operand folded;  // W * wn, wn = list[norm].master [cols]
  int norm;        // index in the list; -1 where the matrix is not folded
  bool vector;     // a norm weight [1, cols], without weight decay; a matrix may have 1 row, too
  int part_count;  // Muon updates it, part by part, and each row is in one part; 0: AdamW does
  MatrixPart parts[MOST_PARTS];
  Offload offloaded; // which of its own masters, moments and gradients are in the host's memory
} ParamTensor;

typedef struct AdamW {
  double learning_rate, beta1, beta2, eps, weight_decay;
  double norm_rate; // norm weights' learning rate over learning_rate
  double momentum;  // Muon's
  double clip_norm; // gradients are scaled by min(1, clip_norm / norm); 0 = no clipping
  // The step's loss, gradients and norm are multiplied by it, before clipping: head_loss gives all
  // rows of a step one weight, and this makes the loss a mean over the rows that count. 1 if all
  // rows count, else rows / rows that count; 0 if none counts.
  double gradient_scale;
} AdamW;

// The result of a training step. It lives in the backend, and step_result reads it.
typedef struct StepResult {
  double loss;      // mean over the step's tokens that count, nats; of a validation as head_loss
                    // summed it
  double grad_norm; // L2 norm of all gradients, before clipping
  bool applied;     // false: loss or grad_norm was not finite and adamw changed nothing
  int64_t updates;  // updates applied since the start of the run; AdamW's t for bias correction
  double ms; // from clock_start, or the end of all work before it if that is later, to step_end;
             // without a clock_start it says nothing
  // FP8: number of tensors with a value beyond their scale's reach, and the first one's index.
  int saturated, saturated_first;
} StepResult;

enum { MAX_RESULTS = 4 };
