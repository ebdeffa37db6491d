// ./train --bench: the time of each operation, layer and step of this machine's training, and on a
// GPU what fusing gains. bench.c measures; bench_report.c has the arithmetic and the table.
#pragma once
#include "base/file.h"
#include "model/llama.h"

// The kinds of kernels that are compared. A CPU has one, in the place of the first. The floor is no
// kind: it is the work that neither can avoid.
typedef enum BenchKind {
  BENCH_FUSED,
  BENCH_UNFUSED,
  BENCH_KINDS,
  BENCH_FLOOR = BENCH_KINDS,
  BENCH_COLUMNS
} BenchKind;
typedef enum BenchPass { PASS_FORWARD, PASS_BACKWARD, PASS_BOTH, BENCH_PASSES } BenchPass;

// Of repeated measurements, in ms.
typedef struct Spread {
  int count;
  double median, tenth, ninetieth;
} Spread;

Spread spread_of(double *samples, int count); // sorts them; all NAN where there are none

typedef struct BenchOp {
  OperationWork work;
  char shape[64];              // for people: "32768 x 2048 x 8192"
  KernelKind runs;             // the first kind's kernel for it
  int64_t calls;               // in a step; 0: it has none, and nothing else here is set
  int in_forward, in_backward; // calls in a layer's pass
  Spread time[BENCH_KINDS];
  Spread bare;  // its GEMM alone, in the last kind
  double floor; // ms of a call, by bench_derive
} BenchOp;

typedef struct BenchResult {
  int kinds;             // 1 on a CPU
  Operation only;        // that is printed; OPERATION_COUNT: all
  bool whole;            // layers and steps were measured, too
  bool apart;            // one kind after the other, since both do not fit
  ShortText card, model; // "NVIDIA H200", "1.24B": its parameters
  int64_t tokens;        // of a step
  BenchOp ops[OPERATION_COUNT];
  Spread layer[BENCH_PASSES][BENCH_KINDS];
  Spread step[BENCH_KINDS];
  Spread gain;                // unfused / fused of the steps of one round
  double copy_rate;           // bytes a ms, read and written
  int rounds, warm_up_rounds; // of each kind
  double seconds;             // of measuring
  // What follows from these (bench_derive), in ms but for the first. Sums are over the operations
  // of calls in a step x time.
  double peak; // TFLOP/s of the fastest bare product
  double layer_floor[BENCH_PASSES];
  double sum[BENCH_COLUMNS]; // of the floor it is a step's
  double attention[BENCH_COLUMNS];
  double products; // bare
  // What runs the same kernels in both kinds, in the first over the second: it is off 1 by as much
  // as the measurement is off. NAN where there is none.
  double alike;
} BenchResult;

void bench_derive(BenchResult *r);

// Of an operation's kernel in the first kind. NAN: has none, or not known.
typedef struct OpRates {
  double over_bare, unfused_over;       // fused / bare, unfused / fused
  double tflops, of_peak;               // and its part of r->peak
  double gigabytes_per_second, of_copy; // and its part of the copy's rate
} OpRates;
OpRates op_rates(const BenchResult *r, const BenchOp *op);

// What fusing gains here, in a line to quote; on a CPU how fast it trains.
PathText bench_quote(const BenchResult *r);

const char *bench_kind_name(const BenchResult *r, BenchKind kind);
void bench_print(const BenchResult *r);

// The mean of a training step in ms, over `seconds` of them after the first ones, on random tokens.
// Where the first ones alone take eight times as long, it is theirs.
int bench_steps(const Config *config, double seconds, double *ms, Error *err);

// The words after --bench, which are reordered. Measures, fills in the result, and prints it.
int bench_run(int argc, char **argv, BenchResult *result, Error *err);
// The same of this config, and prints nothing.
int bench_config(const Config *config, double seconds, BenchResult *result, Error *err);
