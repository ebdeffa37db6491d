// Measures for ./train --bench: opens both kinds of kernels on one set of memory, and times steps,
// layers and operations in turns.
#include "model/run/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/command.h"
#include "base/memory.h"
#include "base/os.h"
#include "base/rng.h"
#include "kernels/gpu_backends.h"
#include "model/optimizer.h"
#include "model/ranges.h"
#include "model/run/backend.h"
#include "model/run/log.h"
#include "model/tensors.h"

typedef struct Sample {
  Spread *of; // in the result
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
  BenchResult *result;
  AdamW hyper;
  int32_t *tokens; // [2, B, T]: a batch and its targets
  int64_t batches; // loaded so far: the next one's random key
  Sample *samples;
  int sample_count, sample_capacity;
  double seconds;    // of measuring; 0: as many as usual
  double sampled_ms; // when clocks and power were last read
} Bench;

// ---- The command line

int bench_parse(BenchArgs *args, int argc, char **argv, Error *err) {
  const char *only = NULL;
  char operations[1024] = "an operation of";
  for (Operation i = 0; i < OPERATION_COUNT; i++)
    if (operation_trains(i)) strcat(strcat(operations, " "), operation_name(i));
  *args = (BenchArgs){.only = OPERATION_COUNT, .overrides = argv};
  const Option options[] = {
      {.name = "--op", .needs = operations, .text = &only},
      {.name = "--seconds", .low = 0.1, .high = 3600, .number = &args->seconds}};
  for (int i = 0; i < argc; i++) {
    if (argv[i][0] == '-') {
      if (option_read(options, 2, "--bench", argc, argv, &i, err) != 0) return -1;
    } else if (!args->config) {
      args->config = argv[i];
    } else {
      args->overrides[args->override_count++] = argv[i];
    }
  }
  for (Operation i = 0; only && i < OPERATION_COUNT; i++)
    if (operation_trains(i) && strcmp(only, operation_name(i)) == 0) args->only = i;
  if (only && args->only == OPERATION_COUNT)
    return error_set(err, "--op needs %s, and '%.100s' is none", operations, only);
  return args->config ? 0 : error_set(err, "--bench: no config given; see ./train --help");
}

// ---- The model: random weights, one set of memory for both kinds, one operation at a time

enum { PATTERN = (1 << 22) - 3 }; // a prime: no two rows of a matrix are alike

static void fill_tensor(Llama *llama, const ParamTensor *t, uint64_t key, float *pattern) {
  Backend *be = llama->be;
  const int64_t n = t->rows * t->cols, most = n < PATTERN ? n : PATTERN;
  const double deviation = llama->config.initializer_range;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < most; i++)
    pattern[i] = t->vector ? 1 : (float)(deviation * rng_normal(key, (uint64_t)i)); // norms are 1
  for (int64_t i = 0; i < n; i += PATTERN)
    be->services.write_master(be, t, i, pattern, n - i < PATTERN ? n - i : PATTERN);
}

// Normal weights, moments zero, compute copies written. Not those of a run: large tensors repeat a
// pattern of four million values, each tensor its own, so that billions are there in seconds.
static void random_weights(Llama *llama, uint64_t seed) {
  float *pattern = xmalloc(PATTERN * sizeof *pattern);
  for (int i = 0; i < llama->param_count; i++)
    fill_tensor(llama, &llama->tensors[i], rng_mix(seed) + (uint64_t)i, pattern);
  free(pattern);
  llama_zero_moments(llama);
  llama->be->services.refresh(llama->be, llama->tensors, llama->param_count);
}

static void take_stat(Arena *arena, const Backend *be, int64_t most_parts, RowStat *s) {
  s->stride = be->max_tokens;
  s->data = arena_take(arena, (size_t)(most_parts * s->stride) * be->stat_bytes);
}

static size_t lay_out_statistics(Acts *acts, int64_t L, const Backend *be, char *block) {
  Arena arena = {block, 0};
  for (int64_t l = 0; l < L; l++) {
    take_stat(&arena, be, be->most_parts.sumsq, &acts->layers[l].x_sumsq);
    take_stat(&arena, be, be->most_parts.sumsq, &acts->layers[l].x1_sumsq);
  }
  take_stat(&arena, be, be->most_parts.sumsq, &acts->layers[L].x_sumsq);
  take_stat(&arena, be, be->most_parts.s, &acts->s);
  return arena.used;
}

int bench_share(Llama *to, const Llama *llama, Backend *be, Error *err) {
  const int64_t L = llama->config.num_hidden_layers;
  *to = *llama;
  to->be = be;
  if (!be->folds_softmax) to->acts.softmax_scale = NULL;
  to->acts.layers = xmalloc((size_t)(L + 1) * sizeof *to->acts.layers);
  for (int64_t l = 0; l <= L; l++) to->acts.layers[l] = llama->acts.layers[l];
  const size_t bytes = lay_out_statistics(&to->acts, L, be, NULL);
  to->acts_block = be->services.alloc(be, bytes);
  if (!to->acts_block) {
    bench_unshare(to);
    return error_set(err, "the GPU has no %s left for the row statistics of the second kind",
                     size_text(bytes).text);
  }
  be->services.zero(be, to->acts_block, bytes);
  lay_out_statistics(&to->acts, L, be, to->acts_block);
  return 0;
}

void bench_unshare(Llama *to) {
  if (!to->be) return;
  if (to->acts_block) to->be->services.release(to->be, to->acts_block);
  free(to->acts.layers);
  *to = (Llama){0};
}

int bench_sum_apart(Llama *llama, size_t *bytes, Error *err) {
  ParamTensor *head = llama->lm_head;
  *bytes = 0;
  if (!head->part_sum) return 0;
  *bytes = (size_t)(head->rows * head->cols) * llama->be->stat_bytes;
  head->part_sum = (stat_t *)llama->be->services.alloc(llama->be, *bytes);
  if (head->part_sum) return 0;
  return error_set(err, "the GPU has no %s left for the sum of lm_head's gradient",
                   size_text(*bytes).text);
}

// A micro-batch and its update, but of one layer and one chunk of the loss: every operation once.
static void issue_slice(Llama *llama, int index, bool accumulate) {
  const int64_t l = index % llama->config.num_hidden_layers,
                chunk = index % llama->shape.loss_chunks;
  const double per_token = 1 / (double)(llama->shape.batch * llama->shape.seq);
  embed_forward(llama);
  layer_forward(llama, l);
  head_backward(llama, chunk, per_token, accumulate);
  layer_backward(llama, l, accumulate);
  embed_backward(llama, accumulate);
  params_update(llama);
}

void issue_alone(Llama *llama, Operation operation, int index, bool accumulate) {
  llama->left_out = ~(1u << operation);
  issue_slice(llama, index, accumulate);
  llama->left_out = 0;
}

Recorder *record_slice(const Llama *llama) {
  const OpsConfig ops = llama_ops_config(&llama->config, &llama->shape, 1, 0);
  Recorder *recorder = recorder_create(&ops, llama->be);
  Llama recorded = *llama;
  recorded.be = &recorder->base;
  issue_slice(&recorded, 0, false);
  return recorder;
}

// The call of issue_alone, recorded in place of the recorder's calls.
static const OperationCall *record_alone(Recorder *recorder, const Llama *llama,
                                         Operation operation, int index) {
  Llama recorded = *llama;
  recorded.be = &recorder->base;
  recorder->count = 0;
  issue_alone(&recorded, operation, index, false);
  return recorder->calls;
}

int prepared_by(const OperationCall *calls, int i) {
  const Operation operation = calls[i].operation;
  const bool of_head = operation == OP_lm_head_wgrad || operation == OP_lm_head_dgrad;
  const void *input = calls[i].made_before;
  int j = input || of_head ? i - 1 : -1;
  while (j >= 0 &&
         (of_head ? calls[j].operation != OP_head_loss
                  : calls[j].out != input && calls[j].beside != input && calls[j].copies != input))
    j--;
  return j;
}

void list_makers(const Recorder *slice, int makers[OPERATION_COUNT]) {
  for (int i = 0; i < OPERATION_COUNT; i++) makers[i] = -1;
  for (int i = 0; i < slice->count; i++) {
    const int maker = prepared_by(slice->calls, i);
    if (maker >= 0) makers[slice->calls[i].operation] = (int)slice->calls[maker].operation;
  }
}

void issue_inputs(Llama *llama, Recorder *recorder, const int makers[OPERATION_COUNT],
                  Operation operation, int index) {
  const OperationCall call = *record_alone(recorder, llama, operation, index);
  if (call.fp8 && call.input.data) {
    const bool transposed = call.form == GEMM_TN;
    llama->be->repack(llama->be, transposed ? call.K : call.M, transposed ? call.M : call.K,
                      call.input);
  }
  if (makers[operation] < 0) return;
  const Operation maker = (Operation)makers[operation];
  issue_inputs(llama, recorder, makers, maker, index);
  issue_alone(llama, maker, index, false);
}

// ---- The operations of a step, read off a recording of the model's own functions

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
                                      .bare = spread_of(NULL, 0)};
  }
  // A micro-batch, its update, and the passes of a layer, one after the other
  const AdamW hyper = {.gradient_scale = 1};
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

// ---- Measuring

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

// The measured kernel: a BenchKind, a bare GEMM, or one of the two measures.
enum { RUN_BARE = BENCH_KINDS, RUN_PEAK, RUN_COPY };

typedef struct Trial {
  Spread *of; // in the result: the measured times
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
  Busy *busy = &b->result->busy[with];
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
  llama_load_batch(llama, &(Batch){.tokens = b->tokens, .targets = b->tokens + M});
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
  const StepResult result = b->be[kind]->services.step_result(b->be[kind]);
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
  be->services.scalings_discard(be); // of operations out of order
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
    if (keep) add_sample(b, &b->result->step[kind], times[i - 1]);
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
  BenchResult *r = b->result;
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
  issue_inputs(llama, b->recorder, b->makers, OP_qkv, t->index);
  // z is the kind's own, and the backward overwrites it
  if (t->what == PASS_BACKWARD) layer_forward(llama, t->index % llama->config.num_hidden_layers);
  if (t->what != PASS_FORWARD) issue_inputs(llama, b->recorder, b->makers, OP_down_wgrad, t->index);
}

// Calls that belong to neither kind run on the unfused one's stream.
static void run_trial(Bench *b, Trial *t) {
  const BenchKind kind = t->run == BENCH_FUSED ? BENCH_FUSED : BENCH_UNFUSED;
  BenchGpu *g = b->gpu;
  Backend *be = b->be[kind];
  Llama *llama = &b->llama[kind];
  g->turn(g, be);
  // No scale follows from the outputs of operations out of order: AdamW alone keeps all as they
  // are.
  be->services.scalings_discard(be);
  // Out of order dx goes round in a circle, through dz or attention and back, and would grow.
  g->fill(g, be, llama->acts.layers[0].dx.data,
          llama->shape.batch * llama->shape.seq * llama->config.hidden_size);
  if (t->layer)
    prepare_layer(b, llama, t);
  else if (t->run <= RUN_BARE)
    issue_inputs(llama, b->recorder, b->makers, b->result->ops[t->what].call.operation, t->index);
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
  BenchResult *r = b->result;
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
    b->be[kind]->services.step_end(b->be[kind]);
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
      trials[count++] = (Trial){.of = &b->result->layer[pass][kind],
                                .run = kind,
                                .layer = true,
                                .what = pass,
                                .index = index};
  run_trials(b, trials, count, round, keep);
}

// ---- All of it

static int steps_round(Bench *b, int round, int count, bool keep, Error *err) {
  double median[BENCH_KINDS];
  const int64_t first = b->batches;
  for (int i = 0; i < BENCH_KINDS; i++) {
    const int kind = (i + round) % BENCH_KINDS; // each kind is the first in half of the rounds
    if (run_steps(b, (BenchKind)kind, first, count + 1, keep, &median[kind], err) != 0) return -1;
  }
  if (keep) add_sample(b, &b->result->gain, median[BENCH_UNFUSED] / median[BENCH_FUSED]);
  return 0;
}

// FP8: the kinds share the weights' copies, so the unfused one takes the scales that the fused one
// has found.
static void share_scalings(Bench *b) {
  Backend *from = b->be[BENCH_FUSED], *to = b->be[BENCH_UNFUSED];
  ScalingState *states = xcalloc((size_t)scaling_count(&b->config.model), sizeof *states);
  from->services.scalings_read(from, states);
  to->services.scalings_write(to, states);
  free(states);
}

// FP8: fills dx with values as large as its copies' scales expect, which follow from the
// steps before. Else copies would be saturated or all zero, and multiplying those takes less power.
// Normal values reach 6 deviations; layers differ, and copies mind too large values more.
static void spread_as_gradients(Bench *b) {
  const ModelConfig *c = &b->config.model;
  Backend *be = b->be[BENCH_UNFUSED];
  ScalingState *states = xmalloc((size_t)scaling_count(c) * sizeof *states);
  float least = INFINITY;
  be->services.scalings_read(be, states);
  for (int64_t l = 1; l <= c->num_hidden_layers; l++) { // the embedding reads no copies
    const float largest = states[scaling_index(c, l, TENSOR_dx)].history[0];
    if (largest > 0) least = fminf(least, largest);
  }
  free(states);
  if (isfinite(least)) b->gpu->spread(b->gpu, (double)least / 8);
}

static int measure(Bench *b, Error *err) {
  BenchResult *r = b->result;
  double first[BENCH_KINDS];
  const bool fp8 = b->llama[BENCH_FUSED].shape.fp8;
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    if (run_steps(b, (BenchKind)kind, 0, FIRST_STEPS, false, &first[kind], err) != 0) return -1;
    if (fp8 && kind == BENCH_FUSED) share_scalings(b);
  }
  if (fp8) spread_as_gradients(b);
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
  return 0;
}

// ---- Opening

static int open_backends(Bench *b, RunShape *shape, Error *err) {
  GpuMemory memory;
  if (gpu_usable(&memory, err) != 0)
    return error_prefix(err, "the bench times an NVIDIA GPU's kernels");
  Config c = b->config;
  const bool all_fused = c.backend.kernels == KERNELS_FUSED;
  const KernelChoice kernels[] = {all_fused ? KERNELS_FUSED : KERNELS_AUTO, KERNELS_UNFUSED};
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    c.backend.kernels = kernels[kind];
    b->be[kind] = backend_create(&c, shape, c.train.sequence_length, err);
    if (!b->be[kind]) return -1;
  }
  return 0;
}

static int check_memory(const Bench *b, const RunShape *shape, size_t own, Error *err) {
  const ModelConfig *m = &b->config.model;
  MemoryPlan fused, unfused;
  memory_plan(&fused, m, shape, b->be[BENCH_FUSED]);
  memory_plan(&unfused, m, shape, b->be[BENCH_UNFUSED]);
  const size_t beside = unfused.workspace_bytes, all = fused.total_bytes + beside + own,
               there = b->be[BENCH_FUSED]->memory_bytes;
  printf("memory     %s: %s for a step, %s more for the other kind, %s for the bench; the GPU has "
         "%s\n",
         size_text(all).text, size_text(fused.total_bytes).text, size_text(beside).text,
         size_text(own).text, size_text(there).text);
  fflush(stdout);
  if (all <= there) return 0;
  return error_set(err,
                   "the bench needs %s and the GPU has %s: take a smaller train.batch_size, more "
                   "train.loss_chunks, or fewer layers (model.num_hidden_layers=%lld), which "
                   "changes no operation",
                   size_text(all).text, size_text(there).text,
                   (long long)(m->num_hidden_layers > 1 ? m->num_hidden_layers / 2 : 1));
}

static void print_model(const Config *c, const Llama *llama) {
  static const char *const recompute[] = {"none", "mlp", "layer"};
  const RunShape *s = &llama->shape;
  printf("model      %s\n", model_text(&c->model).text);
  printf("step       %lld x %lld x %lld tokens (accumulation x sequences x length), loss in %lld "
         "piece%s, recompute %s, %s, %s\n",
         (long long)c->train.gradient_accumulation, (long long)s->batch, (long long)s->seq,
         (long long)s->loss_chunks, s->loss_chunks == 1 ? "" : "s", recompute[s->recompute],
         precision_name(c->backend.precision), optimizer_name(c->optimizer.kind));
  printf("backend    %s\n", llama->be->description);
}

static int open_bench(Bench *b, const BenchArgs *args, Error *err) {
  const Config *c = &b->config;
  RunShape shape = run_shape(c);
  shape.context = 0; // no samples
  if (open_backends(b, &shape, err) != 0) return -1;
  Llama *fused = &b->llama[BENCH_FUSED], *unfused = &b->llama[BENCH_UNFUSED];
  if (llama_create(fused, &c->model, &shape, b->be[BENCH_FUSED], err) != 0) return -1;
  size_t sum_bytes;
  if (bench_sum_apart(fused, &sum_bytes, err) != 0) return -1;
  b->sum = fused->lm_head->part_sum;
  if (bench_share(unfused, fused, b->be[BENCH_UNFUSED], err) != 0) return -1;
  bench_list(b->result, fused, c->train.gradient_accumulation, args->only);
  if (b->result->op_count == 0)
    return error_set(err, "--op %s: this run has none; with optimizer.kind=muon it has",
                     operation_name(args->only));
  print_model(c, fused);
  b->recorder = record_slice(unfused);
  const OperationCall *calls = b->recorder->calls;
  const int count = b->recorder->count;
  list_makers(b->recorder, b->makers);
  if (check_memory(b, &shape, bench_gpu_bytes(calls, count) + sum_bytes, err) != 0) return -1;
  b->gpu = bench_gpu_open(b->be[BENCH_FUSED], b->be[BENCH_UNFUSED], calls, count, err);
  if (!b->gpu) return -1;
  b->result->facts = b->gpu->facts;
  b->hyper = adamw_at(&c->optimizer, 0, 1);
  // The weights stay as they are, and so do the scales of their FP8 copies, which the kinds share.
  b->hyper.learning_rate = 0;
  const size_t M = (size_t)(shape.batch * shape.seq);
  b->tokens = xmalloc(2 * M * sizeof *b->tokens);
  random_weights(fused, c->train.seed);
  b->gpu->turn(b->gpu, b->be[BENCH_UNFUSED]);
  return 0;
}

static void close_bench(Bench *b) {
  if (b->gpu) b->gpu->close(b->gpu);
  recorder_destroy(b->recorder);
  bench_unshare(&b->llama[BENCH_UNFUSED]);
  if (b->sum) b->be[BENCH_FUSED]->services.release(b->be[BENCH_FUSED], b->sum);
  if (b->llama[BENCH_FUSED].be) llama_destroy(&b->llama[BENCH_FUSED]);
  for (int kind = 0; kind < BENCH_KINDS; kind++)
    if (b->be[kind]) b->be[kind]->services.destroy(b->be[kind]);
  free(b->samples);
  free(b->tokens);
}

// ---- The whole

int bench_run(const BenchArgs *args, BenchResult *result, Error *err) {
  Bench *b = xcalloc(1, sizeof *b);
  int status = config_load(&b->config, args->config, args->override_count, args->overrides, err);
  b->config.backend.device = DEVICE_CUDA;
  b->config.output.profile_steps = 0;
  b->seconds = args->seconds;
  *result = (BenchResult){.whole = args->only == OPERATION_COUNT};
  b->result = result;
  if (status == 0) status = open_bench(b, args, err);
  if (status == 0) status = measure(b, err);
  if (status == 0) bench_print(result);
  close_bench(b);
  free(b);
  return status;
}
