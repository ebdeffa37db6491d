// ./train --bench from end to end without a GPU: the CPU backend stands in for both kinds of
// kernels, and for the GPU's clock one that only what is timed moves on, so that every figure is
// known. The Makefile has the linker put the functions below in place of those that need a GPU.
#include "base/file.h"
#include "base/memory.h"
#include "base/rng.h"
#include "kernels/gpu_backends.h"
#include "kernels/math.h"
#include "model/ranges.h"
#include "model/run/backend.h"
#include "model/run/bench.h"
#include "model/tensors.h"
#include "tests/support/test.h"

enum { MOST_MARKS = 4096, NO_ROOM = 77, NOT_FINITE = 78 /* seeds */ };

// Milliseconds that things take: to a time stamp of each kind, and the rest besides.
static const double kind_ms[BENCH_KINDS] = {1, 3}, gate_up_ms[BENCH_KINDS] = {10, 20},
                    gemm_ms = 0.5, peak_ms = 4, copy_ms = 2;

typedef struct Clock {
  BenchGpu base; // first: a BenchGpu * of this one is a Clock *
  Backend *fused;
  double deviation; // of what it fills with
  double marks[MOST_MARKS];
  int count;
} Clock;

static double clock_ms;
static GateUpOp *cpu_gate_up;
static AdamwOp *cpu_adamw;

static void slow_gate_up(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *z,
                         Operand y) {
  cpu_gate_up(be, M, x, sumsq, W, z, y);
  clock_ms += gate_up_ms[be->kinds[OP_gate_up] == KERNEL_FUSED ? BENCH_FUSED : BENCH_UNFUSED];
}

// FP8's scales, before the first update and after every one.
static struct {
  int count; // 0: none
  ScalingState *first, *now;
  float most; // times that one of them has gone up or down
} scales;

static void adamw_with_scales(Backend *be, const ParamTensor *list, int count) {
  cpu_adamw(be, list, count);
  if (!scales.first) {
    scales.first = xcalloc((size_t)scales.count, sizeof *scales.first);
    scales.now = xcalloc((size_t)scales.count, sizeof *scales.now);
    be->services.scalings_read(be, scales.first);
  }
  be->services.scalings_read(be, scales.now);
  for (int i = 0; i < scales.count; i++) {
    const float a = scales.first[i].scale, b = scales.now[i].scale;
    if (a > 0) scales.most = fmaxf(scales.most, fmaxf(a / b, b / a));
  }
}

static StepResult (*cpu_step_result)(Backend *be);
static double first_loss[BENCH_KINDS]; // 0: no step yet

static StepResult noted_result(Backend *be) {
  const StepResult result = cpu_step_result(be);
  const bool fused = be->kinds[OP_gate_up] == KERNEL_FUSED;
  double *first = &first_loss[fused ? BENCH_FUSED : BENCH_UNFUSED];
  if (*first == 0) *first = result.loss;
  return result;
}

static StepResult result_not_finite(Backend *be) {
  (void)be;
  return (StepResult){.loss = NAN, .grad_norm = NAN};
}

int __wrap_gpu_usable(GpuMemory *memory, Error *err) {
  (void)err;
  *memory = (GpuMemory){.all = (size_t)1 << 30, .free = (size_t)1 << 30};
  return 0;
}

Backend *__wrap_backend_create(const Config *c, RunShape *shape, int64_t positions, Error *err) {
  (void)err;
  assert_int_equal(c->backend.device, DEVICE_CUDA);
  if (shape->loss_chunks == 0) shape->loss_chunks = 1;
  OpsConfig ops = llama_ops_config(&c->model, shape, positions, (int)c->backend.threads);
  shape->fp8 = c->backend.precision == PRECISION_FP8;
  if (shape->fp8) scalings_declare(&c->model, &ops);
  scales.count = ops.scaling_count;
  Backend *be = backend_cpu_create(&ops);
  free((void *)ops.scalings);
  if (c->train.seed == NO_ROOM) { // for a step, but not for the bench beside it
    MemoryPlan plan;
    memory_plan(&plan, &c->model, shape, be);
    be->memory_bytes = plan.total_bytes;
  }
  cpu_step_result = be->services.step_result;
  be->services.step_result = c->train.seed == NOT_FINITE ? result_not_finite : noted_result;
  cpu_gate_up = be->gate_up;
  be->gate_up = slow_gate_up;
  cpu_adamw = be->adamw;
  if (scales.count > 0) be->adamw = adamw_with_scales;
  const bool fused = c->backend.kernels == KERNELS_AUTO;
  for (int i = 0; i < OPERATION_COUNT; i++)
    be->kinds[i] = fused && i == OP_gate_up ? KERNEL_FUSED : KERNEL_UNFUSED;
  return be;
}

// A GEMM alone: every element of its operands and its result is there.
static void gemm(BenchGpu *g, const OperationCall *call) {
  (void)g;
  assert_int_equal(call->class, CLASS_GEMM);
  const struct {
    const void *data;
    int64_t count;
  } matrices[] = {
      {call->A, call->M * call->K}, {call->B, call->N * call->K}, {call->out, call->out_count}};
  // FP8 leaves some results as copies alone: the product has a place of its own then.
  const bool has_out = call->out || !call->fp8 || call->out_count == call->M * call->N;
  for (int i = 0; i < (has_out ? 3 : 2); i++) {
    assert_non_null(matrices[i].data);
    (void)((volatile const real *)matrices[i].data)[matrices[i].count - 1];
  }
  clock_ms += gemm_ms;
}

// ---- The clock

static void close_clock(BenchGpu *g) {
  free(g);
}

static GpuSample sample(BenchGpu *g) {
  (void)g;
  return (GpuSample){1500, 600, NAN};
}

static double peak(BenchGpu *g) {
  (void)g;
  clock_ms += peak_ms;
  return 2 * 8 * 8 * 8;
}

static double copy(BenchGpu *g) {
  (void)g;
  clock_ms += copy_ms;
  return 1000;
}

static void ignore(BenchGpu *g, Backend *be) {
  (void)g, (void)be;
}

static void fill(BenchGpu *g, Backend *be, act_t *to, int64_t count) {
  (void)be;
  for (int64_t i = 0; i < count; i++)
    ((real *)to)[i] = (real)(((Clock *)g)->deviation * rng_normal(3, (uint64_t)i));
}

static void spread(BenchGpu *g, double deviation) {
  ((Clock *)g)->deviation = deviation;
}

static int mark(BenchGpu *g, Backend *be) {
  Clock *c = (Clock *)g;
  assert_true(c->count < MOST_MARKS);
  clock_ms += kind_ms[be == c->fused ? BENCH_FUSED : BENCH_UNFUSED];
  c->marks[c->count] = clock_ms;
  return c->count++;
}

static double ms(BenchGpu *g, int from, int to) {
  const Clock *c = (const Clock *)g;
  assert_true(from < to && to < c->count);
  return c->marks[to] - c->marks[from];
}

static void forget(BenchGpu *g) {
  ((Clock *)g)->count = 0;
}

size_t __wrap_bench_gpu_bytes(const OperationCall *calls, int count) {
  assert_non_null(calls);
  assert_in_range(count, OPERATION_COUNT - 3, OPERATION_COUNT - 2); // muon: where it is run
  return 1 << 10;
}

BenchGpu *__wrap_bench_gpu_open(Backend *fused, Backend *unfused, const OperationCall *calls,
                                int count, Error *err) {
  (void)err;
  assert_ptr_not_equal(fused, unfused);
  int gemms = 0;
  for (int i = 0; i < count; i++)
    gemms += calls[i].class == CLASS_GEMM && calls[i].M > 0 && calls[i].N > 0 && calls[i].K > 0;
  assert_int_equal(gemms, 15);
  Clock *c = xcalloc(1, sizeof *c);
  c->fused = fused;
  c->deviation = 1;
  c->base = (BenchGpu){.close = close_clock,
                       .sample = sample,
                       .gemm = gemm,
                       .peak = peak,
                       .copy = copy,
                       .flush = ignore,
                       .fill = fill,
                       .spread = spread,
                       .turn = ignore,
                       .mark = mark,
                       .ms = ms,
                       .forget = forget};
  return &c->base;
}

// ---- The tests

static const char config[] =
    "{\"model\": {\"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 3,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 90,"
    " \"max_position_embeddings\": 32},"
    " \"data\": {\"train\": \"absent.bin\"},"
    " \"train\": {\"steps\": 20, \"batch_size\": 2, \"sequence_length\": 32},"
    " \"optimizer\": {\"learning_rate\": 0.001}, \"output\": {\"dir\": \"absent\"}}";

// A folder with the config, which the overrides change. -1 with a sentence where it is refused.
static int bench(BenchResult *result, const char *const *more, int count, Error *err) {
  char folder[] = "/tmp/test_bench.XXXXXX";
  BenchArgs args;
  Error ignored;
  assert_non_null(mkdtemp(folder));
  char *path = xasprintf("%s/config.json", folder);
  char *argv[16] = {path, (char *)"--seconds", (char *)"0.2"};
  for (int i = 0; i < count; i++) argv[3 + i] = (char *)(uintptr_t)more[i];
  assert_int_equal(file_write_atomic(path, config, strlen(config), &ignored), 0);
  if (bench_parse(&args, 3 + count, argv, err) != 0) fail_msg("%s", err->text);
  const int status = bench_run(&args, result, err);
  assert_int_equal(directory_remove(folder, &ignored), 0);
  free(path);
  return status;
}

static BenchResult measured(const char *const *more, int count) {
  BenchResult result;
  Error err;
  if (bench(&result, more, count, &err) != 0) fail_msg("%s", err.text);
  return result;
}

static void near(double a, double b) {
  if (!(fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)))) fail_msg("%.17g is not %.17g", a, b);
}

static double calls_of(const BenchResult *r, Operation operation) {
  for (int i = 0; i < r->op_count; i++)
    if (r->ops[i].call.operation == operation) return (double)r->ops[i].calls;
  fail_msg("there is no %s", operation_name(operation));
  return NAN;
}

// Every operation takes its kind's time, and gate_up more; bare GEMMs are timed on the unfused
// kind's stream. Returns the calls of all.
static double check_operations(const BenchResult *r, int expected) {
  double calls = 0;
  assert_int_equal(r->op_count, expected);
  for (int i = 0; i < r->op_count; i++) {
    const BenchOp *op = &r->ops[i];
    const bool gate_up = op->call.operation == OP_gate_up;
    for (int kind = 0; kind < BENCH_KINDS; kind++)
      near(op->time[kind].median, kind_ms[kind] + (gate_up ? gate_up_ms[kind] : 0));
    assert_true(op->time[BENCH_FUSED].count >= 8); // at least twice in each of at least four rounds
    calls += (double)op->calls;
    if (op->call.class == CLASS_GEMM)
      near(op->bare.median, kind_ms[BENCH_UNFUSED] + gemm_ms);
    else
      assert_int_equal(op->bare.count, 0);
  }
  near(bench_copy_rate(r), 1000 / (kind_ms[BENCH_UNFUSED] + copy_ms));
  near(bench_square_rate(r), 1024 / (kind_ms[BENCH_UNFUSED] + peak_ms) * 1e-9);
  int samples = 0; // every 50 ms of the machine's own clock: by its load, of one kind or another
  for (int with = 0; with < BUSY_COUNT; with++) {
    near(r->busy[with].sum.watts, 600.0 * r->busy[with].count);
    samples += r->busy[with].count;
  }
  assert_true(samples > 0);
  return calls;
}

// What takes a time beside its kind's is gate_up: once in each layer's forward, and again where it
// is recomputed.
static void check_whole(const BenchResult *r, double calls, bool recompute) {
  double step[BENCH_KINDS];
  for (int kind = 0; kind < BENCH_KINDS; kind++) {
    const double gate_ups = calls_of(r, OP_gate_up) * gate_up_ms[kind];
    step[kind] = kind_ms[kind] + gate_ups;
    near(r->step[kind].median, step[kind]);
    near(ops_sums(r).all[kind], calls * kind_ms[kind] + gate_ups);
    near(r->layer[PASS_FORWARD][kind].median, kind_ms[kind] + gate_up_ms[kind]);
    near(r->layer[PASS_BACKWARD][kind].median, kind_ms[kind] + (recompute ? gate_up_ms[kind] : 0));
    near(r->layer[PASS_BOTH][kind].median, kind_ms[kind] + (recompute ? 2 : 1) * gate_up_ms[kind]);
  }
  const double steps = fmin(fmax(floor(200 / step[BENCH_FUSED]), 2), 16); // 200 ms, 2 to 16
  near(r->step[BENCH_UNFUSED].count, steps * r->rounds);
  near(r->gain.median, step[BENCH_UNFUSED] / step[BENCH_FUSED]);
}

TEST(everything_is_measured) {
  static const struct {
    const char *overrides[2];
    bool recompute;
    double gate_ups; // in a step
    bool muon;
  } variants[] = {
      {{"train.loss_chunks=4", "model.tie_word_embeddings=true"}, false, 3, false},
      {{"train.gradient_accumulation=2", "train.recompute=mlp"}, true, 2 * (3 + 2), false},
      {{"train.recompute=layer", "model.num_hidden_layers=1"}, true, 1, false},
      {{"optimizer.kind=muon", "model.tie_word_embeddings=true"}, false, 3, true},
  };
  for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    memset(first_loss, 0, sizeof first_loss);
    const BenchResult r = measured(variants[i].overrides, 2);
    // Both kinds step on the same batches: what they share is then of the same rows.
    assert_true(first_loss[0] > 0 && first_loss[BENCH_FUSED] == first_loss[BENCH_UNFUSED]);
    const double calls = check_operations(&r, OPERATION_COUNT - 3 + variants[i].muon);
    near(calls_of(&r, OP_gate_up), variants[i].gate_ups);
    check_whole(&r, calls, variants[i].recompute);
    assert_true(r.rounds >= 4);
  }
}

// Operations out of order leave values of any size; the scales stay those of whole steps. Where
// operations had a say in them, they were 1024 times off; batches make 4.
TEST(scales_stay_those_of_steps) {
  static const char *const overrides[][2] = {
      {"model.tie_word_embeddings=true", "train.loss_chunks=2"},
      {"model.tie_word_embeddings=false", "train.recompute=layer"},
      {"--op", "adamw"}};
  for (size_t i = 0; i < sizeof overrides / sizeof *overrides; i++) {
    const char *const more[] = {"backend.precision=fp8", overrides[i][0], overrides[i][1]};
    scales.most = 1;
    const BenchResult r = measured(more, 3);
    check_operations(&r, i < 2 ? OPERATION_COUNT - 3 : 1);
    printf("# scales go up or down %g times at most (bound 16)\n", (double)scales.most);
    assert_true(scales.first && scales.most <= 16);
    free(scales.first);
    free(scales.now);
    scales.first = scales.now = NULL;
  }
}

TEST(one_operation_is_measured_alone) {
  const BenchResult r = measured((const char *const[]){"--op", "down_dgrad"}, 2);
  check_operations(&r, 1);
  assert_false(r.whole);
  assert_int_equal(r.step[BENCH_FUSED].count, 0);
}

static void refused(const char *const *more, int count, const char *words) {
  BenchResult r;
  Error err = {""};
  assert_int_equal(bench(&r, more, count, &err), -1);
  if (!strstr(err.text, words)) fail_msg("%s", err.text);
}

TEST(what_does_not_fit_is_refused) {
  refused((const char *const[]){"model.num_hidden_layers=2000", "model.hidden_size=8192",
                                "model.num_attention_heads=64", "model.num_key_value_heads=64"},
          4, "not enough memory: the run needs");
  refused((const char *const[]){"train.seed=77"}, 1, "the bench needs");
}

TEST(a_step_that_is_not_finite_is_refused) {
  refused((const char *const[]){"train.seed=78"}, 1,
          "of fused kernels on random weights is not finite");
}
