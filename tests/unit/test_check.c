// The check of fused programs, with the CPU in place of a GPU: a twin that rounds to bf16 is the
// unfused backend, and its "programs" are the CPU's exact operations, rounded once, in which faults
// are planted. How long each takes is made up.
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cuda/choices.h"
#include "kernels/gpu.h"
#include "model/run/backend.h"
#include "model/run/check.h"
#include "tests/support/bf16.h"
#include "tests/support/bf16_twin.h"
#include "tests/support/test.h"

// What stands in for other functions needs few of their arguments.
#pragma GCC diagnostic ignored "-Wunused-parameter"

// The planted faults, each in the operation that its name begins with.
typedef enum Fault {
  NO_FAULT,
  QKV_LEAVES_ITS_LAST_ROW,
  OUT_LOSES_A_PART_OF_A_SUM,
  GATE_UP_LEAVES_ONE_VALUE,
  DOWN_SKIPS_THE_RESIDUAL_OF_A_TILE,
  LOSS_FORGETS_ITS_LAST_COLUMNS,
  LOSS_HAS_WRONG_ROW_SUMS,
  HEAD_DGRAD_FORGETS_THE_NORM,
  DOWN_DGRAD_HAS_A_WRONG_FACTOR,
  GATE_UP_DGRAD_IS_TOO_LARGE,
  QKV_DGRAD_SHIFTS_A_ROW,
  FAULTS
} Fault;

static struct Machine {
  Fault planted;
  Backend unfused;    // its operations
  OperationSet fused; // now
  int created;        // backends of the GPU
  Spec opened;        // what the last one was for
  Choices remembered;
  // What each operation takes by its program; unfused it is 1 ms.
  double fused_ms[OPERATION_COUNT];
  Mark marks[1000];
  int mark_count;
} machine;

static void round_rows(act_t *x, int64_t count) {
  float *values = (float *)x;
  for (int64_t i = 0; i < count; i++) values[i] = rounded(values[i]);
}

static float *row(act_t *x, int64_t m, int64_t cols) {
  return (float *)x + m * cols;
}

// ---- Programs

static void program_qkv(Backend *be, int64_t M, int64_t T, int64_t first, Operand x, RowStat sumsq,
                        Operand W, act_t *qkv) {
  const int64_t R = packed_width(&be->spec);
  float *last = row(qkv, M - 1, R), kept = last[R - 1];
  cpu_qkv(be, M, T, first, x, sumsq, W, qkv);
  round_rows(qkv, M * R);
  if (machine.planted == QKV_LEAVES_ITS_LAST_ROW) last[R - 1] = kept;
}

static void residual(Backend *be, int64_t M, int64_t K, Operand a, Operand W, const act_t *x,
                     RowStat x_sumsq, Operand out, RowStat *sumsq) {
  machine.unfused.out(be, M, K, a, W, x, x_sumsq, out, sumsq);
}
static void program_out(Backend *be, int64_t M, int64_t K, Operand a, Operand W, const act_t *x,
                        RowStat x_sumsq, Operand out, RowStat *sumsq) {
  residual(be, M, K, a, W, x, x_sumsq, out, sumsq);
  if (machine.planted == OUT_LOSES_A_PART_OF_A_SUM)
    for (int64_t m = 64; m < 128; m++) ((float *)sumsq->data)[m] *= 256.0f / 272;
}
static void program_down(Backend *be, int64_t M, int64_t K, Operand a, Operand W, const act_t *x,
                         RowStat x_sumsq, Operand out, RowStat *sumsq) {
  residual(be, M, K, a, W, x, x_sumsq, out, sumsq);
  if (machine.planted != DOWN_SKIPS_THE_RESIDUAL_OF_A_TILE) return;
  const int64_t D = be->spec.D;
  for (int64_t k = 256; k < D; k++)
    row(out.data, M - 1, D)[k] -= ((const float *)x)[(M - 1) * D + k];
}

static void program_gate_up(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W, act_t *z,
                            Operand y) {
  const int64_t F = be->spec.F;
  float *one = row(y.data, M - 1, F) + F - 1, kept = *one;
  cpu_gate_up(be, M, x, sumsq, W, z, y);
  round_rows(z, M * 2 * F);
  round_rows(y.data, M * F);
  if (machine.planted == GATE_UP_LEAVES_ONE_VALUE) *one = kept;
}

static void program_head_loss(Backend *be, int64_t M, Operand x, RowStat sumsq, Operand W,
                              const int32_t *targets, act_t *logits, double scale,
                              HeadGradient *g) {
  const int64_t V = be->spec.V, stride = padded_vocab(&be->spec);
  cpu_logits(be, M, x, sumsq, W, logits);
  if (machine.planted == LOSS_FORGETS_ITS_LAST_COLUMNS)
    for (int64_t i = 0; i < M * (V - 320); i++) {
      const int64_t m = i / (V - 320), n = 320 + i % (V - 320);
      if (targets[m] != n) row(logits, m, stride)[n] = -100;
    }
  cpu_loss(be, M, x, sumsq, targets, logits, scale, g ? &g->s : NULL);
  if (g) round_rows(logits, M * stride);
  for (int64_t m = 0; g && m < M && machine.planted == LOSS_HAS_WRONG_ROW_SUMS; m++)
    ((float *)g->s.data)[m] *= 0.5f;
}

static void program_head_dgrad(Backend *be, int64_t M, const HeadGradient *g, Operand W, Operand x,
                               RowStat sumsq, Operand dx) {
  HeadGradient gradient = *g;
  float *none = xcalloc((size_t)M, sizeof *none);
  if (machine.planted == HEAD_DGRAD_FORGETS_THE_NORM) gradient.s.data = (stat_t *)none;
  cpu_head_dgrad(be, M, &gradient, W, x, sumsq, dx);
  round_rows(dx.data, M * be->spec.D);
  free(none);
}

static void program_down_dgrad(Backend *be, int64_t M, Operand dx, Operand W, const act_t *z,
                               Operand x, RowStat sumsq, Operand dz, RowStat *s) {
  const int64_t F = be->spec.F;
  cpu_down_dgrad(be, M, dx, W, z, x, sumsq, dz, s);
  if (machine.planted == DOWN_DGRAD_HAS_A_WRONG_FACTOR)
    for (int64_t i = 0; i < 2 * F; i++) row(dz.data, M - 1, 2 * F)[i] *= 1.1f;
  round_rows(dz.data, M * 2 * F);
}

static void program_gate_up_dgrad(Backend *be, int64_t M, int64_t N, Operand dz, Operand W,
                                  Operand x, RowStat sumsq, RowStat s, const act_t *residual_,
                                  Operand dx) {
  cpu_norm_dgrad(be, M, N, dz, W, x, sumsq, s, residual_, dx);
  round_rows(dx.data, M * be->spec.D);
  float *values = (float *)dx.data;
  for (int64_t i = 0; i < M * be->spec.D && machine.planted == GATE_UP_DGRAD_IS_TOO_LARGE; i++)
    values[i] *= 1.02f;
}

static void program_qkv_dgrad(Backend *be, int64_t M, int64_t N, Operand dz, Operand W, Operand x,
                              RowStat sumsq, RowStat s, const act_t *residual_, Operand dx) {
  const int64_t D = be->spec.D;
  cpu_norm_dgrad(be, M, N, dz, W, x, sumsq, s, residual_, dx);
  round_rows(dx.data, M * D);
  if (machine.planted == QKV_DGRAD_SHIFTS_A_ROW)
    memmove(row(dx.data, M - 1, D), row(dx.data, M - 1, D) + 2, (size_t)(D - 2) * sizeof(float));
}

// ---- The GPU

static int fuse(Backend *be, OperationSet operations, Error *err) {
  machine.fused = operations;
#define OP(name, ...) be->name = machine.unfused.name;
#include "kernels/ops.def"
#undef OP
#define FUSE(name, function)                                                                       \
  if (operations >> OP_##name & 1) be->name = program_##function
  FUSE(qkv, qkv);
  FUSE(out, out);
  FUSE(gate_up, gate_up);
  FUSE(down, down);
  FUSE(validation_loss, head_loss);
  FUSE(head_loss, head_loss);
  FUSE(lm_head_dgrad, head_dgrad);
  FUSE(down_dgrad, down_dgrad);
  FUSE(gate_up_dgrad, gate_up_dgrad);
  FUSE(qkv_dgrad, qkv_dgrad);
#undef FUSE
  return 0;
}

static void marks_open(Backend *be, int most) {
  assert_true(most <= (int)(sizeof machine.marks / sizeof *machine.marks));
  machine.mark_count = 0;
}

static void mark(Backend *be, int what) {
  const Mark *last = machine.mark_count > 0 ? &machine.marks[machine.mark_count - 1] : NULL;
  double ms = last ? last->ms : 0;
  if (what == MARK_END) ms += machine.fused >> last->what & 1 ? machine.fused_ms[last->what] : 1;
  machine.marks[machine.mark_count++] = (Mark){what, ms};
}

static int marks_read(Backend *be, Mark *marks) {
  memcpy(marks, machine.marks, (size_t)machine.mark_count * sizeof *marks);
  return machine.mark_count;
}

static Backend *fused_backend(const Spec *spec) {
  static const Operation fused[] = {OP_qkv,           OP_out,        OP_gate_up,
                                    OP_down,          OP_head_loss,  OP_validation_loss,
                                    OP_lm_head_dgrad, OP_down_dgrad, OP_gate_up_dgrad,
                                    OP_qkv_dgrad,     OP_muon};
  Backend *be = backend_cpu_create(spec);
  bf16_twin(be, false);
  machine.unfused = *be;
  be->services.marks_open = marks_open;
  be->services.mark = mark;
  be->services.marks_read = marks_read;
  for (size_t i = 0; i < sizeof fused / sizeof *fused; i++) be->kinds[fused[i]] = KERNEL_FUSED;
  return be;
}

static Check check_with(Fault fault) {
  Check check;
  Error err = {""};
  const Spec spec = check_spec(false);
  machine.planted = fault;
  Backend *cpu = backend_cpu_create(&spec), *be = fused_backend(&spec);
  must(check_operations(&check, cpu, be, fuse, &err), &err);
  cpu->services.destroy(cpu);
  be->services.destroy(be);
  return check;
}

static OperationSet set_of(Operation operation) {
  return (OperationSet)1 << operation;
}

static OperationSet print_failed(const Check *check) {
  for (int i = 0; i < check->count; i++) {
    const CheckedOperation *c = &check->list[i];
    print_message("# %-16s %s: %.2e of %.2e%s\n", operation_name(c->operation), c->tensor.text,
                  c->error, c->bound, c->passed ? "" : ", which failed");
  }
  return check_failed(check);
}

TEST(programs_without_a_fault_pass_one_by_one) {
  static const Operation list[] = {
      OP_qkv,           OP_out,           OP_gate_up,  OP_down, OP_validation_loss,
      OP_lm_head_dgrad, OP_gate_up_dgrad, OP_qkv_dgrad};
  const Check check = check_with(NO_FAULT);
  assert_int_equal(print_failed(&check), 0);
  assert_int_equal(check.count, sizeof list / sizeof *list); // in pairs, and without Muon
  for (int i = 0; i < check.count; i++) {
    assert_int_equal(check.list[i].operation, list[i]);
    assert_true(check.list[i].error > 0);
  }
}

TEST(a_planted_fault_is_found_in_its_operation_alone) {
  const OperationSet loss = set_of(OP_head_loss) | set_of(OP_validation_loss),
                     mlp = set_of(OP_gate_up) | set_of(OP_down_dgrad);
  const OperationSet at[FAULTS] = {
      [QKV_LEAVES_ITS_LAST_ROW] = set_of(OP_qkv),
      [OUT_LOSES_A_PART_OF_A_SUM] = set_of(OP_out),
      [GATE_UP_LEAVES_ONE_VALUE] = mlp,
      [DOWN_SKIPS_THE_RESIDUAL_OF_A_TILE] = set_of(OP_down),
      [LOSS_FORGETS_ITS_LAST_COLUMNS] = loss,
      [LOSS_HAS_WRONG_ROW_SUMS] = loss,
      [HEAD_DGRAD_FORGETS_THE_NORM] = set_of(OP_lm_head_dgrad),
      [DOWN_DGRAD_HAS_A_WRONG_FACTOR] = mlp,
      [GATE_UP_DGRAD_IS_TOO_LARGE] = set_of(OP_gate_up_dgrad),
      [QKV_DGRAD_SHIFTS_A_ROW] = set_of(OP_qkv_dgrad),
  };
  for (Fault fault = NO_FAULT + 1; fault < FAULTS; fault += first_tier() ? 3 : 1) {
    const Check check = check_with(fault);
    print_message("# fault %d\n", (int)fault);
    if (print_failed(&check) != at[fault]) fail_msg("fault %d was not found", (int)fault);
  }
}

// The unfused backend multiplies in FP8 here, so it is no nearer to fp32 than a program.
static Check check_fp8_with(Fault fault) {
  Check check;
  Error err = {""};
  const ModelConfig model = check_model(true);
  const Spec plain = check_spec(true);
  Spec spec = plain;
  spec.fp8 = true;
  scalings_declare(&model, &spec);
  machine.planted = fault;
  Backend *cpu = backend_cpu_create(&plain), *be = backend_cpu_create(&spec);
  machine.unfused = *be;
  be->kinds[OP_down] = KERNEL_FUSED;
  must(check_operations(&check, cpu, be, fuse, &err), &err);
  cpu->services.destroy(cpu);
  be->services.destroy(be);
  free((void *)spec.scalings);
  return check;
}

TEST(programs_in_fp8_may_have_its_error_and_no_fault) {
  Check check = check_fp8_with(NO_FAULT);
  assert_int_equal(print_failed(&check), 0);
  assert_true(check.list[0].error > 1e-2);
  check = check_fp8_with(DOWN_SKIPS_THE_RESIDUAL_OF_A_TILE);
  assert_int_equal(print_failed(&check), set_of(OP_down));
}

// ---- What is remembered of it

char *__wrap_gpu_recall(const Gpu *gpu, const char *cache, const char *question) {
  const char *answer = choices_find(&machine.remembered, question);
  char *copy = answer ? xstrdup(answer) : NULL;
  if (copy) copy[strcspn(copy, "\n")] = '\0';
  return copy;
}

void __wrap_gpu_remember(const Gpu *gpu, const char *cache, const char *question,
                         const char *answer) {
  choices_keep(&machine.remembered, question, answer);
}

// What was remembered, and that programs are slow.
static void forget(void) {
  memset(machine.fused_ms, 0, sizeof machine.fused_ms);
  choices_close(&machine.remembered);
  choices_open(&machine.remembered, NULL, "\n");
}

Backend *__wrap_backend_gpu_create(const Spec *spec, const Gpu *gpu, Error *err) {
  machine.created++;
  machine.opened = *spec;
  return fused_backend(spec);
}

int __wrap_backend_fused_supported(const Spec *spec, Error *err) {
  return 0;
}

int __wrap_backend_fuse(Backend *be, OperationSet operations, Error *err) {
  return fuse(be, operations, err);
}

typedef struct Start {
  int backends; // that it took: the run's, one to check programs, and one to time them
  OperationSet failed, slow;
  const char *said;
} Start;

// What a run's start on this card does and says.
static Start start_with(Spec spec, int major) {
  Start s;
  Error err = {""};
  const Config config = {.model = check_model(false)};
  spec.mainloop = MAINLOOP_MMA_SYNC;
  const Hardware h = {.gpu = true, .card = {.major = major, .mainloop = MAINLOOP_MMA_SYNC}};
  machine.created = 0;
  const Caught said = catch_output(STDERR_FILENO);
  Backend *be = backend_open(&config, &spec, &h, &err);
  s.said = caught(said);
  if (!be) fail_msg("%s", err.text);
  s.backends = machine.created;
  s.failed = machine.opened.failed;
  s.slow = machine.opened.slow;
  be->services.destroy(be);
  return s;
}

static Start start(KernelChoice kernels, int major) {
  Spec spec = check_spec(false);
  spec.kernels = kernels;
  return start_with(spec, major);
}

static void expect(Start s, int backends, OperationSet failed, OperationSet slow, bool says) {
  assert_int_equal(s.backends, backends);
  assert_int_equal(s.failed, failed);
  assert_int_equal(s.slow, slow);
  assert_int_equal(s.said[0] != '\0', says);
}

// One line.
static void expect_line(const char *said, const char *begins) {
  print_message("# %s", said);
  assert_int_equal(strncmp(said, begins, strlen(begins)), 0);
  assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
}

TEST(the_first_start_checks_and_the_next_remembers) {
  forget();
  machine.planted = OUT_LOSES_A_PART_OF_A_SUM;
  const OperationSet out = set_of(OP_out);
  const Start first = start(KERNELS_AUTO, 8);
  expect(first, 3, out, 0, true);
  expect_line(first.said, "not fused: out: on this GPU ");
  print_message("# %s", machine.remembered.kept);
  machine.planted = NO_FAULT;
  expect(start(KERNELS_AUTO, 8), 1, out, 0, false);
}

// A tenth is no reason, so that chance decides nothing.
TEST(a_program_that_is_slower_by_more_than_a_tenth_is_not_used) {
  const OperationSet mlp = set_of(OP_gate_up) | set_of(OP_down_dgrad);
  forget();
  machine.planted = NO_FAULT;
  machine.fused_ms[OP_down] = 1.09;
  machine.fused_ms[OP_gate_up] = 1.5;
  machine.fused_ms[OP_down_dgrad] = 0.9;
  const Start first = start(KERNELS_AUTO, 8);
  expect(first, 3, 0, mlp, true);
  expect_line(first.said, "not fused: gate_up, down_dgrad: on this GPU 2.400 ms fused, and "
                          "2.000 ms unfused");
  print_message("# %s", machine.remembered.kept);
  machine.fused_ms[OP_down] = 2; // is not measured again
  expect(start(KERNELS_AUTO, 8), 1, 0, mlp, false);
}

TEST(other_sizes_are_timed_anew_and_programs_not_checked_again) {
  forget();
  expect(start(KERNELS_AUTO, 8), 3, 0, 0, false);
  Spec longer = check_spec(false);
  longer.loss_chunks = 2;
  machine.fused_ms[OP_lm_head_dgrad] = 1.2;
  expect(start_with(longer, 8), 2, 0, set_of(OP_lm_head_dgrad), true);
  expect(start_with(longer, 8), 1, 0, set_of(OP_lm_head_dgrad), false);
  expect(start(KERNELS_AUTO, 8), 1, 0, 0, false);
}

TEST(time_decides_nothing_where_bits_are_to_be_equal_or_nothing_is_trained) {
  forget();
  machine.fused_ms[OP_down] = 2;
  Spec spec = check_spec(false);
  spec.deterministic = true;
  expect(start_with(spec, 8), 2, 0, 0, false);
  spec.deterministic = spec.train = false;
  expect(start_with(spec, 8), 1, 0, 0, false);
}

TEST(a_large_run_is_timed_with_its_sizes_and_fewer_rows) {
  ModelConfig model = check_model(false);
  model.num_hidden_layers = 32;
  const Spec run = model_spec(&model, (Spec){.batch = 8, .seq = 4096, .loss_chunks = 8}),
             timed = timed_spec(&model, &run);
  assert_int_equal(timed.L, 1);
  assert_int_equal(timed.batch * timed.seq, 8192);
  assert_int_equal(chunk_rows(&timed), chunk_rows(&run));
  assert_int_equal(timed.V, run.V);
}

static void remember_damaged(const char *answer) {
  choices_keep(&machine.remembered, "programs bf16 mma_sync", answer);
}

TEST(another_executable_or_a_damaged_answer_is_checked_again) {
  machine.planted = NO_FAULT;
  forget();
  expect(start(KERNELS_AUTO, 8), 3, 0, 0, false);
  char *cut = held(__wrap_gpu_recall(NULL, NULL, "programs bf16 mma_sync"));
  cut[strlen(cut) - 1] = '\0';
  remember_damaged(cut);
  expect(start(KERNELS_AUTO, 8), 2, 0, 0, false);
  remember_damaged("1 2.000000003 operations 8");
  expect(start(KERNELS_AUTO, 8), 2, 0, 0, false);
  expect(start(KERNELS_AUTO, 8), 1, 0, 0, false);
}

TEST(who_asks_for_kernels_gets_them_unchecked) {
  forget();
  machine.planted = OUT_LOSES_A_PART_OF_A_SUM;
  expect(start(KERNELS_FUSED, 8), 1, 0, 0, false);
  expect(start(KERNELS_UNFUSED, 8), 1, 0, 0, false);
  expect(start(KERNELS_AUTO, 10), 1, 0, 0, false); // unfused
  assert_string_equal(machine.remembered.kept, "");
}

// As the doctor does, with times of some operations.
TEST(the_table_has_a_row_for_each_operation) {
  const BenchResult times = {.ops[OP_down] = {.calls = 1,
                                              .time = {{.median = 0.5}, {.median = 1}},
                                              .bare = {.median = 0.4}}};
  machine.planted = DOWN_SKIPS_THE_RESIDUAL_OF_A_TILE;
  Check check;
  assert_int_equal(check_programs(&check, false, MAINLOOP_MMA_SYNC, &(Gpu){.major = 8}, &err), 0);
  const Caught printed = catch_output(STDOUT_FILENO);
  check_print(&check, false, &times);
  const char *const text = caught(printed);
  fputs(text, stdout);
  int lines = 0, failed = 0;
  for (const char *line = text; *line; line = strchr(line, '\n') + 1, lines++)
    failed += strncmp(line, "FAIL  down ", 11) == 0 && strstr(line, " RESIDUAL ") &&
              strstr(line, "    0.500     1.25     0.50  x of layer 1\n");
  assert_int_equal(failed, 1);
  assert_int_equal(lines, 1 + 10);
  assert_null(strstr(strstr(text, "FAIL") + 1, "FAIL"));
  assert_non_null(strstr(text, "PASS  down_dgrad      SWIGLU_BACKWARD "));
}
