// Measures for ./train --bench: real training steps of both kinds of kernels alternate. Whole steps
// run as training runs them; in others the backend notes the time before and after each operation,
// or each layer (Services.mark).
#include "model/run/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/command.h"
#include "base/memory.h"
#include "base/os.h"
#include "base/rng.h"
#include "model/optimizer.h"
#include "model/run/backend.h"
#include "model/run/commands.h"
#include "model/run/log.h"
#include "model/tensors.h"

typedef struct Sample {
  Spread *of; // in the result
  double value;
} Sample;

// A run of one kind.
typedef struct Side {
  Backend *be;
  Llama llama;
  int64_t step; // so far
  int unread;   // results of steps
} Side;

typedef struct Bench {
  Config config;
  Side sides[BENCH_KINDS];
  BenchResult *result;
  bool listed;     // the operations, in the result
  int32_t *tokens; // [2, B, T]: a batch and its targets
  Mark *marks;     // [most_marks] of a block of steps
  int most_marks;
  double *forward; // [L] ms of a micro-batch's layers
  Sample *samples;
  int sample_count, sample_capacity;
  double seconds; // of measuring; 0: as many as usual
  bool quiet;     // prints nothing
} Bench;

enum {
  FIRST_STEPS = 4, // in FP8 calibrated, launched, recorded, replayed
  LEAST_ROUNDS = 4,
  MOST_ROUNDS = 1000,
  LEAST_TIMED_STEPS = 2,
  MOST_TIMES = 8, // as long as it was asked for, for the first steps of a slow run
  MOST_TIMED_STEPS = 16,
  COPIED_BY_GPU = 256 << 20, // bytes: more than caches hold
  COPIED_BY_CPU = 64 << 20,
  COPIES = 4,
};
static const double usual_seconds = 8, usual_op_seconds = 3, // without --seconds
    most_warm_up_ms = 600, timed_steps_ms = 200, copies_ms = 100;

// ---- The command line

// Reads the config; into the result, which operation is measured alone.
static int parse(Bench *b, int argc, char **argv, Error *err) {
  const char *only = NULL, *config = NULL;
  char operations[1024] = "an operation of";
  int overrides = 0;
  for (Operation i = 0; i < OPERATION_COUNT; i++)
    if (operation_trains(i)) strcat(strcat(operations, " "), operation_name(i));
  const Option options[] = {{.name = "--op", .needs = operations, .text = &only},
                            {.name = "--seconds", .low = 0.1, .high = 3600, .number = &b->seconds}};
  for (int i = 0; i < argc; i++) {
    if (argv[i][0] == '-') {
      if (option_read(options, 2, "--bench", argc, argv, &i, err) != 0) return -1;
    } else if (!config) {
      config = argv[i];
    } else {
      argv[overrides++] = argv[i];
    }
  }
  Operation *op = &b->result->only;
  for (Operation i = 0; only && i < OPERATION_COUNT; i++)
    if (operation_trains(i) && strcmp(only, operation_name(i)) == 0) *op = i;
  if (only && *op == OPERATION_COUNT)
    return error_set(err, "--op needs %s, and '%.100s' is none", operations, only);
  if (!config) return error_set(err, NO_CONFIG);
  if (config_load(&b->config, config, overrides, argv, err) != 0) return -1;
  b->config.output.profile_steps = 0;
  if (*op == OP_muon && b->config.optimizer.kind != OPTIMIZER_MUON)
    return error_set(err, "--op muon: this run has none; with optimizer.kind=muon it has");
  return 0;
}

// ---- Samples

static void add_sample(Bench *b, Spread *of, double value) {
  LIST_ROOM(b->samples, b->sample_count, b->sample_capacity);
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

// ---- What marks say

// Layers of a micro-batch come in order, and then in reverse.
static void add_layer(Bench *b, int kind, int64_t ordinal, double ms) {
  const int64_t L = b->config.model.num_hidden_layers, at = ordinal % (2 * L);
  Spread(*layer)[BENCH_KINDS] = b->result->layer;
  if (at < L) {
    b->forward[at] = ms;
    add_sample(b, &layer[PASS_FORWARD][kind], ms);
  } else {
    add_sample(b, &layer[PASS_BACKWARD][kind], ms);
    add_sample(b, &layer[PASS_BOTH][kind], b->forward[2 * L - 1 - at] + ms);
  }
}

// Layers count where none of their operations was noted, operations where none of their GEMMs was.
static void add_marks(Bench *b, int kind, int count) {
  BenchResult *r = b->result;
  double step = 0, layer = 0, operation = 0, gemm = 0, bare = 0;
  BenchOp *op = NULL;
  bool noted = false;
  int64_t layers = 0;
  for (const Mark *mark = b->marks; mark < b->marks + count; mark++) {
    const double ms = mark->ms;
    switch (mark->what) {
    case MARK_STEP:
      step = ms;
      break;
    case MARK_STEP_END:
      add_sample(b, &r->step[kind], ms - step);
      break;
    case MARK_LAYER:
      layer = ms, noted = false;
      break;
    case MARK_LAYER_END:
      if (!noted) add_layer(b, kind, layers++, ms - layer);
      break;
    case MARK_GEMM:
      gemm = ms;
      break;
    case MARK_GEMM_END:
      bare += ms - gemm;
      break;
    case MARK_END:
      if (op->calls > 0)
        add_sample(b, bare > 0 ? &op->bare : &op->time[kind], bare > 0 ? bare : ms - operation);
      break;
    default:
      op = &r->ops[mark->what], operation = ms, bare = 0, noted = true;
    }
  }
}

// ---- The operations of a step, by its marks

static void describe_shape(BenchOp *op, const Llama *llama, Operation operation) {
  const Spec *s = &llama->spec;
  const OperationWork *w = &op->work;
  const long long M = w->M, N = w->N, K = w->K, T = s->seq, H = s->H, KV = s->KV, d = s->d;
  const size_t size = sizeof op->shape;
  if (w->kind == CLASS_GEMM) {
    snprintf(op->shape, size, "%lld x %lld x %lld%s", M, N, K, s->fp8 ? " FP8" : "");
  } else if (w->kind == CLASS_ATTENTION) {
    snprintf(op->shape, size, "%lld x %lld, %lld/%lld of %lld", s->max_tokens / T, T, H, KV, d);
  } else if (M > 0) {
    snprintf(op->shape, size, "%lld x %lld", M, N);
  } else {
    double parameters = 0;
    for (const ParamTensor *t = llama->tensors; t < llama->tensors + llama->param_count; t++)
      if (operation != OP_muon || t->part_count > 0) parameters += (double)(t->rows * t->cols);
    snprintf(op->shape, size, "%.4gM parameters", parameters * 1e-6);
  }
}

// Counts the calls, those of the first layer apart.
static void list_operations(Bench *b, const Llama *llama, int count) {
  BenchOp *ops = b->result->ops;
  const int64_t last = 2 * llama->config.num_hidden_layers - 1;
  int64_t layers = 0;
  bool inside = false;
  for (const Mark *mark = b->marks; mark < b->marks + count; mark++) {
    if (mark->what == MARK_LAYER) inside = true;
    if (mark->what == MARK_LAYER_END) inside = false, layers++;
    if (mark->what < 0) continue;
    BenchOp *op = &ops[mark->what];
    op->calls++;
    op->in_forward += inside && layers == 0;
    op->in_backward += inside && layers == last;
  }
  if (!llama->spec.fp8) ops[OP_requantize].calls = 0; // it does nothing
  for (Operation i = 0; i < OPERATION_COUNT; i++) {
    BenchOp *op = &ops[i];
    if (op->calls == 0) continue;
    op->work = operation_work(&llama->spec, llama->tensors, llama->param_count, i);
    op->runs = llama->be->kinds[i];
    op->bare = op->time[BENCH_FUSED] = op->time[BENCH_UNFUSED] = spread_of(NULL, 0);
    describe_shape(op, llama, i);
  }
}

// ---- Steps, as train.c makes them

// On random tokens.
static void issue_step(Bench *b, Side *s) {
  const Config *c = &b->config;
  const int64_t micro_batches = c->train.gradient_accumulation, M = batch_rows(&s->llama.spec);
  const uint64_t V = (uint64_t)c->model.vocab_size;
  const AdamW hyper = adamw_at(&c->optimizer, s->step, c->train.steps);
  for (int64_t i = 0; i < micro_batches; i++) {
    const uint64_t key = (uint64_t)(s->step * micro_batches + i);
#pragma omp parallel for schedule(static)
    for (int64_t m = 0; m < 2 * M; m++) b->tokens[m] = (int32_t)(rng_u64(key, (uint64_t)m) % V);
    llama_load_batch(&s->llama, &(Batch){.tokens = b->tokens, .targets = b->tokens + M});
    llama_forward(&s->llama);
    llama_backward(&s->llama, 1 / (double)micro_batches, i > 0);
  }
  llama_update(&s->llama, &hyper);
  s->step++;
}

static int take_result(Bench *b, int kind, Error *err) {
  Backend *be = b->sides[kind].be;
  const StepResult result = be->services.step_result(be);
  b->sides[kind].unread--;
  if (result.applied) return 0;
  return error_set(
      err,
      "the loss (%g) or gradient norm (%g) of %s kernels on random tokens is not finite: run "
      "./train --doctor",
      result.loss, result.grad_norm, bench_kind_name(b->result, (BenchKind)kind));
}

static int run_step(Bench *b, int kind, Observed observed, bool timed, Error *err) {
  Side *s = &b->sides[kind];
  Backend *be = s->be;
  int status = 0;
  if (timed) be->services.mark(be, MARK_STEP);
  be->observed = observed;
  issue_step(b, s);
  be->observed = OBSERVE_NOTHING;
  if (timed) be->services.mark(be, MARK_STEP_END);
  for (s->unread++; s->unread > be->steps_ahead;) status |= take_result(b, kind, err);
  return status;
}

// One step that is not timed, then so many that are, and one each whose operations, layers and, of
// the last kind, bare GEMMs are: those are launched one by one, while the GPU still works on the
// step before. *median: of the steps. The first block of all lists the operations.
static int run_block(Bench *b, int kind, int steps, bool keep, double *median, Error *err) {
  Side *s = &b->sides[kind];
  BenchResult *r = b->result;
  double times[MOST_TIMED_STEPS];
  int status = run_step(b, kind, OBSERVE_NOTHING, false, err);
  for (int i = 0; i < steps; i++) status |= run_step(b, kind, OBSERVE_NOTHING, true, err);
  status |= run_step(b, kind, OBSERVE_OPERATIONS, false, err);
  if (r->whole) status |= run_step(b, kind, OBSERVE_LAYERS, false, err);
  if (b->listed && kind == r->kinds - 1) status |= run_step(b, kind, OBSERVE_GEMMS, false, err);
  while (s->unread > 0) status |= take_result(b, kind, err);
  const int count = s->be->services.marks_read(s->be, b->marks);
  if (!b->listed) list_operations(b, &s->llama, count);
  b->listed = true;
  if (keep) add_marks(b, kind, count);
  for (int i = 0; i < steps; i++) times[i] = b->marks[2 * i + 1].ms - b->marks[2 * i].ms;
  *median = spread_of(times, steps).median;
  return status;
}

// ---- Rounds: a block of each kind

// The kinds from `from` to `to` - 1, for `most_ms`. Each is the first in half of the rounds.
static int measure(Bench *b, int from, int to, double most_ms, Error *err) {
  BenchResult *r = b->result;
  const bool both = to - from == BENCH_KINDS;
  double median[BENCH_KINDS];
  for (int kind = from; kind < to; kind++)
    if (run_block(b, kind, FIRST_STEPS, false, &median[kind], err) != 0) return -1;
  const double fitting = fmax(timed_steps_ms / median[from], LEAST_TIMED_STEPS);
  const int steps = r->whole ? (int)fmin(fitting, MOST_TIMED_STEPS) : 0;
  const double warm_up_ms = fmin(most_warm_up_ms, most_ms / 4), opened = now_ms();
  double began = opened;
  r->rounds = r->warm_up_rounds = 0;
  while (r->rounds < MOST_ROUNDS) {
    const bool keep = r->warm_up_rounds > 0 && now_ms() - opened > warm_up_ms;
    if (keep && r->rounds == 0) began = now_ms();
    if (r->rounds >= LEAST_ROUNDS && now_ms() - began > most_ms) break;
    for (int i = from; i < to; i++) {
      const int kind = both ? (i + r->warm_up_rounds + r->rounds) % 2 : i;
      if (run_block(b, kind, steps, keep, &median[kind], err) != 0) return -1;
    }
    if (keep && both && r->whole)
      add_sample(b, &r->gain, median[BENCH_UNFUSED] / median[BENCH_FUSED]);
    *(keep ? &r->rounds : &r->warm_up_rounds) += 1;
  }
  r->seconds += (now_ms() - began) * 1e-3;
  return 0;
}

// ---- Opening

// Before the model takes its memory: the last of as many copies as it takes to reach full clocks.
// NAN where there is no memory for them.
static double copy_rate(Backend *be) {
  const size_t bytes = be->kinds[OP_qkv] == KERNEL_CPU ? COPIED_BY_CPU : COPIED_BY_GPU;
  const double began = now_ms();
  Mark marks[2 * COPIES];
  double times[COPIES];
  char *memory = be->services.alloc(be, 2 * bytes);
  if (!memory) return NAN;
  be->services.marks_open(be, 2 * COPIES);
  do {
    for (int i = 0; i < COPIES; i++) {
      be->services.mark(be, MARK_STEP);
      be->services.copy(be, memory, memory + bytes, bytes);
      be->services.mark(be, MARK_STEP_END);
    }
    be->services.marks_read(be, marks);
  } while (now_ms() - began < copies_ms);
  for (int i = 0; i < COPIES; i++) times[i] = marks[2 * i + 1].ms - marks[2 * i].ms;
  be->services.release(be, memory);
  return 2 * (double)bytes / spread_of(times, COPIES).median;
}

// Of a block: twice two of each operation, and two of its GEMM; two of a layer's passes each time.
static int count_marks(const Config *c, const Spec *s) {
  enum { OF_LAYER = 20, OF_CHUNK = 3, OF_BATCH = 2, OF_UPDATE = 3 }; // operations, at most
  const int64_t L = c->model.num_hidden_layers,
                batch = 6 * (OF_LAYER * L + OF_CHUNK * s->loss_chunks + OF_BATCH) + 12 * L;
  return (int)(c->train.gradient_accumulation * batch) + 6 * OF_UPDATE + 2 * MOST_TIMED_STEPS;
}

static int open_side(Bench *b, int kind, Error *err) {
  Config c = b->config;
  Side *s = &b->sides[kind];
  if (kind == BENCH_UNFUSED)
    c.backend.kernels = KERNELS_UNFUSED;
  else if (c.backend.kernels == KERNELS_UNFUSED)
    c.backend.kernels = KERNELS_AUTO;
  Hardware hardware;
  Spec asked = run_spec(&c);
  asked.context = asked.halvings = 0; // no samples, no pieces
  if (hardware_find(&hardware, &c, err) != 0) return -1;
  const Spec spec = spec_resolve(&c, asked, &hardware);
  s->be = backend_open(&c, &spec, &hardware, err);
  if (!s->be) return -1;
  if (b->result->copy_rate == 0) b->result->copy_rate = copy_rate(s->be);
  if (llama_create(&s->llama, &c.model, s->be, err) != 0) return -1;
  llama_init_weights(&s->llama, c.train.seed);
  b->most_marks = count_marks(&c, &s->be->spec);
  s->be->services.marks_open(s->be, b->most_marks);
  return 0;
}

static void close_side(Side *s) {
  llama_destroy(&s->llama);
  if (s->be) s->be->services.destroy(s->be);
  *s = (Side){.be = NULL};
}

static void print_model(const Bench *b) {
  static const char *const recompute[] = {"none", "mlp", "layer"};
  const Config *c = &b->config;
  const Spec *s = &b->sides[BENCH_FUSED].be->spec;
  printf("model      %s\n", model_text(&c->model).text);
  printf("step       %lld x %lld x %lld tokens (accumulation x sequences x length), loss in %lld "
         "piece%s, recompute %s, %s, %s\n",
         (long long)c->train.gradient_accumulation, (long long)s->batch, (long long)s->seq,
         (long long)s->loss_chunks, s->loss_chunks == 1 ? "" : "s", recompute[s->recompute],
         precision_name(c->backend.precision), optimizer_name(c->optimizer.kind));
  printf("backend    %s\n", b->sides[BENCH_FUSED].be->description);
  if (b->result->apart)
    printf(
        "memory     it does not hold two runs: unfused kernels are timed after the fused ones\n");
  fflush(stdout);
}

// What its last line names.
static void describe_run(Bench *b, const Backend *be) {
  BenchResult *r = b->result;
  const ModelConfig *model = &b->config.model;
  const int name = (int)strcspn(be->description, ",");
  r->card =
      r->kinds == 1 ? short_text("This processor") : short_text("%.*s", name, be->description);
  r->model = count_text((double)model_parameters(model, true));
  r->tokens = tokens_per_step(&b->config);
}

// Both kinds at once, if their memory is there.
static int run_sides(Bench *b, Error *err) {
  BenchResult *r = b->result;
  const double usual = r->whole ? usual_seconds : usual_op_seconds,
               most_ms = 1e3 * (b->seconds > 0 ? b->seconds : usual);
  Error no_room;
  if (open_side(b, BENCH_FUSED, err) != 0) return -1;
  Backend *be = b->sides[BENCH_FUSED].be;
  r->kinds = be->kinds[OP_qkv] == KERNEL_CPU ? 1 : BENCH_KINDS;
  describe_run(b, be);
  if (r->kinds == BENCH_KINDS && open_side(b, BENCH_UNFUSED, &no_room) != 0) {
    close_side(&b->sides[BENCH_UNFUSED]);
    r->apart = true;
  }
  if (!b->quiet) print_model(b);
  b->tokens = xmalloc(2 * (size_t)batch_rows(&be->spec) * sizeof *b->tokens);
  b->forward = xcalloc((size_t)b->config.model.num_hidden_layers, sizeof *b->forward);
  b->marks = xmalloc((size_t)b->most_marks * sizeof *b->marks);
  if (!r->apart) return measure(b, 0, r->kinds, most_ms, err);
  if (measure(b, BENCH_FUSED, BENCH_UNFUSED, most_ms / 2, err) != 0) return -1;
  close_side(&b->sides[BENCH_FUSED]);
  if (open_side(b, BENCH_UNFUSED, err) != 0) return -1;
  return measure(b, BENCH_UNFUSED, BENCH_KINDS, most_ms / 2, err);
}

static int time_steps(Bench *b, double seconds, double *ms, Error *err) {
  Side *s = &b->sides[BENCH_FUSED];
  const double began = now_ms();
  double counted = now_ms();
  int64_t first = 0;
  bool warm = false; // a GPU's clock falls in the first of the time
  while (now_ms() - began < 1e3 * seconds || (s->step < FIRST_STEPS + LEAST_TIMED_STEPS &&
                                              now_ms() - began < MOST_TIMES * 1e3 * seconds)) {
    if (!warm && s->step >= FIRST_STEPS && now_ms() - began > 1e3 * seconds / 4) {
      while (s->unread > 0)
        if (take_result(b, BENCH_FUSED, err) != 0) return -1;
      warm = true, first = s->step, counted = now_ms();
    }
    if (run_step(b, BENCH_FUSED, OBSERVE_NOTHING, false, err) != 0) return -1;
  }
  while (s->unread > 0)
    if (take_result(b, BENCH_FUSED, err) != 0) return -1;
  *ms = (now_ms() - counted) / (double)(s->step - first);
  return 0;
}

int bench_steps(const Config *config, double seconds, double *ms, Error *err) {
  BenchResult result = {.copy_rate = NAN}; // which is not wanted
  Bench b = {.config = *config, .result = &result};
  int status = open_side(&b, BENCH_FUSED, err);
  if (status == 0) {
    b.tokens = xmalloc(2 * (size_t)batch_rows(&b.sides[BENCH_FUSED].be->spec) * sizeof *b.tokens);
    status = time_steps(&b, seconds, ms, err);
  }
  close_side(&b.sides[BENCH_FUSED]);
  free(b.tokens);
  return status;
}

static Bench bench_of(BenchResult *result) {
  const Spread none = spread_of(NULL, 0);
  *result = (BenchResult){.only = OPERATION_COUNT, .gain = none};
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    result->step[kind] = none;
    for (int pass = 0; pass < BENCH_PASSES; pass++) result->layer[pass][kind] = none;
  }
  return (Bench){.result = result};
}

static int run_bench(Bench *b, Error *err) {
  b->result->whole = b->result->only == OPERATION_COUNT;
  const int status = run_sides(b, err);
  if (status == 0) {
    sum_up(b);
    bench_derive(b->result);
  }
  for (int kind = 0; kind < BENCH_KINDS; kind++) close_side(&b->sides[kind]);
  free(b->samples);
  free(b->tokens);
  free(b->forward);
  free(b->marks);
  return status;
}

int bench_run(int argc, char **argv, BenchResult *result, Error *err) {
  Bench b = bench_of(result);
  if (parse(&b, argc, argv, err) != 0 || run_bench(&b, err) != 0) return -1;
  bench_print(result);
  return 0;
}

int bench_config(const Config *config, double seconds, BenchResult *result, Error *err) {
  Bench b = bench_of(result);
  b.config = *config;
  b.seconds = seconds;
  b.quiet = true;
  return run_bench(&b, err);
}

int bench_command(int argc, char **argv, Error *err) {
  BenchResult result;
  return bench_run(argc, argv, &result, err);
}
