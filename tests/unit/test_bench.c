// ./train --bench from end to end without a GPU: the CPU backend stands in for both kinds of
// kernels, and for the clock one that moves on by a known time whenever it is read, so that every
// figure is known. The Makefile has the linker put the functions below in place of the real ones.
#include <time.h>

#include "model/run/bench.h"
#include "tests/support/test.h"

enum { NO_ROOM = 77, NOT_FINITE = 78 /* seeds */ };

// Milliseconds that each reading of the clock takes in a kind's steps, and that gate_up and a copy
// take more.
static const double tick_ms[BENCH_KINDS] = {1, 2}, gate_up_ms[BENCH_KINDS] = {10, 30}, copy_ms = 6;
// In the forward each layer takes so much more than the one below it, where layers are observed.
static const double layer_ms = 3;

static struct {
  double ms, tick;
  int kinds; // that backend_create knows: 1 for a CPU's run
  double first_loss[BENCH_KINDS];
  int64_t layers[BENCH_KINDS]; // that began
  const float *result;         // of the product that runs; NAN before it was made
  int readings[2];             // of the clock meanwhile: before it was made, and after
} machine;
static GateUpOp *cpu_gate_up;
static void (*cpu_mark)(Backend *be, int what);
static StepResult (*cpu_step_result)(Backend *be);

int __wrap_clock_gettime(clockid_t clock, struct timespec *t) {
  (void)clock;
  machine.ms += machine.tick;
  if (machine.result) machine.readings[!isnan(*machine.result)]++;
  t->tv_sec = (time_t)(machine.ms / 1000);
  t->tv_nsec = (long)((machine.ms - 1000 * (double)t->tv_sec) * 1e6);
  return 0;
}

static int kind_of(const Backend *be) {
  return be->kinds[OP_gate_up] == KERNEL_UNFUSED ? BENCH_UNFUSED : BENCH_FUSED;
}

static void slow_gate_up(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *z,
                         Operand y) {
  float *result = (float *)z;
  memset(machine.readings, 0, sizeof machine.readings);
  *result = NAN;
  machine.result = result;
  cpu_gate_up(be, M, x, sumsq, W, z, y);
  machine.result = NULL;
  const int marks = be->observed == OBSERVE_GEMMS; // one before the product and one after
  assert_true(machine.readings[0] == marks && machine.readings[1] == marks);
  machine.ms += gate_up_ms[kind_of(be)];
}

static void slow_layer(const Backend *be) {
  const int64_t L = be->spec.L, at = machine.layers[kind_of(be)]++ % (2 * L);
  if (at < L) machine.ms += layer_ms * (double)at;
}

static void marked(Backend *be, int what) {
  machine.tick = tick_ms[kind_of(be)];
  cpu_mark(be, what);
  if (what == MARK_LAYER && be->observed == OBSERVE_LAYERS) slow_layer(be);
}

static StepResult noted_result(Backend *be) {
  const StepResult result = cpu_step_result(be);
  double *first = &machine.first_loss[kind_of(be)];
  if (*first == 0) *first = result.loss;
  return result;
}

static StepResult result_not_finite(Backend *be) {
  (void)cpu_step_result(be);
  return (StepResult){.loss = NAN, .grad_norm = NAN};
}

static void timed_copy(Backend *be, void *to, const void *from, size_t bytes) {
  (void)be, (void)to, (void)from, (void)bytes;
  machine.ms += copy_ms;
}

Backend *__wrap_backend_open(const Config *c, const Spec *spec, const Hardware *h, Error *err) {
  (void)h, (void)err;
  Backend *be = backend_cpu_create(spec);
  const bool unfused = c->backend.kernels == KERNELS_UNFUSED;
  if (c->train.seed == NO_ROOM && unfused && machine.first_loss[BENCH_FUSED] == 0)
    be->spec.memory_bytes = 0;
  cpu_step_result = be->services.step_result;
  be->services.step_result = c->train.seed == NOT_FINITE ? result_not_finite : noted_result;
  cpu_gate_up = be->gate_up;
  be->gate_up = slow_gate_up;
  cpu_mark = be->services.mark;
  be->services.mark = marked;
  be->services.copy = timed_copy;
  if (machine.kinds == 1) return be;
  for (int i = 0; i < OPERATION_COUNT; i++)
    be->kinds[i] = !unfused && i == OP_gate_up ? KERNEL_FUSED : KERNEL_UNFUSED;
  if (!unfused) be->kinds[OP_down] = KERNEL_FUSED;
  return be;
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
static int bench(BenchResult *result, int kinds, const char *const *more, int count, Error *err) {
  char *path = held_text("%s/config.json", temporary_folder());
  char *argv[16] = {path, (char *)"--seconds", (char *)"2"}; // of the clock here
  for (int i = 0; i < count; i++) argv[3 + i] = (char *)(uintptr_t)more[i];
  put_file(path, config);
  memset(&machine, 0, sizeof machine);
  machine.tick = 1;
  machine.kinds = kinds;
  return bench_run(3 + count, argv, result, err);
}

static BenchResult measured(int kinds, const char *const *more, int count) {
  BenchResult result;
  Error err;
  must(bench(&result, kinds, more, count, &err), &err);
  return result;
}

static void near(double a, double b) {
  if (!(fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)))) fail_msg("%.17g is not %.17g", a, b);
}

static int operations_of(const BenchResult *r) {
  int count = 0;
  for (int i = 0; i < OPERATION_COUNT; i++) count += r->ops[i].calls > 0;
  return count;
}

// From one mark to the next is a tick. A step whose GEMMs are noted says nothing of operations.
static void check_operations(const BenchResult *r) {
  for (int i = 0; i < OPERATION_COUNT; i++) {
    const BenchOp *op = &r->ops[i];
    if (op->calls == 0) continue;
    const bool is_gemm = op->work.kind == CLASS_GEMM;
    for (int kind = 0; kind < r->kinds; kind++) {
      const double more = i == OP_gate_up ? gate_up_ms[kind] : 0;
      near(op->time[kind].median, tick_ms[kind] + more);
      assert_true(op->time[kind].count >= 4 * op->calls); // in each of at least four rounds
    }
    if (is_gemm) near(op->bare.median, tick_ms[r->kinds - 1]);
    assert_int_equal(op->bare.count, is_gemm ? r->rounds * op->calls : 0);
  }
  assert_true(r->rounds >= 4 && r->warm_up_rounds > 0);
}

// A layer's marks are a tick apart, a step's two: the backend reads the clock once as a step ends.
static void check_whole(const BenchResult *r, bool mlp_again) {
  for (int kind = 0; kind < r->kinds; kind++) {
    const double tick = tick_ms[kind], slow = gate_up_ms[kind], again = mlp_again ? slow : 0,
                 middle = r->ops[OP_gate_up].calls > 1 ? layer_ms : 0; // the second of three layers
    near(r->step[kind].median, 2 * tick + (double)r->ops[OP_gate_up].calls * slow);
    near(r->layer[PASS_FORWARD][kind].median, tick + slow + middle);
    near(r->layer[PASS_BACKWARD][kind].median, tick + again);
    near(r->layer[PASS_BOTH][kind].median,
         2 * tick + slow + (mlp_again ? again : middle)); // the last layer's is not made again
  }
  const double bytes = r->kinds == 1 ? 64 << 20 : 256 << 20;
  near(2 * bytes / r->copy_rate, tick_ms[BENCH_FUSED] + copy_ms);
}

TEST(both_kinds_are_measured) {
  static const struct {
    const char *overrides[2];
    bool mlp_again;
    double gate_ups; // in a step
    int operations;
  } variants[] = {
      {{"train.loss_chunks=4", "model.tie_word_embeddings=true"}, false, 3, 22},
      {{"train.gradient_accumulation=2", "train.recompute=mlp"}, true, 2 * (3 + 2), 22},
      {{"train.recompute=layer", "model.num_hidden_layers=1"}, false, 1, 22},
      {{"optimizer.kind=muon", "model.tie_word_embeddings=true"}, false, 3, 23},
  };
  for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    const BenchResult r = measured(2, variants[i].overrides, 2);
    // Both kinds step on the same batches from the same weights.
    assert_true(machine.first_loss[0] > 0 && machine.first_loss[0] == machine.first_loss[1]);
    assert_int_equal(r.kinds, 2);
    assert_int_equal(operations_of(&r), variants[i].operations);
    near((double)r.ops[OP_gate_up].calls, variants[i].gate_ups);
    check_operations(&r);
    check_whole(&r, variants[i].mlp_again);
    near(r.gain.median, r.step[BENCH_UNFUSED].median / r.step[BENCH_FUSED].median);
    assert_int_equal(r.ops[OP_embed].in_forward + r.ops[OP_embed].in_backward, 0);
    assert_int_equal(r.ops[OP_gate_up].in_forward, 1);
    assert_int_equal(r.ops[OP_gate_up].in_backward, variants[i].mlp_again);
  }
}

TEST(a_cpu_is_measured_alone) {
  const BenchResult r = measured(1, NULL, 0);
  assert_int_equal(r.kinds, 1);
  check_operations(&r);
  check_whole(&r, false);
  assert_true(isnan(r.ops[OP_embed].time[BENCH_UNFUSED].median) && isfinite(r.sum[BENCH_FLOOR]));
}

TEST(kinds_that_do_not_fit_together_come_one_after_the_other) {
  const BenchResult r = measured(2, (const char *const[]){"train.seed=77"}, 1);
  assert_true(r.apart && machine.first_loss[0] == machine.first_loss[1]);
  check_operations(&r);
  check_whole(&r, false);
  assert_int_equal(r.gain.count, 0);
}

TEST(one_operation_is_measured_alone) {
  const BenchResult r = measured(2, (const char *const[]){"--op", "down_dgrad"}, 2);
  check_operations(&r);
  assert_false(r.whole);
  assert_int_equal(r.step[BENCH_FUSED].count, 0);
}

static void refused(const char *const *more, int count, const char *words) {
  BenchResult r;
  Error err = {""};
  expect_error(bench(&r, 2, more, count, &err), &err, words);
}

TEST(what_cannot_be_measured_is_refused) {
  refused((const char *const[]){"model.num_hidden_layers=2000", "model.hidden_size=8192",
                                "model.num_attention_heads=64", "model.num_key_value_heads=64"},
          4, "not enough memory: the run needs");
  refused((const char *const[]){"train.seed=78"}, 1,
          "of fused kernels on random tokens is not finite");
  refused((const char *const[]){"--op", "muon"}, 2, "with optimizer.kind=muon it has");
}
