#include "model/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "kernels/gpu_backends.h"
#include "model/run/backend.h"
#include "model/bench/model.h"
#include "model/bench/numbers.h"
#include "model/run/log.h"
#include "model/step.h"

enum {
  FIRST_STEPS = 3, // launched, recorded, replayed
  LEAST_ROUNDS = 4,
  MOST_ROUNDS = 1000,
  LEAST_TIMED_STEPS = 2,
  MOST_TIMED_STEPS = 16,
  LEAST_REPEATS = 2, // of an operation in a round: as many as a step calls it, in these limits,
  MOST_REPEATS = 8,  // so that the load is about a step's
  MOST_TRIALS = MOST_REPEATS * OPERATION_COUNT * 3 + 2 * MOST_REPEATS,
  LAYER_TRIALS = BENCH_KINDS * BENCH_PASSES,
};
static const double usual_seconds = 8, usual_op_seconds = 3, // without --seconds
    most_warm_up_ms = 600, timed_steps_ms = 200, sample_interval_ms = 50;

// What is timed: an operation or a layer's pass in a kind, or one of three things that are neither
// kind's.
enum { RUN_BARE = BENCH_KINDS, RUN_PEAK, RUN_COPY };

typedef struct Trial {
  int run;      // a BenchKind, or one of the above
  int what;     // index of the operation, or a BenchPass
  int index;    // which layer, which chunk of the loss
  int from, to; // time stamps
} Trial;

typedef struct Samples {
  double *ms;
  int count, capacity;
} Samples;

typedef struct Bench {
  Config config;
  Backend *be[BENCH_KINDS];
  Llama llama[BENCH_KINDS]; // the same memory, but for the row statistics
  BenchGpu *gpu;
  BenchResult result;
  AdamW hyper;
  int32_t *tokens, *targets;                     // [B, T] each
  int64_t batches;                               // loaded so far: the next one's random key
  Samples ops[OPERATION_COUNT][BENCH_KINDS + 1]; // RUN_BARE's last
  Samples layers[BENCH_PASSES][BENCH_KINDS], steps[BENCH_KINDS], gains, peak, copy;
  double seconds;    // of measuring; 0: as many as usual
  double sampled_ms; // when clocks and power were last read
} Bench;

// ---- The command line

static void list_operations(char *text, size_t bytes) {
  text[0] = '\0';
  for (int i = 0; i < OPERATION_COUNT; i++) {
    const size_t used = strlen(text);
    if (i != OP_VALIDATION_LOSS)
      snprintf(text + used, bytes - used, "%s%s", used ? " " : "", operation_name((Operation)i));
  }
}

static int parse_operation(const char *name, Operation *operation, Error *err) {
  for (int i = 0; name && i < OPERATION_COUNT; i++)
    if (i != OP_VALIDATION_LOSS && strcmp(name, operation_name((Operation)i)) == 0) {
      *operation = (Operation)i;
      return 0;
    }
  char all[1024];
  list_operations(all, sizeof all);
  return error_set(err, "--op needs an operation%s%.100s%s; there are %s", name ? ", and '" : "",
                   name ? name : "", name ? "' is none" : "", all);
}

static int parse_seconds(const char *text, double *seconds, Error *err) {
  char *end = NULL;
  *seconds = text ? strtod(text, &end) : 0;
  if (text && end != text && *end == '\0' && *seconds >= 0.1 && *seconds <= 3600) return 0;
  return error_set(err, "--seconds needs a number from 0.1 to 3600, not '%.100s'",
                   text ? text : "");
}

int bench_parse(BenchArgs *args, int argc, char **argv, Error *err) {
  *args = (BenchArgs){.only = OPERATION_COUNT, .overrides = argv};
  for (int i = 0; i < argc; i++) {
    const char *next = i + 1 < argc ? argv[i + 1] : NULL;
    if (strcmp(argv[i], "--json") == 0) {
      if (!next || next[0] == '\0' || next[0] == '-')
        return error_set(err, "--json needs a file to write to");
      args->json = argv[++i];
    } else if (strcmp(argv[i], "--op") == 0) {
      if (parse_operation(next, &args->only, err) != 0) return -1;
      i++;
    } else if (strcmp(argv[i], "--seconds") == 0) {
      if (parse_seconds(next, &args->seconds, err) != 0) return -1;
      i++;
    } else if (argv[i][0] == '-') {
      return error_set(err, "unknown option '%s' of --bench; there are --op, --json and --seconds",
                       argv[i]);
    } else if (!args->config) {
      args->config = argv[i];
    } else {
      args->overrides[args->override_count++] = argv[i];
    }
  }
  return args->config ? 0 : error_set(err, "--bench: no config given; see ./train --help");
}

// ---- Opening

static int open_backends(Bench *b, RunShape *shape, Error *err) {
  size_t memory;
  if (gpu_usable(&memory, err) != 0)
    return error_prefix(err, "the bench times an NVIDIA GPU's kernels");
  Config c = b->config;
  const Kernels kernels[BENCH_KINDS] = {KERNELS_FUSED, KERNELS_UNFUSED};
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    c.backend.kernels = kernels[kind];
    b->be[kind] = backend_create(&c, shape, c.train.sequence_length, err);
    if (!b->be[kind]) return -1;
  }
  return 0;
}

// Of the bare products' results that have no place of their own.
static size_t scratch_bytes(const Bench *b) {
  size_t most = 0;
  for (int i = 0; i < b->result.op_count; i++) {
    const BenchOp *op = &b->result.ops[i];
    if (op->class != CLASS_PRODUCT || op->operation == OP_HEAD_LOSS ||
        op->operation == OP_LM_HEAD_WGRAD)
      continue;
    const size_t bytes = (size_t)(op->product.M * op->product.N) * (op->product.out_fp32 ? 4 : 2);
    if (bytes > most) most = bytes;
  }
  return most;
}

static int check_memory(const Bench *b, const RunShape *shape, Error *err) {
  const ModelConfig *m = &b->config.model;
  MemoryPlan fused, unfused;
  memory_plan(&fused, m, shape, b->be[BENCH_FUSED]);
  memory_plan(&unfused, m, shape, b->be[BENCH_UNFUSED]);
  const size_t beside = unfused.workspace_bytes, own = bench_gpu_bytes(scratch_bytes(b)),
               all = fused.total_bytes + beside + own, there = b->be[BENCH_FUSED]->memory_bytes;
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

static void describe(Bench *b, const BenchArgs *args) {
  BenchResult *r = &b->result;
  const RunShape *s = &b->llama[BENCH_FUSED].shape;
  static const char *const recompute[] = {"none", "mlp", "layer"};
  snprintf(r->config, sizeof r->config, "%s", args->config);
  snprintf(r->model, sizeof r->model, "%s", model_text(&b->config.model).text);
  snprintf(r->step_shape, sizeof r->step_shape,
           "%lld x %lld x %lld tokens (accumulation x sequences x length), loss in %lld piece%s, "
           "recompute %s",
           (long long)b->config.train.gradient_accumulation, (long long)s->batch, (long long)s->seq,
           (long long)s->loss_chunks, s->loss_chunks == 1 ? "" : "s", recompute[s->recompute]);
  snprintf(r->gpu, sizeof r->gpu, "%s", b->be[BENCH_FUSED]->description);
}

static int open_bench(Bench *b, const BenchArgs *args, Error *err) {
  const Config *c = &b->config;
  RunShape shape = run_shape(c);
  shape.context = 0; // no samples
  if (open_backends(b, &shape, err) != 0) return -1;
  Llama *fused = &b->llama[BENCH_FUSED];
  if (llama_create(fused, &c->model, &shape, b->be[BENCH_FUSED], err) != 0) return -1;
  if (bench_share(&b->llama[BENCH_UNFUSED], fused, b->be[BENCH_UNFUSED], err) != 0) return -1;
  bench_ops_list(&b->result, fused, c->train.gradient_accumulation, args->only);
  describe(b, args);
  printf("model      %s\nstep       %s\nbackend    %s\n", b->result.model, b->result.step_shape,
         b->result.gpu);
  if (check_memory(b, &shape, err) != 0) return -1;
  b->gpu = bench_gpu_open(b->be[BENCH_FUSED], b->be[BENCH_UNFUSED], scratch_bytes(b), err);
  if (!b->gpu) return -1;
  b->result.facts = bench_gpu_facts(b->gpu);
  for (int i = 0; i < b->result.op_count; i++)
    if (b->result.ops[i].class == CLASS_PRODUCT &&
        bench_gpu_prepare(b->gpu, &b->result.ops[i].product, err) != 0)
      return -1;
  const OptimizerConfig *o = &c->optimizer;
  b->hyper = (AdamW){.learning_rate = 1e-6, // the weights stay what they are
                     .beta1 = o->beta1,
                     .beta2 = o->beta2,
                     .eps = o->eps,
                     .weight_decay = o->weight_decay,
                     .clip_norm = o->clip_norm};
  const size_t M = (size_t)(shape.batch * shape.seq);
  b->tokens = xmalloc(2 * M * sizeof *b->tokens);
  b->targets = b->tokens + M;
  bench_weights(fused, c->train.seed);
  bench_gpu_turn(b->gpu, b->be[BENCH_UNFUSED]);
  return 0;
}

static void close_bench(Bench *b) {
  bench_gpu_close(b->gpu);
  bench_unshare(&b->llama[BENCH_UNFUSED]);
  if (b->llama[BENCH_FUSED].be) llama_destroy(&b->llama[BENCH_FUSED]);
  for (int kind = 0; kind < BENCH_KINDS; kind++)
    if (b->be[kind]) b->be[kind]->destroy(b->be[kind]);
  Samples *const all[] = {&b->gains, &b->peak, &b->copy};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->ms);
  for (int kind = 0; kind <= BENCH_KINDS; kind++)
    for (int i = 0; i < OPERATION_COUNT; i++) free(b->ops[i][kind].ms);
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    for (int pass = 0; pass < BENCH_PASSES; pass++) free(b->layers[pass][kind].ms);
    free(b->steps[kind].ms);
  }
  free(b->tokens);
}

// ---- Samples

static void add_sample(Samples *s, double value) {
  if (s->count == s->capacity) {
    s->capacity = 2 * s->capacity + 16;
    s->ms = xrealloc(s->ms, (size_t)s->capacity * sizeof *s->ms);
  }
  s->ms[s->count++] = value;
}

// Clocks and power, at times, while the GPU has work.
static void read_clocks(Bench *b, BusyWith with) {
  if (now_ms() - b->sampled_ms < sample_interval_ms) return;
  const GpuSample s = bench_gpu_sample(b->gpu);
  Busy *busy = &b->result.busy[with];
  busy->sum.clock_mhz += s.clock_mhz;
  busy->sum.watts += s.watts;
  busy->sum.celsius += s.celsius;
  busy->count++;
  b->sampled_ms = now_ms();
}

// ---- Steps, as the trainer asks for them

typedef struct BatchSource {
  Bench *b;
  Llama *llama;
} BatchSource;

static void load_random(void *context) {
  const BatchSource *source = context;
  Bench *b = source->b;
  const int64_t M = source->llama->shape.batch * source->llama->shape.seq;
  const uint64_t key = (uint64_t)b->batches++, V = (uint64_t)b->config.model.vocab_size;
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < 2 * M; m++) b->tokens[m] = (int32_t)(rng_u64(key, (uint64_t)m) % V);
  llama_load_batch(source->llama, b->tokens, b->targets);
}

static int take_result(Bench *b, BenchKind kind, Error *err) {
  const StepResult result = b->be[kind]->step_result(b->be[kind]);
  if (result.applied) return 0;
  return error_set(
      err,
      "the loss (%g) or gradient norm (%g) of %s kernels on random weights is not finite, "
      "so that their AdamW was skipped and its time says nothing: run ./train --doctor",
      result.loss, result.grad_norm, kind == BENCH_FUSED ? "fused" : "unfused");
}

// `count` steps in a row; the times of all but the first go into `samples`. Returns their median.
static int run_steps(Bench *b, BenchKind kind, int count, Samples *samples, double *median,
                     Error *err) {
  Backend *be = b->be[kind];
  BatchSource source = {b, &b->llama[kind]};
  StepRequest request = {.llama = &b->llama[kind],
                         .accumulation = b->config.train.gradient_accumulation,
                         .next_batch = load_random,
                         .context = &source};
  int marks[MOST_TIMED_STEPS + 1], status = 0, taken = 0;
  double times[MOST_TIMED_STEPS];
  bench_gpu_turn(b->gpu, be);
  for (int i = 0; i < count; i++) {
    step_ask(&request, &b->hyper);
    marks[i] = bench_gpu_mark(b->gpu, be);
    read_clocks(b, kind == BENCH_FUSED ? BUSY_FUSED : BUSY_UNFUSED);
    if (i - taken < be->steps_ahead) continue;
    if (take_result(b, kind, err) != 0) status = -1;
    taken++;
  }
  for (; taken < count; taken++)
    if (take_result(b, kind, err) != 0) status = -1;
  for (int i = 1; i < count; i++) {
    times[i - 1] = bench_gpu_ms(b->gpu, marks[i - 1], marks[i]);
    if (samples) add_sample(samples, times[i - 1]);
  }
  *median = spread_of(times, count - 1).median;
  bench_gpu_forget(b->gpu);
  return status;
}

// ---- Operations and layers

static bool adds_up(const Bench *b, const BenchOp *op, int index) {
  return b->config.train.gradient_accumulation > 1 ||
         (op->operation == OP_LM_HEAD_WGRAD && index % b->llama[0].shape.loss_chunks > 0);
}

static void issue_layer(Llama *llama, BenchPass pass, int l, bool accumulate) {
  if (pass != PASS_BACKWARD) layer_forward(llama, l);
  if (pass == PASS_FORWARD) return;
  if (llama->shape.recompute != RECOMPUTE_NONE) layer_again(llama, l);
  layer_backward(llama, l, accumulate);
}

static void issue_bare(Bench *b, const BenchOp *op, int index) {
  const BareOperands o = bench_op_operands(&b->llama[BENCH_UNFUSED], op->operation, index);
  bench_gpu_product(b->gpu, &op->product, o.A, o.B, o.D);
}

static void issue_peak(Bench *b) {
  const BareProduct p = bench_gpu_peak(b->gpu);
  b->result.peak_flops = 2 * (double)p.M * (double)p.N * (double)p.K;
}

static void run_trial(Bench *b, Trial *t, bool layer) {
  const BenchKind kind = t->run < BENCH_KINDS ? (BenchKind)t->run : BENCH_UNFUSED;
  Llama *llama = &b->llama[kind];
  Backend *be = b->be[kind];
  BenchResult *r = &b->result;
  BenchOp *op = layer || t->run > RUN_BARE ? NULL : &r->ops[t->what];
  const int l = t->index % (int)b->config.model.num_hidden_layers;
  bench_gpu_turn(b->gpu, be);
  // Out of order dx goes round in a circle, through dz or attention and back, and would grow.
  bench_gpu_fill(b->gpu, be, llama->acts.dx,
                 (size_t)(llama->shape.batch * llama->shape.seq * llama->config.hidden_size) *
                     be->act_bytes);
  if (layer && t->what == PASS_BACKWARD)
    layer_forward(llama, l); // z is the kind's own, and the backward overwrites it
  else if (op && t->run < BENCH_KINDS)
    bench_op_prepare(llama, op->operation, t->index);
  bench_gpu_flush(b->gpu, be);
  t->from = bench_gpu_mark(b->gpu, be);
  if (layer)
    issue_layer(llama, (BenchPass)t->what, l, b->config.train.gradient_accumulation > 1);
  else if (t->run == RUN_PEAK)
    issue_peak(b);
  else if (t->run == RUN_COPY)
    r->copy_bytes = bench_gpu_copy(b->gpu);
  else if (t->run == RUN_BARE)
    issue_bare(b, op, t->index);
  else
    bench_op_issue(llama, op->operation, t->index, adds_up(b, op, t->index));
  t->to = bench_gpu_mark(b->gpu, be);
}

static Samples *samples_of(Bench *b, const Trial *t, bool layer) {
  if (layer) return &b->layers[t->what][t->run];
  if (t->run == RUN_PEAK) return &b->peak;
  if (t->run == RUN_COPY) return &b->copy;
  return &b->ops[t->what][t->run];
}

// In a random order, all asked for before the first is waited for.
static void run_trials(Bench *b, Trial *trials, int count, int round, bool layer, bool keep) {
  for (int i = count - 1; i > 0; i--) {
    const int j = (int)(rng_u64(13 + (uint64_t)layer, (uint64_t)(round * MOST_TRIALS + i)) %
                        (uint64_t)(i + 1));
    const Trial swap = trials[i];
    trials[i] = trials[j], trials[j] = swap;
  }
  for (int i = 0; i < count; i++) {
    run_trial(b, &trials[i], layer);
    read_clocks(b, BUSY_OPS);
  }
  for (int i = 0; i < count; i++) {
    const double ms = bench_gpu_ms(b->gpu, trials[i].from, trials[i].to);
    if (keep) add_sample(samples_of(b, &trials[i], layer), ms);
  }
  bench_gpu_forget(b->gpu);
}

static int operations_round(Bench *b, int round, bool keep, Error *err) {
  Trial trials[MOST_TRIALS];
  int count = 0;
  for (int i = 0; i < b->result.op_count; i++) {
    const BenchOp *op = &b->result.ops[i];
    const int repeats = op->calls < LEAST_REPEATS  ? LEAST_REPEATS
                        : op->calls > MOST_REPEATS ? MOST_REPEATS
                                                   : (int)op->calls;
    for (int repeat = 0; repeat < repeats; repeat++) {
      const int index = (int)(rng_u64(11, (uint64_t)(round * MOST_REPEATS + repeat)) >> 40);
      for (int run = 0; run <= (op->class == CLASS_PRODUCT ? RUN_BARE : BENCH_UNFUSED); run++)
        trials[count++] = (Trial){.run = run, .what = i, .index = index};
    }
  }
  for (int repeat = 0; repeat < LEAST_REPEATS; repeat++) {
    trials[count++] = (Trial){.run = RUN_PEAK};
    trials[count++] = (Trial){.run = RUN_COPY};
  }
  run_trials(b, trials, count, round, false, keep);
  // AdamW does nothing where the loss or the gradients are not finite.
  int status = 0;
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    b->be[kind]->step_end(b->be[kind]);
    if (take_result(b, (BenchKind)kind, err) != 0) status = -1;
  }
  return status;
}

static void layers_round(Bench *b, int round, bool keep) {
  Trial trials[LAYER_TRIALS];
  int count = 0;
  const int index = (int)(rng_u64(12, (uint64_t)round) >> 40);
  for (int kind = 0; kind < BENCH_KINDS; kind++)
    for (int pass = 0; pass < BENCH_PASSES; pass++)
      trials[count++] = (Trial){.run = kind, .what = pass, .index = index};
  run_trials(b, trials, count, round, true, keep);
}

// Products as a program without this bench would time them.
static void products_alone(Bench *b) {
  enum { MOST_CALLS = 50, LEAST_CALLS = 3 };
  for (int i = 0; i < b->result.op_count; i++) {
    BenchOp *op = &b->result.ops[i];
    if (op->class != CLASS_PRODUCT) continue;
    int calls = (int)(5 / op->bare.median) + 1;
    calls = calls < LEAST_CALLS ? LEAST_CALLS : calls > MOST_CALLS ? MOST_CALLS : calls;
    bench_gpu_turn(b->gpu, b->be[BENCH_UNFUSED]);
    issue_bare(b, op, 0);
    const int from = bench_gpu_mark(b->gpu, b->be[BENCH_UNFUSED]);
    for (int call = 0; call < calls; call++) issue_bare(b, op, 0);
    const int to = bench_gpu_mark(b->gpu, b->be[BENCH_UNFUSED]);
    op->alone = bench_gpu_ms(b->gpu, from, to) / calls;
    bench_gpu_forget(b->gpu);
  }
}

// ---- The whole

static int steps_round(Bench *b, int round, int count, bool keep, Error *err) {
  double median[BENCH_KINDS];
  for (int i = 0; i < BENCH_KINDS; i++) {
    const int kind = (i + round) % BENCH_KINDS; // each kind is the first in half of the rounds
    if (run_steps(b, (BenchKind)kind, count + 1, keep ? &b->steps[kind] : NULL, &median[kind],
                  err) != 0)
      return -1;
  }
  if (keep) add_sample(&b->gains, median[BENCH_UNFUSED] / median[BENCH_FUSED]);
  return 0;
}

static int measure(Bench *b, Error *err) {
  BenchResult *r = &b->result;
  double first[BENCH_KINDS];
  for (int kind = 0; kind < BENCH_KINDS; kind++)
    if (run_steps(b, (BenchKind)kind, FIRST_STEPS, NULL, &first[kind], err) != 0) return -1;
  int steps = (int)(timed_steps_ms / first[BENCH_FUSED]);
  if (steps < LEAST_TIMED_STEPS) steps = LEAST_TIMED_STEPS;
  if (steps > MOST_TIMED_STEPS) steps = MOST_TIMED_STEPS;
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
  return 0;
}

static void summarize(Bench *b) {
  BenchResult *r = &b->result;
  const Spread none = spread_of(NULL, 0);
  for (int i = 0; i < r->op_count; i++) {
    BenchOp *op = &r->ops[i];
    for (int kind = 0; kind < BENCH_KINDS; kind++)
      op->time[kind] = spread_of(b->ops[i][kind].ms, b->ops[i][kind].count);
    const Samples *bare = &b->ops[i][RUN_BARE];
    op->bare = op->class == CLASS_PRODUCT ? spread_of(bare->ms, bare->count) : none;
  }
  r->peak = spread_of(b->peak.ms, b->peak.count);
  r->copy = spread_of(b->copy.ms, b->copy.count);
  r->gain = spread_of(b->gains.ms, b->gains.count);
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    r->step[kind] = spread_of(b->steps[kind].ms, b->steps[kind].count);
    for (int pass = 0; pass < BENCH_PASSES; pass++)
      r->layer[pass][kind] = spread_of(b->layers[pass][kind].ms, b->layers[pass][kind].count);
  }
}

static int write_json(const char *path, const BenchResult *r, Error *err) {
  cJSON *root = bench_json(r);
  char *text = cJSON_Print(root);
  const int status = text ? file_write_atomic(path, text, strlen(text), err)
                          : error_set(err, "there is no memory left for the bench's JSON");
  cJSON_free(text);
  cJSON_Delete(root);
  return status;
}

int bench_run(const BenchArgs *args, Error *err) {
  Bench *b = xcalloc(1, sizeof *b);
  int status = config_load(&b->config, args->config, args->override_count, args->overrides, err);
  b->config.backend.device = DEVICE_CUDA;
  b->config.output.profile_steps = 0;
  b->seconds = args->seconds;
  b->result.whole = args->only == OPERATION_COUNT;
  if (status == 0 && args->json && file_check_writable(args->json, err) != 0)
    status = error_prefix(err, "--json"); // before minutes of measuring, not after
  if (status == 0) status = open_bench(b, args, err);
  if (status == 0) {
    Llama *const llamas[BENCH_KINDS] = {&b->llama[BENCH_FUSED], &b->llama[BENCH_UNFUSED]};
    status = bench_numbers(&b->result, llamas, (int)b->config.backend.threads, err);
  }
  if (status == 0) status = measure(b, err);
  if (status == 0) {
    summarize(b);
    products_alone(b);
    bench_print(&b->result);
    if (args->json) status = write_json(args->json, &b->result, err);
  }
  close_bench(b);
  free(b);
  return status;
}
