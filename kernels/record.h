// A backend that computes nothing: it keeps a list of the calls that the model makes. Memory plans,
// the choice of kernels and the bench get the operations of a step, their GEMMs, operands and costs
// in this way from model/forward.c and model/backward.c.
#pragma once
#include "kernels/ops.h"

typedef struct OperationCall {
  Operation operation;
  OperationClass class;
  // The GEMM of A and B, for CLASS_GEMM; the result is [M, N]
  int64_t M, N, K;
  GemmForm form;
  bool add; // adds to a residual, or to existing gradients
  // The GEMM's operands, and the largest of the operation's results. B is the compute or folded
  // copy of a weight, as is the embedding's B; in a weight gradient it is an activation. NULL where
  // there is none, or where the recorded model has no memory.
  const void *A, *B;
  int64_t lda, ldb, ldd; // elements from one row, as stored, to the next; 0: the row's own
  bool fp8; // the operands are FP8 copies, both K-major for every `form` of the product
  int scaling_A, scaling_B;
  Operand input; // FP8: the operand of which A is a copy
  void *out;
  const void *beside;   // another result
  const void *copies;   // FP8: the result's by_row copies where it has no data, else NULL
  int64_t out_count;    // elements
  bool out_is_gradient; // grad_t, else act_t
  bool out_is_sum;      // stat_t: the sum of a weight gradient's parts
  // An input that its producer has to recompute before each call, else NULL: the result overwrites
  // it, each kind of kernels keeps it in a form of its own, or it exists only as FP8 copies, which
  // other tensors overwrite.
  const void *made_before;
  bool statistics;    // reads or writes statistics of rows
  char shape[64];     // for people: "32768 x 2048 x 8192"
  double flops;       // of the GEMM, attention (causal: half of the scores) or Muon
  double bytes;       // that must move (for CLASS_MEMORY)
  double floor_bytes; // that a floor counts besides GEMM and attention
} OperationCall;

typedef struct Recorder {
  Backend base; // first: a Backend * of a recorder is a Recorder *
  OpsConfig config;
  OperationCall *calls; // [count]
  int count, capacity;
} Recorder;

// Bytes are counted in element sizes of `like`. Pointers of the config are not kept. Memory failure
// exits.
Recorder *recorder_create(const OpsConfig *config, const Backend *like);
void recorder_destroy(Recorder *recorder); // NULL is fine
