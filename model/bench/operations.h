// The operations of a step one by one: what each is, and calls of it alone.
#pragma once
#include "model/bench/report.h"
#include "model/llama.h"

// Fills in what is known before measuring: the operations of a step (only: of that one), their
// shapes, FLOPs, bytes, calls. `runs` follows from the fused backend.
void bench_ops_list(BenchResult *result, const Llama *llama, int64_t accumulation, Operation only);

// The operation as forward.c and backward.c call it, of a layer or, for the output layer's, of a
// chunk of the loss; `index` runs through them. accumulate: onto gradients that are there.
void bench_op_issue(Llama *llama, Operation operation, int index, bool accumulate);
// Before it: those operations that leave what it overwrites, so that calls repeat.
void bench_op_prepare(Llama *llama, Operation operation, int index);
// The operands of its bare product.
typedef struct BareOperands {
  const void *A, *B;
  void *D; // NULL: wherever there is room
} BareOperands;
BareOperands bench_op_operands(const Llama *llama, Operation operation, int index);

// What it leaves, for comparing.
typedef struct OpOutput {
  const void *data;
  int64_t count;
  bool gradient; // of parameters: grad_t, else act_t
} OpOutput;
OpOutput bench_op_output(const Llama *llama, Operation operation, int index);

// The parameters that it, and what prepares it, reads or whose gradient it leaves: at most two, -1
// = none.
typedef struct OpParams {
  int reads[2], gradient;
} OpParams;
OpParams bench_op_params(const ModelConfig *model, Operation operation, int layer);
