// Whether the fused programs are right on this GPU, which perhaps nobody tried: training steps of a
// small model of odd sizes, in which one operation at a time runs on its program. The CPU's step in
// fp32 is the reference for these and for the step that runs unfused.
#pragma once
#include <math.h>
#include "model/llama.h"
#include "model/run/bench.h"

// Errors relative to the reference: of the whole in the L2 norm, and the largest against its
// largest value.
typedef struct Deviation {
  double l2, largest;
} Deviation;

static inline Deviation deviation(const float *x, const float *reference, int64_t n) {
  double square = 0, norm = 0, worst = 0, top = 0;
  for (int64_t i = 0; i < n; i++) {
    const double d = fabs((double)x[i] - (double)reference[i]);
    square += d * d;
    norm += (double)reference[i] * (double)reference[i];
    if (!(d <= worst)) worst = d; // a NaN stays
    if (fabs((double)reference[i]) > top) top = fabs((double)reference[i]);
  }
  return (Deviation){sqrt(square / (norm > 0 ? norm : 1)), worst / (top > 0 ? top : 1)};
}

// Twice what a twin deviates that rounds to bf16 where the operation stores, and `floor` more (fp32
// sums in another order).
static inline Deviation deviation_bound(Deviation twin, double floor) {
  return (Deviation){2 * twin.l2 + floor, 2 * twin.largest + floor};
}

typedef struct CheckedOperation {
  Operation operation; // and operations_with it
  ShortText tensor;    // that comes nearest to its bound, or is farthest beyond
  double error, bound; // its deviation
  bool passed;
} CheckedOperation;

typedef struct Check {
  int count;
  CheckedOperation list[OPERATION_COUNT];
} Check;

// The operations that failed.
OperationSet check_failed(const Check *check);

// Sets the operations that run on programs, and no others do: backend_fuse.
typedef int FuseOp(Backend *be, OperationSet operations, Error *err);

// The model of the check, as a run on it is asked for.
ModelConfig check_model(bool fp8);
Spec check_spec(bool fp8);
// Checks each operation that be->kinds has as fused. Both backends are for check_spec; the
// reference is the CPU's. -1: no memory.
int check_operations(Check *check, Backend *reference, Backend *be, FuseOp *fuse, Error *err);

// A table to paste into a report: an operation a row. times: of a step of this precision, or NULL.
void check_print(const Check *check, bool fp8, const BenchResult *times);

// All programs of this precision and mainloop. -1 and why not where they cannot run here.
int check_programs(Check *check, bool fp8, Mainloop mainloop, const Gpu *gpu, Error *err);

// ---- Whether programs pay

// ms of each operation in a step, 0 where it does not occur.
typedef struct CheckedTimes {
  double fused[OPERATION_COUNT], unfused[OPERATION_COUNT];
  OperationSet slow; // programs that take a tenth more than the unfused kernels, or still more
} CheckedTimes;

// The model and the micro-batch that stand for a run's: a layer or two, and at most 8192 rows.
ModelConfig timed_model(const ModelConfig *model, bool fp8);
Spec timed_spec(const ModelConfig *model, const Spec *run);
// Times each operation that be->kinds has as fused, with all of them fused and with none. The
// backend is for timed_spec. -1: no memory, and nothing is slow.
int check_times(CheckedTimes *times, const ModelConfig *timed, Backend *be, FuseOp *fuse,
                Error *err);

// ---- What a run's start does

// Sets spec->failed and spec->slow: what was found when this executable first ran on this GPU, and
// with these sizes, which is remembered. Says so of each program in the start that finds it out.
// A time decides nothing in a run that is deterministic: it may differ from machine to machine.
void check_remembered(Spec *spec, const ModelConfig *model, const Gpu *gpu);
