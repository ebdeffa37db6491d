// ./train --bench: the gain of fusing on this machine's GPU, operation by operation, for layers,
// and for the whole step. bench.c measures; bench_report.c has the arithmetic and the table.
#pragma once
#include "kernels/bench_gpu.h"
#include "kernels/record.h"
#include "model/llama.h"

typedef struct BenchArgs {
  const char *config;
  Operation only; // OPERATION_COUNT: all, and layers and steps
  double seconds; // of measuring; 0: as many as usual
  int override_count;
  char **overrides;
} BenchArgs;

// The floor is no kind: it is the work that neither can avoid.
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

typedef struct BenchOp {
  OperationCall call;          // the first one of a step
  KernelKind runs;             // the fused backend's kernel for it
  bool alike;                  // both kinds do the very same: not even row statistics differ
  int64_t calls;               // in a step
  int in_forward, in_backward; // calls in a layer's pass
  Spread time[BENCH_KINDS], bare;
} BenchOp;

// The means of the readings while the GPU was busy with one thing.
typedef struct Busy {
  GpuSample sum;
  int count;
} Busy;
typedef enum BusyWith { BUSY_FUSED, BUSY_UNFUSED, BUSY_OPS, BUSY_COUNT } BusyWith;

typedef struct BenchResult {
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
} BenchResult;

// ---- Derived figures. `kind` may be BENCH_FLOOR.

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
  double bare; // of the products
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

void bench_print(const BenchResult *r);

// The arguments after --bench; argv is reordered.
int bench_parse(BenchArgs *args, int argc, char **argv, Error *err);
// Measures, prints, and fills in the result.
int bench_run(const BenchArgs *args, BenchResult *result, Error *err);

// ---- Parts of it

// Fills in the fields that are known before measuring: the operations of a step (only: of that
// one), its kind and its number of calls, from a recording of the model's own step. `runs`
// follows from the fused backend, llama's.
void bench_list(BenchResult *result, const Llama *llama, int64_t accumulation, Operation only);

// `to` becomes the same model on another backend of the same GPU. All memory is shared but the
// statistics of rows, which backends write in different numbers of parts. bench_unshare releases
// those; the rest is `llama`'s.
int bench_share(Llama *to, const Llama *llama, Backend *be, Error *err);
void bench_unshare(Llama *to);

// In a step the sum of lm_head's gradient over the loss' chunks lies where other gradients are
// written later. Out of order it would overwrite them, so it gets memory of its own, which the
// caller releases (llama->lm_head->part_sum). `bytes`: how many, 0 where there is no such sum.
int bench_sum_apart(Llama *llama, size_t *bytes, Error *err);

// One operation of a micro-batch and its update, by the model's own functions: of layer `index`,
// and chunk `index` of the loss, both modulo their number. accumulate: onto gradients that are
// there.
void issue_alone(Llama *llama, Operation operation, int index, bool accumulate);
// The calls of one layer's and one chunk's, each operation once, in a step's order. The caller
// destroys it.
Recorder *record_slice(const Llama *llama);

// The call that must run before call i each time; -1: none. It writes an input that call i
// overwrites, that each backend stores in a form of its own (HeadGradient), or whose FP8 copies lie
// where others' do.
int prepared_by(const OperationCall *calls, int i);
// The same of each operation of a slice: makers[operation] is the one to call before it; -1: none.
void list_makers(const Recorder *slice, int makers[OPERATION_COUNT]);
// Recomputes the inputs that an operation, run out of order, would find of another. In FP8 layers
// share the memory of their copies, whose row scales belong to a layer: with another layer's,
// attention's scores are hundreds, and no exponential of them is finite. The recorder is
// record_slice's; its calls are overwritten.
void issue_inputs(Llama *llama, Recorder *recorder, const int makers[OPERATION_COUNT],
                  Operation operation, int index);
