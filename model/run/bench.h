// ./train --bench: the time of each operation, layer and step of this machine's training, and on a
// GPU what fusing gains. bench.c measures; bench_report.c has the arithmetic and the table.
#pragma once
#include "model/llama.h"

typedef struct BenchArgs {
  const char *config;
  Operation only; // OPERATION_COUNT: all, and layers and steps
  double seconds; // of measuring; 0: as many as usual
  int override_count;
  char **overrides;
} BenchArgs;

// The kinds of kernels that are compared. A CPU has one, in the place of the first. The floor is no
// kind: it is the work that neither can avoid.
typedef enum BenchKind {
  BENCH_FUSED,
  BENCH_UNFUSED,
  BENCH_KINDS,
  BENCH_FLOOR = BENCH_KINDS
} BenchKind;
typedef enum BenchPass { PASS_FORWARD, PASS_BACKWARD, PASS_BOTH, BENCH_PASSES } BenchPass;

// Of repeated measurements, in ms.
typedef struct Spread {
  int count;
  double median, tenth, ninetieth;
} Spread;

Spread spread_of(double *samples, int count); // sorts them; all NAN where there are none
double spread_width(const Spread *s);         // (ninetieth - tenth) / median

typedef struct BenchOp {
  Operation operation;
  OperationWork work;
  char shape[64];              // for people: "32768 x 2048 x 8192"
  KernelKind runs;             // the first kind's kernel for it
  int64_t calls;               // in a step
  int in_forward, in_backward; // calls in a layer's pass
  Spread time[BENCH_KINDS];
  Spread bare; // its GEMM alone, in the last kind
} BenchOp;

// The means of the readings while the GPU was busy with one kind.
typedef struct Busy {
  GpuGauges sum;
  int count;
} Busy;

typedef struct BenchResult {
  int kinds;        // 1 on a CPU
  Operation only;   // that is printed; OPERATION_COUNT: all
  bool whole;       // layers and steps were measured, too
  bool apart;       // one kind after the other, since both do not fit
  GpuGauges gauges; // of the opened GPU
  int op_count;
  BenchOp ops[OPERATION_COUNT];
  Spread layer[BENCH_PASSES][BENCH_KINDS];
  Spread step[BENCH_KINDS];
  Spread gain;      // unfused / fused of the steps of one round
  double copy_rate; // bytes a ms, read and written
  Busy busy[BENCH_KINDS];
  int rounds, warm_up_rounds; // of each kind
  double seconds;             // of measuring
} BenchResult;

const char *bench_kind_name(const BenchResult *r, BenchKind kind);

// ---- Derived figures. `kind` may be BENCH_FLOOR.

double bench_peak(const BenchResult *r); // TFLOP/s of the fastest bare product
double op_ms(const BenchResult *r, const BenchOp *op, BenchKind kind); // a call
double layer_floor(const BenchResult *r, BenchPass pass);
double step_ms(const BenchResult *r, BenchKind kind);

// Sums over the operations of calls in a step x time.
typedef struct OpsSums {
  double all[BENCH_FLOOR + 1], attention[BENCH_FLOOR + 1];
  double alike[BENCH_KINDS]; // of those that both kinds run unfused
  double bare;               // of the products
} OpsSums;
OpsSums ops_sums(const BenchResult *r);

// Of an operation's kernel in the first kind. NAN: has none, or not known.
typedef struct OpRates {
  double over_bare, unfused_over;       // fused / bare, unfused / fused
  double tflops, of_peak;               // and its part of bench_peak
  double gigabytes_per_second, of_copy; // and its part of the copy's rate
} OpRates;
OpRates op_rates(const BenchResult *r, const BenchOp *op);

// Of a step: its bare products, its attention, and the rest of its time.
typedef struct StepSplit {
  double products, attention, rest;
} StepSplit;
StepSplit step_split(const BenchResult *r, BenchKind kind);

// The time of the operations that are alike in the first kind over that in the second. It is off 1
// by as much as the measurement is off. NAN where there are none.
double same_kernels_ratio(const BenchResult *r);

void bench_print(const BenchResult *r);

// The arguments after --bench; argv is reordered.
int bench_parse(BenchArgs *args, int argc, char **argv, Error *err);
// Measures, prints, and fills in the result.
int bench_run(const BenchArgs *args, BenchResult *result, Error *err);
