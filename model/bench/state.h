// The state of a bench, for bench.c, which opens it and sums up, and measure.c.
#pragma once
#include "model/bench/bench.h"
#include "model/bench/model.h"
#include "model/bench/report.h"

typedef struct Sample {
  Spread *of; // in Bench.result
  double value;
} Sample;

typedef struct Bench {
  Config config;
  Backend *be[BENCH_KINDS];
  Llama llama[BENCH_KINDS];    // the same memory, but for the row statistics
  stat_t *sum;                 // of lm_head's gradient, NULL: there is none
  Recorder *recorder;          // of the unfused kind's operations: their GEMMs for BenchGpu.gemm
  int makers[OPERATION_COUNT]; // list_makers'
  BenchGpu *gpu;
  BenchResult result;
  AdamW hyper;
  int32_t *tokens; // [2, B, T]: a batch and its targets
  int64_t batches; // loaded so far: the next one's random key
  Sample *samples;
  int sample_count, sample_capacity;
  double seconds;    // of measuring; 0: as many as usual
  double sampled_ms; // when clocks and power were last read
} Bench;

// Fills in what is known before measuring: the operations of a step (only: of that one), what each
// is and how often it is called, from a recording of the model's own step. `runs` follows from the
// fused backend, llama's.
void bench_list(BenchResult *result, const Llama *llama, int64_t accumulation, Operation only);

// measure.c: takes the samples, for as long as asked, and sums them up in the result.
int bench_measure(Bench *b, Error *err);
