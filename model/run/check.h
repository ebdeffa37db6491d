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
  char tensor[80];     // that comes nearest to its bound, or is farthest beyond
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

// A table to paste into a report: an operation a row. times: of a step of this precision, NULL where
// there are none.
void check_print(const Check *check, bool fp8, const BenchResult *times);

// All programs of this precision and mainloop. -1 and why not where they cannot run here.
int check_programs(Check *check, bool fp8, Mainloop mainloop, const Gpu *gpu, Error *err);
// The operations of a run whose programs are not to be trusted: those that failed when this
// executable first ran on this GPU, which is remembered. Says so of each in the start that finds it
// out.
OperationSet check_remembered(const Spec *spec, const Gpu *gpu);
