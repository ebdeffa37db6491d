// The common part of both GPU backends: the GPU and its libraries, memory, replays, the update, and
// the operations that have nothing to fuse. A backend starts with a Cuda, sets its own operations,
// and calls its own kernels; this part depends on neither backend.
#pragma once
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/muon.h"
#include "kernels/gpu.h"
#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// Generation's attention splits a token's keys over this many blocks per head.
enum { DECODE_SPLITS = 16 };
enum { LOGIT_BINS = 1 << 16 };     // the values of bf16
enum { MAX_ATTENTION_SHAPES = 8 }; // that are planned for at a time

// Each is private to the file of its name: memory.c, step.c, attention.c, snapshot.c, loans.c,
// bench.c.
typedef struct Memory Memory;
typedef struct Steps Steps;
typedef struct Attention Attention;
typedef struct Snapshot Snapshot;
typedef struct Loans Loans;
typedef struct Bench Bench;

typedef struct Cuda {
  // First: a Backend * of a GPU backend is a Cuda *. Its spec has a copy of the scalings;
  // gemm_cache is NULL once it is open.
  Backend base;
  Gpu gpu;
  Gemm gemm;
  Memory *memory;
  Steps *steps;
  Attention *attention;
  Snapshot *snapshot;       // NULL where the state is never copied during a step
  Loans *loans;             // NULL where nothing is lent
  Bench *bench;             // NULL outside of one
  bool documents_are_usual; // the documents set take as many attention calls as a usual batch
  float *rope;              // [max_positions, d/2, 2] cosine and sine
  float *row_loss;          // [max_tokens]
  float *decode_parts;      // [DECODE_SPLITS, H, d + 2] of generation's attention
  unsigned *decode_done;    // [H] 0 between calls of it
  unsigned *logit_bins;     // [LOGIT_BINS + 4] of choose.cu, 0 between calls of it
  int32_t *tokens_to_host;  // [MAX_RESULTS], pinned: see Services.token_send
  act_t *widened;      // with Spec.fp8_weights: room for any weight that rows are multiplied by
  void *embed_scratch; // of the embedding's backward
  StepState *state;    // on the device
  Scaling *scalings;   // [scaling_count], on the device
  // The parameters' tables, rebuilt when the list changes
  ParamTable table;
  char *table_memory;
  ParamTensor *table_list; // the list that they were built from
  int table_count;
  Muon muon;
  void (*orthogonalize)(struct Cuda *c, const MuonLaunch *launch);
} Cuda;

static inline Cuda *cuda_of(Backend *be) {
  return (Cuda *)be;
}
static inline OperationWork cuda_work(const Cuda *c, Operation operation) {
  return operation_work(&c->base.spec, NULL, 0, operation);
}
static inline RowScale row_scale(const Cuda *c, RowStat sumsq) {
  return (RowScale){sumsq, c->base.spec.D, (float)c->base.spec.rms_norm_eps, NULL};
}
// r / q of x, whose products read copies that were multiplied by q.
static inline RowScale row_scale_of(const Cuda *c, Operand x, RowStat sumsq) {
  return (RowScale){sumsq, c->base.spec.D, (float)c->base.spec.rms_norm_eps,
                    x.by_row ? (const float *)x.row_scale : NULL};
}

// ---- backend.c
// Opens into zeroed memory in which base.kinds already says what runs each operation. Prepares the
// GEMMs of a training run that no fused kernel runs. After a failure, too, the caller calls
// cuda_destroy.
int cuda_open(Cuda *c, const Spec *spec, const Gpu *gpu, Error *err);
// Called last, when all memory is allocated and all kernels are being loaded: waits for the GPU,
// and fills in the backend's description.
int cuda_ready(Cuda *c, const char *name, Error *err);
// Closes the backend and frees it: it starts with a Cuda and was allocated in one piece.
void cuda_destroy(Backend *be);

// ---- memory.c: the functions of kernels/services.h
void cuda_set_memory(Cuda *c);
int cuda_memory_open(Cuda *c, Error *err); // first: cuda_take needs it
void cuda_memory_close(Cuda *c);
// Workspace: counted, cleared on the backend's stream, freed by cuda_give_back or with the backend.
// NULL, and err says so, when there is no memory left.
void *cuda_take(Cuda *c, size_t bytes, Error *err);
void cuda_give_back(Cuda *c, void *memory); // NULL is fine

// ---- snapshot.c: the functions of kernels/services.h
void cuda_set_snapshot(Cuda *c);
void cuda_snapshot_close(Cuda *c); // waits for a running snapshot

// ---- loans.c: the functions of kernels/services.h
void cuda_set_loans(Cuda *c);
void cuda_loans_close(Cuda *c);  // waits until everything has returned
void cuda_loans_fetch(Cuda *c);  // once in a step; operations that follow find all of it near
void cuda_loans_return(Cuda *c); // after the update, if it was fetched
void cuda_loans_settle(Cuda *c); // operations that follow find all of it at home

// ---- attention.c
int cuda_attention_open(Cuda *c, Error *err);
void cuda_attention_close(Cuda *c);
size_t cuda_cudnn_version(const Cuda *c);
void cuda_set_documents(Backend *be, const int32_t *lengths, int64_t count);
AttentionOp cuda_attention;
AttentionBackwardOp cuda_attention_backward;

// ---- gemm.c
// out = A B (+ add, or NULL) in bf16, or in FP8 where both have copies. p gives M, N, K and the
// form, and out_fp32, accurate and ldd where they are not 0; the rest follows from the operands.
void cuda_multiply(Cuda *c, GemmProblem p, Operand A, Operand B, const void *add, void *out);
// The problems of an operation in a training run, alignment and add included, as cuda_multiply has
// them. Returns their number.
enum { MOST_PROBLEMS = 3 };
int cuda_problems_of(const Cuda *c, Operation operation, GemmProblem problems[MOST_PROBLEMS]);
// out = a W^T (+ add, or NULL; out is not add).   a [M, K], W [N, K], add, out [M, N], rows of out
// `stride` apart (0: N)
void cuda_forward(Cuda *c, int64_t M, int64_t N, int64_t K, Operand a, Operand W, const act_t *add,
                  act_t *out, int64_t stride);
// True where a product runs as GEMV: one row, in a backend that does not train.
static inline bool cuda_one_row(const Cuda *c, int64_t M) {
  return M == 1 && !c->base.spec.train;
}
// True for a token's row: the kernels that normalize it compute its sum of squares themselves.
static inline bool cuda_token_row(const Cuda *c, int64_t M) {
  return cuda_one_row(c, M) && c->base.spec.context > 0;
}
DgradOp cuda_dgrad;
WgradOp cuda_wgrad;
HeadWgradOp cuda_head_wgrad;

// ---- scales.cu
int cuda_scalings_open(Cuda *c, Error *err);
// for (int pass = 0; cuda_launch_again(c, pass, out); pass++) launch the kernel that writes out:
// once, but twice while the run calibrates, with the scale set in between.
bool cuda_launch_again(const Cuda *c, int pass, Operand out);
RequantizeOp cuda_requantize;
// Writes x's FP8 copies. previous: the sums of squares from which row_scale is computed; where
// previous has no data, x's row_scale is already written, or x has none. sumsq: of x, out, or NULL.
void cuda_cast_rows(Cuda *c, int64_t M, int64_t N, Operand x, RowStat previous, RowStat *sumsq);
// Writes the copies of dlogits'' = (r / q) grad_scale (p - onehot) from a matrix whose rows are
// smaller than those of dlogits'' by `factors` (NULL: 1). They are e4m3, rounded as
// fp8_round_stochastic does. Their scale follows from grad_scale: largest and least values are
// known beforehand.
//   from [M, V], rows of padded_vocab, in; factors [M] in
void cuda_cast_dlogits(Cuda *c, int64_t M, Operand dlogits, act_t *from, stat_t *factors,
                       double grad_scale);

// ---- embed.cu, decode.cu
EmbedOp cuda_embed;
EmbedBackwardOp cuda_embed_backward;
// Bytes of scratch of the embedding's backward.
size_t cuda_embed_scratch(int64_t max_tokens, int64_t V, int64_t D);
QkvTokenOp cuda_qkv_token;
RowLogitsOp cuda_row_logits;
ChooseOp cuda_choose; // choose.cu
// out = W a (+ add, or NULL), of one row. It and the others read W's FP8 copies where there are
// some, and a in bf16.   a [K], W [N, K], add [N] in; out [N] out
void cuda_gemv(Cuda *c, int64_t N, int64_t K, const act_t *a, Operand W, const act_t *add,
               act_t *out);
// The values of e4m3 copies W [N, K] in bf16, which has them: in c->widened, until the next call.
Operand cuda_widened(Cuda *c, int64_t N, int64_t K, Operand W);
// GateUpOp of one row; z stays the plain product.
void cuda_gate_up_row(Cuda *c, const act_t *x, Operand W, act_t *z, act_t *y);
AttentionDecodeOp cuda_attention_decode;
AttentionBranchesOp cuda_attention_branches;

// ---- table.c
// The tables of the list, rebuilt where the last call was for another list.
const ParamTable *cuda_table(Cuda *c, const ParamTensor *list, int count);
void cuda_table_free(Cuda *c);
size_t cuda_list_bytes(const ParamTensor *list, int count); // Spec.list_bytes
// The use of the tensor that has FP8 copies, or NULL.
const Operand *cuda_fp8_use(const ParamTensor *t);

// ---- update.c
void cuda_set_update(Cuda *c);

// ---- optimizer.cu
GradsFinishOp cuda_grads_finish;
// to = from, in bf16.   both [count]
void cuda_round_gradient(const Cuda *c, int64_t count, const stat_t *from, grad_t *to);
// Scales the step's loss and norm, decides whether the update is applied, and computes its factors.
void cuda_decide(const Cuda *c);
AdamwOp cuda_adamw;
// For the table's tensors, outside of a step: the first finds the largest values of the tensors
// that have FP8 copies and no scale, the second writes all compute copies.
void cuda_largest_weights(const Cuda *c);
void cuda_copy_weights(const Cuda *c);

// ---- muon.c
MuonOp cuda_muon;
// By cuBLASLt, whose algorithms cuda_prepare_muon chooses beforehand for the tables' list.
void cuda_orthogonalize(Cuda *c, const MuonLaunch *launch);
void cuda_prepare_muon(Cuda *c);

// ---- bench.c: the functions of kernels/services.h
void cuda_set_bench(Cuda *c);
void cuda_bench_close(Cuda *c);
void cuda_mark(Backend *be, int what);

// ---- step.c: the functions of kernels/services.h
void cuda_set_step(Cuda *c);
int cuda_step_open(Cuda *c, Error *err);
void cuda_step_close(Cuda *c);
void cuda_replay_close(Cuda *c); // destroys the recorded graphs

#ifdef __cplusplus
}
#endif
