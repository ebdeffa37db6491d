// A backend that computes nothing: it keeps a list of the calls that the model makes, so that
// whoever has to know the operations of a step, their GEMMs, operands and costs, reads them off
// model/forward.c and model/backward.c.
#pragma once
#include "kernels/ops.h"

typedef enum OperationClass { CLASS_PRODUCT, CLASS_ATTENTION, CLASS_MEMORY } OperationClass;

struct OperationCall {
  Operation operation;
  OperationClass class; // what it is at its least: a GEMM, attention, or bytes through memory
  // Its GEMM (of CLASS_PRODUCT)
  int64_t M, N, K;
  GemmForm form;
  bool add; // to a residual, or to gradients that are there
  // What it reads of the parameters, and what it leaves. Where the recorded model has no memory the
  // pointers mean nothing.
  const act_t *weight;   // a compute or folded copy; NULL: none
  const void *out;       // the largest of its results; NULL: the update's
  int64_t out_count;     // elements
  bool out_is_gradient;  // grad_t, else act_t
  bool in_place;         // out was its input, and a second call would not find it
  char shape[64];        // for people: "32768 x 2048 x 8192"
  double flops;          // of a GEMM or attention (causal: half of the scores)
  double bytes;          // that a CLASS_MEMORY operation must move
  double floor_bytes;    // that a floor counts beside GEMM and attention
};

typedef struct Recorder {
  Backend base; // first: a Backend * of a recorder is a Recorder *
  OpsConfig config;
  OperationCall *calls;
  int count, capacity;
} Recorder;

// Element sizes and statistics as those of `like`, a backend, or of a GPU's with bf16 gradients or
// fp32 ones.
Recorder *recorder_create(const OpsConfig *config, bool grads_fp32);
void recorder_destroy(Recorder *recorder);
