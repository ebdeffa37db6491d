#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "base/memory.h"
#include "base/rng.h"
#include "model/bench/state.h"
#include "model/tensors.h"

enum {
  FIRST_STEPS = 4, // in FP8 calibrated, launched, recorded, replayed
  LEAST_ROUNDS = 4,
  MOST_ROUNDS = 1000,
  LEAST_TIMED_STEPS = 2,
  MOST_TIMED_STEPS = 16,
  LEAST_REPEATS = 2, // of an operation in a round: as many as a step calls it, in these limits,
  MOST_REPEATS = 8,  // so that the load is about a step's
  MOST_TRIALS = MOST_REPEATS * OPERATION_COUNT * 3 + 2 * MOST_REPEATS,
};
static const double usual_seconds = 8, usual_op_seconds = 3, // without --seconds
    most_warm_up_ms = 600, timed_steps_ms = 200, sample_interval_ms = 50;

// What runs: a BenchKind, a bare GEMM, or one of the two measures.
enum { RUN_BARE = BENCH_KINDS, RUN_PEAK, RUN_COPY };

typedef struct Trial {
  Spread *of; // in the result: what it is a measurement of
  int run;
  bool layer;   // a layer's pass, else an operation
  int what;     // a BenchPass, or the operation's place in the result
  int index;    // which layer, which chunk of the loss
  int from, to; // time stamps
} Trial;

static int within(int value, int least, int most) {
  return value < least ? least : value > most ? most : value;
}

// ---- Samples

static void add_sample(Bench *b, Spread *of, double value) {
  if (b->sample_count == b->sample_capacity) {
    b->sample_capacity = 2 * b->sample_capacity + 1024;
    b->samples = xrealloc(b->samples, (size_t)b->sample_capacity * sizeof *b->samples);
  }
  b->samples[b->sample_count++] = (Sample){of, value};
}

static int by_spread(const void *a, const void *b) {
  const Spread *x = ((const Sample *)a)->of, *y = ((const Sample *)b)->of;
  return (x > y) - (x < y);
}

static void sum_up(Bench *b) {
  double *values = xmalloc((size_t)b->sample_count * sizeof *values);
  qsort(b->samples, (size_t)b->sample_count, sizeof *b->samples, by_spread);
  for (int i = 0, count; i < b->sample_count; i += count) {
    Spread *of = b->samples[i].of;
    for (count = 0; i + count < b->sample_count && b->samples[i + count].of == of; count++)
      values[count] = b->samples[i + count].value;
    *of = spread_of(values, count);
  }
  free(values);
}

// Clocks and power, at times, while the GPU has work.
static void read_clocks(Bench *b, BusyWith with) {
  if (now_ms() - b->sampled_ms < sample_interval_ms) return;
  const GpuSample s = b->gpu->sample(b->gpu);
  Busy *busy = &b->result.busy[with];
  busy->sum.clock_mhz += s.clock_mhz;
  busy->sum.watts += s.watts;
  busy->sum.celsius += s.celsius;
  busy->count++;
  b->sampled_ms = now_ms();
}

// ---- Steps, as train.c makes them

static void load_random(Bench *b, Llama *llama) {
  const int64_t M = llama->shape.batch * llama->shape.seq;
  const uint64_t key = (uint64_t)b->batches++, V = (uint64_t)b->config.model.vocab_size;
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < 2 * M; m++) b->tokens[m] = (int32_t)(rng_u64(key, (uint64_t)m) % V);
  llama_load_batch(llama, b->tokens, b->tokens + M);
}

static void issue_step(Bench *b, Llama *llama) {
  const int64_t micro_batches = b->config.train.gradient_accumulation;
  for (int64_t i = 0; i < micro_batches; i++) {
    load_random(b, llama);
    llama_forward(llama);
    llama_backward(llama, 1 / (double)micro_batches, i > 0);
  }
  llama_update(llama, &b->hyper);
}

static int take_result(Bench *b, BenchKind kind, Error *err) {
  const StepResult result = b->be[kind]->step_result(b->be[kind]);
  if (result.applied) return 0;
  return error_set(
      err,
      "the loss (%g) or gradient norm (%g) of %s kernels on random weights is not finite, "
      "so that their AdamW was skipped and its time says nothing: run ./train --doctor",
      result.loss, result.grad_norm, bench_kind_names[kind]);
}

// `count` steps in a row, of which all but the first are timed. Returns their median. From batch
// `first` on, for both kinds: they share all but the rows' statistics, which must be of the same
// rows.
static int run_steps(Bench *b, BenchKind kind, int64_t first, int count, bool keep, double *median,
                     Error *err) {
  Backend *be = b->be[kind];
  BenchGpu *g = b->gpu;
  int marks[MOST_TIMED_STEPS + 1], status = 0, taken = 0;
  double times[MOST_TIMED_STEPS];
  g->turn(g, be);
  be->scalings_discard(be); // of operations out of order
  b->batches = first;
  for (int i = 0; i < count; i++) {
    issue_step(b, &b->llama[kind]);
    marks[i] = g->mark(g, be);
    read_clocks(b, kind == BENCH_FUSED ? BUSY_FUSED : BUSY_UNFUSED);
    for (; taken <= i - be->steps_ahead; taken++) status |= take_result(b, kind, err);
  }
  for (; taken < count; taken++) status |= take_result(b, kind, err);
  for (int i = 1; i < count; i++) {
    times[i - 1] = g->ms(g, marks[i - 1], marks[i]);
    if (keep) add_sample(b, &b->result.step[kind], times[i - 1]);
  }
  *median = spread_of(times, count - 1).median;
  g->forget(g);
  return status;
}

// ---- Operations and layers

static void issue_layer(Llama *llama, BenchPass pass, int64_t l, bool accumulate) {
  if (pass != PASS_BACKWARD) layer_forward(llama, l);
  if (pass == PASS_FORWARD) return;
  layer_again(llama, l);
  layer_backward(llama, l, accumulate);
}

static void issue_trial(Bench *b, const Trial *t, Llama *llama) {
  BenchGpu *g = b->gpu;
  BenchResult *r = &b->result;
  const Operation operation = r->ops[t->what].call.operation;
  const bool accumulate = b->config.train.gradient_accumulation > 1;
  if (t->run == RUN_PEAK)
    r->peak_flops = g->peak(g);
  else if (t->run == RUN_COPY)
    r->copy_bytes = g->copy(g);
  else if (t->run == RUN_BARE)
    g->gemm(g, record_alone(b->recorder, llama, operation, t->index));
  else if (t->layer)
    issue_layer(llama, (BenchPass)t->what, t->index % llama->config.num_hidden_layers, accumulate);
  else
    issue_alone(llama, operation, t->index, accumulate);
}

static void prepare_layer(Bench *b, Llama *llama, const Trial *t) {
  issue_inputs(llama, b->recorder, b->makers, OP_QKV, t->index);
  // z is the kind's own, and the backward overwrites it
  if (t->what == PASS_BACKWARD) layer_forward(llama, t->index % llama->config.num_hidden_layers);
  if (t->what != PASS_FORWARD) issue_inputs(llama, b->recorder, b->makers, OP_DOWN_WGRAD, t->index);
}

// What is neither kind's is the unfused one's neighbour: on its stream.
static void run_trial(Bench *b, Trial *t) {
  const BenchKind kind = t->run == BENCH_FUSED ? BENCH_FUSED : BENCH_UNFUSED;
  BenchGpu *g = b->gpu;
  Backend *be = b->be[kind];
  Llama *llama = &b->llama[kind];
  g->turn(g, be);
  // No scale follows from what operations out of order leave: AdamW alone keeps all as they are.
  be->scalings_discard(be);
  // Out of order dx goes round in a circle, through dz or attention and back, and would grow.
  g->fill(g, be, llama->acts.layers[0].dx.data,
          llama->shape.batch * llama->shape.seq * llama->config.hidden_size);
  if (t->layer)
    prepare_layer(b, llama, t);
  else if (t->run <= RUN_BARE)
    issue_inputs(llama, b->recorder, b->makers, b->result.ops[t->what].call.operation, t->index);
  g->flush(g, be);
  t->from = g->mark(g, be);
  issue_trial(b, t, llama);
  t->to = g->mark(g, be);
}

// In a random order, all asked for before the first is waited for.
static void run_trials(Bench *b, Trial *trials, int count, int round, bool keep) {
  for (int i = count - 1; i > 0; i--) {
    const int j = (int)(rng_u64(13 + (uint64_t)trials->layer, (uint64_t)(round * MOST_TRIALS + i)) %
                        (uint64_t)(i + 1));
    const Trial swap = trials[i];
    trials[i] = trials[j], trials[j] = swap;
  }
  for (int i = 0; i < count; i++) {
    run_trial(b, &trials[i]);
    read_clocks(b, BUSY_OPS);
  }
  for (int i = 0; i < count; i++) {
    const double ms = b->gpu->ms(b->gpu, trials[i].from, trials[i].to);
    if (keep) add_sample(b, trials[i].of, ms);
  }
  b->gpu->forget(b->gpu);
}

static int operations_round(Bench *b, int round, bool keep, Error *err) {
  BenchResult *r = &b->result;
  Trial trials[MOST_TRIALS];
  int count = 0;
  for (int i = 0; i < r->op_count; i++) {
    BenchOp *op = &r->ops[i];
    const int repeats = within((int)op->calls, LEAST_REPEATS, MOST_REPEATS);
    for (int repeat = 0; repeat < repeats; repeat++) {
      const int index = (int)(rng_u64(11, (uint64_t)(round * MOST_REPEATS + repeat)) >> 40);
      for (int kind = 0; kind < BENCH_KINDS; kind++)
        trials[count++] = (Trial){.of = &op->time[kind], .run = kind, .what = i, .index = index};
      if (op->call.class == CLASS_GEMM)
        trials[count++] = (Trial){.of = &op->bare, .run = RUN_BARE, .what = i, .index = index};
    }
  }
  for (int repeat = 0; repeat < LEAST_REPEATS; repeat++) {
    trials[count++] = (Trial){.of = &r->peak, .run = RUN_PEAK};
    trials[count++] = (Trial){.of = &r->copy, .run = RUN_COPY};
  }
  run_trials(b, trials, count, round, keep);
  // AdamW does nothing where the loss or the gradients are not finite.
  int status = 0;
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    b->be[kind]->step_end(b->be[kind]);
    status |= take_result(b, (BenchKind)kind, err);
  }
  return status;
}

static void layers_round(Bench *b, int round, bool keep) {
  Trial trials[BENCH_KINDS * BENCH_PASSES];
  int count = 0;
  const int index = (int)(rng_u64(12, (uint64_t)round) >> 40);
  for (int kind = 0; kind < BENCH_KINDS; kind++)
    for (int pass = 0; pass < BENCH_PASSES; pass++)
      trials[count++] = (Trial){.of = &b->result.layer[pass][kind],
                                .run = kind,
                                .layer = true,
                                .what = pass,
                                .index = index};
  run_trials(b, trials, count, round, keep);
}

// As a program without this bench would time them.
static void gemms_alone(Bench *b) {
  enum { MOST_CALLS = 50, LEAST_CALLS = 3 };
  BenchGpu *g = b->gpu;
  Backend *be = b->be[BENCH_UNFUSED];
  for (int i = 0; i < b->result.op_count; i++) {
    BenchOp *op = &b->result.ops[i];
    if (op->call.class != CLASS_GEMM) continue;
    const int calls = within((int)(5 / op->bare.median) + 1, LEAST_CALLS, MOST_CALLS);
    const OperationCall *gemm =
        record_alone(b->recorder, &b->llama[BENCH_UNFUSED], op->call.operation, 0);
    g->turn(g, be);
    g->gemm(g, gemm);
    const int from = g->mark(g, be);
    for (int call = 0; call < calls; call++) g->gemm(g, gemm);
    const int to = g->mark(g, be);
    op->alone = g->ms(g, from, to) / calls;
    g->forget(g);
  }
}

// ---- The whole

static int steps_round(Bench *b, int round, int count, bool keep, Error *err) {
  double median[BENCH_KINDS];
  const int64_t first = b->batches;
  for (int i = 0; i < BENCH_KINDS; i++) {
    const int kind = (i + round) % BENCH_KINDS; // each kind is the first in half of the rounds
    if (run_steps(b, (BenchKind)kind, first, count + 1, keep, &median[kind], err) != 0) return -1;
  }
  if (keep) add_sample(b, &b->result.gain, median[BENCH_UNFUSED] / median[BENCH_FUSED]);
  return 0;
}

// FP8: makes what dx is filled with as large as its copies' scales expect, which follow from the
// steps before. Else copies would be saturated or all zero, and multiplying those takes less power.
// Normal values reach 6 deviations; layers differ, and copies mind too large values more.
static void spread_as_gradients(Bench *b) {
  const ModelConfig *c = &b->config.model;
  Backend *be = b->be[BENCH_UNFUSED];
  ScalingState *states = xmalloc((size_t)scaling_count(c) * sizeof *states);
  float least = INFINITY;
  be->scalings_read(be, states);
  for (int64_t l = 1; l <= c->num_hidden_layers; l++) { // the embedding reads no copies
    const float largest = states[scaling_index(c, l, TENSOR_dx)].history[0];
    if (largest > 0) least = fminf(least, largest);
  }
  free(states);
  if (isfinite(least)) b->gpu->spread(b->gpu, (double)least / 8);
}

int bench_measure(Bench *b, Error *err) {
  BenchResult *r = &b->result;
  double first[BENCH_KINDS];
  for (int kind = 0; kind < BENCH_KINDS; kind++)
    if (run_steps(b, (BenchKind)kind, 0, FIRST_STEPS, false, &first[kind], err) != 0) return -1;
  if (b->llama[BENCH_FUSED].shape.fp8) spread_as_gradients(b);
  const int steps =
      within((int)(timed_steps_ms / first[BENCH_FUSED]), LEAST_TIMED_STEPS, MOST_TIMED_STEPS);
  const double usual = r->whole ? usual_seconds : usual_op_seconds,
               most_ms = 1e3 * (b->seconds > 0 ? b->seconds : usual),
               warm_up_ms = fmin(most_warm_up_ms, most_ms / 4), opened = now_ms();
  double began = opened;
  while (r->rounds < MOST_ROUNDS) {
    const bool keep = r->warm_up_rounds > 0 && now_ms() - opened > warm_up_ms;
    if (keep && r->rounds == 0) {
      began = now_ms();
      memset(r->busy, 0, sizeof r->busy);
    }
    if (r->rounds >= LEAST_ROUNDS && now_ms() - began > most_ms) break;
    const int round = r->warm_up_rounds + r->rounds;
    if (r->whole && steps_round(b, round, steps, keep, err) != 0) return -1;
    if (operations_round(b, round, keep, err) != 0) return -1;
    if (r->whole) layers_round(b, round, keep);
    if (keep)
      r->rounds++;
    else
      r->warm_up_rounds++;
  }
  r->seconds = (now_ms() - began) * 1e-3;
  sum_up(b);
  gemms_alone(b);
  return 0;
}
