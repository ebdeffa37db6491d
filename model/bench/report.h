// What a bench measured, what follows from it, and how it is shown: a table and JSON. Arithmetic
// and text alone; model/bench/bench.c measures.
#pragma once
#include "base/json.h"
#include "kernels/bench/bench_gpu.h"
#include "model/run/log.h"

// The floor is no kind: it is what neither can do without.
typedef enum BenchKind {
  BENCH_FUSED,
  BENCH_UNFUSED,
  BENCH_KINDS,
  BENCH_FLOOR = BENCH_KINDS
} BenchKind;
extern const char *const bench_kind_names[BENCH_FLOOR + 1];
typedef enum BenchPass { PASS_FORWARD, PASS_BACKWARD, PASS_BOTH, BENCH_PASSES } BenchPass;

// Of repeated measurements, in ms.
typedef struct Spread {
  int count;
  double median, tenth, ninetieth;
} Spread;

Spread spread_of(double *samples, int count); // sorts them; all NAN where there are none
double spread_width(const Spread *s);         // (ninetieth - tenth) / median

// Largest difference between two results, as a part of the reference's largest value.
typedef struct Differences {
  double fused_unfused, fused_reference, unfused_reference; // NAN: not compared
} Differences;

typedef struct BenchOp {
  OperationCall call;          // the first one of a step
  KernelKind runs;             // what the fused backend runs it with
  bool alike;                  // both kinds do the very same: not even row statistics differ
  int64_t calls;               // in a step
  int in_forward, in_backward; // calls in a layer's pass
  Spread time[BENCH_KINDS], bare;
  double alone; // ms of the bare GEMM called back to back, cache as it finds it
  Differences differences;
} BenchOp;

// The means of what was read while the GPU was busy with one thing.
typedef struct Busy {
  GpuSample sum;
  int count;
} Busy;
typedef enum BusyWith { BUSY_FUSED, BUSY_UNFUSED, BUSY_OPS, BUSY_COUNT } BusyWith;

typedef struct BenchResult {
  const char *config, *gpu; // not owned
  ModelText model;
  char step_shape[256];
  GpuFacts facts;
  int op_count;
  BenchOp ops[OPERATION_COUNT];
  bool whole; // layers and steps were measured, too
  Spread layer[BENCH_PASSES][BENCH_KINDS];
  Spread step[BENCH_KINDS];
  Spread gain; // unfused / fused of the steps of one round
  Spread peak, copy;
  double peak_flops, copy_bytes; // of a call
  Busy busy[BUSY_COUNT];
  int rounds, warm_up_rounds;
  double seconds; // of measuring
  int compared_rows;
} BenchResult;

// ---- What follows. `kind` may be BENCH_FLOOR.

double bench_copy_rate(const BenchResult *r); // bytes a ms
// TFLOP/s: of 8192 x 8192 x 8192, and of the fastest bare product, or of that.
double bench_square_rate(const BenchResult *r);
double bench_peak(const BenchResult *r);
double op_ms(const BenchResult *r, const BenchOp *op, BenchKind kind); // a call
double layer_floor(const BenchResult *r, BenchPass pass);
double step_ms(const BenchResult *r, BenchKind kind);

// Sums over the operations of calls in a step x time.
typedef struct OpsSums {
  double all[BENCH_FLOOR + 1], attention[BENCH_FLOOR + 1];
  double alike[BENCH_KINDS];
  double bare, alone; // of the products
} OpsSums;
OpsSums ops_sums(const BenchResult *r);

// Of an operation's fused kernel. NAN: has none, or not known.
typedef struct OpRates {
  double over_bare, unfused_over;       // fused / bare, unfused / fused
  double tflops, of_peak;               // and its part of bench_peak
  double gigabytes_per_second, of_copy; // and its part of bench_copy_rate
} OpRates;
OpRates op_rates(const BenchResult *r, const BenchOp *op);

// Of a step: its bare products, its attention, and the rest of its time.
typedef struct StepSplit {
  double products, attention, rest;
} StepSplit;
StepSplit step_split(const BenchResult *r, BenchKind kind);

// The operations that are alike: their times in the one kind over those in the other. Off 1 by as
// much as the measurement is off. NAN where there are none.
double same_kernels_ratio(const BenchResult *r);

typedef enum Conclusion { CONCLUSIVE, UNDECIDED, TOO_NOISY } Conclusion;
typedef struct Verdict {
  Conclusion conclusion;
  char text[400];
} Verdict;
Verdict bench_verdict(const BenchResult *r);

void bench_print(const BenchResult *r);
char *bench_json(const BenchResult *r); // fresh memory
