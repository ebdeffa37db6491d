// The state of a bench, for bench.c, which opens it and sums up, and measure.c.
#pragma once
#include "model/bench/bench.h"
#include "model/bench/model.h"
#include "model/bench/report.h"

// What is timed: an operation or a layer's pass in a kind, or one of three things that are neither
// kind's.
enum { RUN_BARE = BENCH_KINDS, RUN_PEAK, RUN_COPY };

typedef struct Samples {
  double *ms;
  int count, capacity;
} Samples;

typedef struct Bench {
  Config config;
  Backend *be[BENCH_KINDS];
  Llama llama[BENCH_KINDS + 1]; // the same memory, but for the row statistics; RUN_BARE's last
  BenchGpu *gpu;
  BenchResult result;
  int prepared_by[OPERATION_COUNT]; // the operation to call before each of result's, -1 = none
  AdamW hyper;
  int32_t *tokens, *targets;                     // [B, T] each
  int64_t batches;                               // loaded so far: the next one's random key
  Samples ops[OPERATION_COUNT][BENCH_KINDS + 1]; // RUN_BARE's last
  Samples layers[BENCH_PASSES][BENCH_KINDS], steps[BENCH_KINDS], gains, peak, copy;
  double seconds;    // of measuring; 0: as many as usual
  double sampled_ms; // when clocks and power were last read
} Bench;

// Fills in what is known before measuring: the operations of a step (only: of that one), what each
// is and how often it is called, from a recording of the model's own step. `runs` follows from the
// fused backend, llama's. prepared_by: as in Bench.
void bench_list(BenchResult *result, int prepared_by[OPERATION_COUNT], const Llama *llama,
                int64_t accumulation, Operation only);

// measure.c: takes the samples, for as long as asked.
int bench_measure(Bench *b, Error *err);
// Bare GEMMs as a program without this bench would time them. After the medians are known.
void bench_gemms_alone(Bench *b);
