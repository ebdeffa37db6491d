// The operations of a step, read off a recording of the model's own functions.
#include <math.h>
#include <string.h>

#include "model/bench/state.h"

static int64_t count_of(const Recorder *recorder, Operation operation, int from, int to) {
  int64_t count = 0;
  for (int i = from; i < to; i++) count += recorder->calls[i].operation == operation;
  return count;
}

void bench_list(BenchResult *r, const Llama *llama, int64_t accumulation, Operation only) {
  Recorder *recorder = record_slice(llama); // each operation once, in a step's order
  r->op_count = 0;
  for (int i = 0; i < recorder->count; i++) {
    const OperationCall *call = &recorder->calls[i];
    if (only != OPERATION_COUNT && call->operation != only) continue;
    const KernelKind runs = llama->be->kinds[call->operation];
    r->ops[r->op_count++] = (BenchOp){.call = *call,
                                      .runs = runs,
                                      .alike = runs == KERNEL_UNFUSED && !call->statistics,
                                      .differences = {NAN, NAN, NAN},
                                      .bare = spread_of(NULL, 0)};
  }
  // A micro-batch, its update, and the passes of a layer, one after the other
  const AdamW hyper = {.learning_rate = 0};
  Llama recorded = *llama;
  recorded.be = &recorder->base;
  recorder->count = 0;
  llama_forward(&recorded);
  llama_backward(&recorded, 1, accumulation > 1);
  const int micro_batch = recorder->count;
  llama_update(&recorded, &hyper);
  const int step = recorder->count;
  layer_forward(&recorded, 0);
  const int forward = recorder->count;
  layer_again(&recorded, 0);
  layer_backward(&recorded, 0, false);
  for (int i = 0; i < r->op_count; i++) {
    BenchOp *op = &r->ops[i];
    const Operation operation = op->call.operation;
    op->calls = accumulation * count_of(recorder, operation, 0, micro_batch) +
                count_of(recorder, operation, micro_batch, step);
    op->in_forward = (int)count_of(recorder, operation, step, forward);
    op->in_backward = (int)count_of(recorder, operation, forward, recorder->count);
  }
  recorder_destroy(recorder);
}
