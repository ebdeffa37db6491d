#include "model/run/check.h"

#include <assert.h>
#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bf16.h"
#include "base/memory.h"
#include "base/minmax.h"
#include "base/os.h"
#include "base/rng.h"
#include "kernels/gpu.h"

// No size is a whole number of tiles.
enum { BATCH = 2, SEQ = 77, ROWS = BATCH * SEQ };

ModelConfig check_model(bool fp8) {
  return (ModelConfig){.hidden_size = 272,
                       .intermediate_size = 528,
                       .num_hidden_layers = fp8 ? 2 : 1, // the first's dx has no copies
                       .num_attention_heads = 3,
                       .num_key_value_heads = 1,
                       .head_dim = 48,
                       .vocab_size = fp8 ? 336 : 331,
                       .max_position_embeddings = SEQ,
                       .rms_norm_eps = 1e-5,
                       .rope_theta = 10000,
                       .initializer_range = 0.05};
}

// Masters in bf16 are the weights that all sides multiply by.
Spec check_spec(bool fp8) {
  const ModelConfig model = check_model(fp8);
  return model_spec(&model, (Spec){.batch = BATCH,
                                   .seq = SEQ,
                                   .loss_chunks = 1,
                                   .train = true,
                                   .masters = MASTERS_BF16,
                                   .threads = 1});
}

// ---- Attention. With either kind of kernels it is cuDNN's, which would compile for these sizes
// for seconds. So the CPU takes its place.

typedef struct HostAttention {
  Backend *cpu;
  float *qkv, *o, *lse;
} HostAttention;

static float *floats(int64_t count) {
  return xcalloc((size_t)count, sizeof(float));
}

static HostAttention attention_open(Backend *be, int64_t B, int64_t T, const act_t *qkv) {
  const Spec spec = check_spec(be->spec.fp8);
  const int64_t count = B * T * packed_width(&spec);
  const HostAttention h = {.cpu = backend_cpu_create(&spec),
                           .qkv = floats(count),
                           .o = floats(B * T * query_width(&spec)),
                           .lse = floats(B * spec.H * T)};
  be->services.read_act(be, h.qkv, qkv, count);
  h.cpu->attention(h.cpu, B, T, (act_t *)h.qkv, operand_of((act_t *)h.o), (stat_t *)h.lse);
  return h;
}

static void attention_close(HostAttention *h) {
  h->cpu->services.destroy(h->cpu);
  free(h->qkv);
  free(h->o);
  free(h->lse);
}

static void write_act(Backend *be, act_t *to, const float *from, int64_t count) {
  const size_t width = act_bytes(&be->spec);
  bf16_bits *bits = xmalloc((size_t)count * sizeof *bits);
  for (int64_t i = 0; i < count; i++) bits[i] = bf16_of_float(from[i]);
  be->services.write(be, to, width == sizeof *bits ? (const void *)bits : from,
                     (size_t)count * width);
  free(bits);
}

static void host_attention(Backend *be, int64_t B, int64_t T, const act_t *qkv, Operand o,
                           stat_t *lse) {
  const int64_t cols = query_width(&be->spec);
  HostAttention h = attention_open(be, B, T, qkv);
  (void)lse; // of nobody but the backward here
  write_act(be, o.data, h.o, B * T * cols);
  be->requantize(be, B * T, cols, o);
  attention_close(&h);
}

static void host_attention_backward(Backend *be, int64_t B, int64_t T, const act_t *qkv,
                                    const act_t *o, const stat_t *lse, const act_t *do_,
                                    act_t *dqkv) {
  const int64_t of_o = B * T * query_width(&be->spec), all = B * T * packed_width(&be->spec);
  HostAttention h = attention_open(be, B, T, qkv);
  float *gradient = floats(of_o), *result = floats(all);
  (void)o, (void)lse; // the forward has run again
  be->services.read_act(be, gradient, do_, of_o);
  h.cpu->attention_backward(h.cpu, B, T, (act_t *)h.qkv, (act_t *)h.o, (stat_t *)h.lse,
                            (act_t *)gradient, (act_t *)result);
  write_act(be, dqkv, result, all);
  free(gradient);
  free(result);
  attention_close(&h);
}

// ---- What a step leaves

enum { MOST_TENSORS = 64 };

typedef struct Tensor {
  ShortText name;
  int64_t count;
  float *values; // NULL: only in FP8
  double floor;  // of its error
} Tensor;

typedef struct Step {
  int count;
  Tensor list[MOST_TENSORS];
} Step;

static void step_free(Step *s) {
  for (int i = 0; i < s->count; i++) free(s->list[i].values);
  *s = (Step){.count = 0};
}

static float *add(Step *s, const char *name, const char *more, int64_t count, double floor) {
  assert(s->count < MOST_TENSORS);
  Tensor *t = &s->list[s->count++];
  *t = (Tensor){.name = short_text("%s%s", name, more), .count = count, .floor = floor};
  return t->values = xcalloc((size_t)count, sizeof *t->values);
}

static void add_act(Step *s, Backend *be, const char *name, int64_t layer, const act_t *from,
                    int64_t count) {
  float *to = add(s, name, short_text(" of layer %lld", (long long)layer).text, count, 1e-6);
  if (from) be->services.read_act(be, to, from, count);
  if (from) return;
  free(to);
  s->list[s->count - 1].values = NULL;
}

// A twin of one number may be lucky.
static void add_loss(Step *s, const char *name, double loss) {
  *add(s, name, "", 1, 3e-4) = (float)loss;
}

// z is stored with or without RMSNorm's r.
static void add_forward(Step *s, const Llama *llama) {
  Backend *be = llama->be;
  const Spec *spec = &llama->spec;
  for (int64_t l = 0; l < spec->L; l++) {
    const LayerActs *a = &llama->acts.layers[l];
    add_act(s, be, "qkv", l, a->qkv, ROWS * packed_width(spec));
    add_act(s, be, "x1", l, a->x1.data, ROWS * spec->D);
    add_act(s, be, "y", l, a->y.data, ROWS * spec->F);
    add_act(s, be, "x", l + 1, a[1].x.data, ROWS * spec->D);
  }
}

static void add_backward(Step *s, const Llama *llama) {
  Backend *be = llama->be;
  add_act(s, be, "dx", 0, llama->acts.layers[0].dx.data, ROWS * llama->spec.D);
  for (int i = 0; i < llama->param_count; i++) {
    const ParamTensor *t = &llama->tensors[i];
    const grad_t *grad = t->grad ? t->grad : t->grad_folded;
    if (t->vector) continue; // grads_finish writes it
    float *to =
        add(s, scaling_name(&llama->config, i).text, "'s gradient", t->rows * t->cols, 2e-6);
    be->services.read_grad(be, to, grad, t->rows * t->cols);
  }
}

static Batch batch_new(const Llama *llama) {
  const int64_t rows = batch_rows(&llama->spec);
  Batch batch = batch_alloc(rows);
  const uint64_t V = (uint64_t)llama->spec.V;
  for (int64_t i = 0; i < rows; i++) {
    batch.tokens[i] = (int32_t)(rng_u64(1, (uint64_t)i) % V);
    batch.targets[i] = i % 11 == 3 ? NO_TARGET : (int32_t)(rng_u64(2, (uint64_t)i) % V);
  }
  batch.targets[0] = (int32_t)V - 1;
  return batch;
}

// The residual stream is about 1, and what layers add to it less: so errors do not grow from one
// operation to the next, and the bounds are about those of single operations.
static void init_weights(Llama *llama) {
  enum { FACTOR = 16 };
  Backend *be = llama->be;
  const ParamTensor *embed = llama->embed;
  const int64_t count = embed->rows * embed->cols;
  float *values = floats(count);
  llama_init_weights(llama, 1);
  state_read(be, values, embed, STATE_master);
  for (int64_t i = 0; i < count; i++) values[i] *= FACTOR;
  state_write(be, embed, STATE_master, values);
  be->services.refresh(be, llama->tensors, llama->param_count);
  free(values);
}

// What the step does not write is NaN.
static void poison(const Llama *llama) {
  Backend *be = llama->be;
  char *const blocks[] = {llama->acts_block, llama->grads_block};
  const size_t bytes[] = {llama->plan.acts_bytes, llama->plan.grads_bytes};
  for (int i = 0; i < 2; i++) {
    char *nan = xmalloc(bytes[i]);
    memset(nan, 0xff, bytes[i]);
    be->services.write(be, blocks[i], nan, bytes[i]);
    free(nan);
  }
}

static int run_step(Step *s, const ModelConfig *model, Backend *be, Error *err) {
  Llama llama;
  if (llama_create(&llama, model, be, err) != 0) return -1;
  init_weights(&llama);
  poison(&llama);
  Batch batch = batch_new(&llama);
  const double validated = llama_sum_of_losses(&llama, &batch);
  add_forward(s, &llama);
  add_loss(s, "validation loss", validated);
  llama_backward(&llama, 1, false);
  be->services.step_end(be);
  add_loss(s, "loss", be->services.step_result(be).loss);
  add_backward(s, &llama);
  batch_free(&batch);
  llama_destroy(&llama);
  return 0;
}

// With these operations fused.
static int run_fused(Step *s, const ModelConfig *model, Backend *be, FuseOp *fuse,
                     OperationSet operations, Error *err) {
  if (fuse(be, operations, err) != 0) return -1;
  be->attention = host_attention;
  be->attention_backward = host_attention_backward;
  return run_step(s, model, be, err);
}

// ---- Comparing

static void note_error(CheckedOperation *c, ShortText tensor, double error, double bound) {
  c->passed = c->passed && error <= bound;
  if (c->bound > 0 && (isnan(c->error) || error / bound <= c->error / c->bound)) return;
  c->error = error;
  c->bound = bound;
  c->tensor = tensor;
}

static CheckedOperation compare(Operation operation, const Step *got, const Step *twin,
                                const Step *reference) {
  CheckedOperation c = {.operation = operation, .passed = true};
  for (int i = 0; i < got->count; i++) {
    const Tensor *t = &reference->list[i];
    if (!got->list[i].values) continue;
    const Deviation d = deviation(got->list[i].values, t->values, t->count),
                    bound = deviation_bound(deviation(twin->list[i].values, t->values, t->count),
                                            t->floor);
    note_error(&c, t->name, d.l2, bound.l2);
    note_error(&c, t->name, d.largest, bound.largest);
  }
  return c;
}

OperationSet check_failed(const Check *check) {
  OperationSet failed = 0;
  for (int i = 0; i < check->count; i++)
    if (!check->list[i].passed) failed |= operations_with(check->list[i].operation);
  return failed;
}

// Muon's iteration is no operation with a program, but a launch of several.
static OperationSet fused_operations(const Backend *be) {
  OperationSet fused = 0;
  for (Operation i = 0; i < OPERATION_COUNT; i++)
    if (be->kinds[i] == KERNEL_FUSED && i != OP_muon) fused |= (OperationSet)1 << i;
  return fused;
}

int check_operations(Check *check, Backend *reference, Backend *be, FuseOp *fuse, Error *err) {
  const ModelConfig model = check_model(be->spec.fp8);
  OperationSet left = fused_operations(be);
  Step exact = {.count = 0}, unfused = exact, fused = exact;
  int status =
      run_step(&exact, &model, reference, err) || run_fused(&unfused, &model, be, fuse, 0, err) ? -1
                                                                                                : 0;
  check->count = 0;
  for (Operation i = 0; i < OPERATION_COUNT && status == 0; i++) {
    if (!(left >> i & 1)) continue;
    left &= ~operations_with(i);
    status = run_fused(&fused, &model, be, fuse, operations_with(i), err);
    if (status == 0) check->list[check->count++] = compare(i, &fused, &unfused, &exact);
    step_free(&fused);
  }
  step_free(&exact);
  step_free(&unfused);
  return status;
}

// ---- The table

static void print_row(const CheckedOperation *c, Operation operation, bool fp8,
                      const BenchResult *times) {
  const BenchOp *timed = times && times->ops[operation].calls > 0 ? &times->ops[operation] : NULL;
  printf("%s  %-15s %-32s %8.1e %8.1e", c->passed ? "PASS" : "FAIL", operation_name(operation),
         operation_program(operation, fp8), fabs(c->error), c->bound);
  if (timed)
    printf(" %8.3f %8.2f %8.2f", timed->time[BENCH_FUSED].median, op_rates(times, timed).over_bare,
           1 / op_rates(times, timed).unfused_over);
  else
    printf(" %8s %8s %8s", "-", "-", "-");
  printf("  %s\n", c->tensor.text);
}

void check_print(const Check *check, bool fp8, const BenchResult *times) {
  printf("      %-15s %-32s %8s %8s %8s %8s %8s  %s\n", "operation", "program", "error", "allowed",
         "ms", "/cuBLASLt", "/unfused", "worst in");
  for (int i = 0; i < check->count; i++) {
    const CheckedOperation *c = &check->list[i];
    for (Operation operation = 0; operation < OPERATION_COUNT; operation++)
      if (operations_with(c->operation) >> operation & 1) print_row(c, operation, fp8, times);
  }
}

// ---- On a GPU

// The batch is set later, so that no algorithms are timed and no attention is compiled for it.
static Backend *open_fused(const ModelConfig *model, Spec spec, const Gpu *gpu, Error *err) {
  const int64_t batch = spec.batch;
  spec.batch = 0;
  spec.kernels = KERNELS_FUSED;
  if (spec.fp8) scalings_declare(model, &spec);
  Backend *be = backend_gpu_create(&spec, gpu, err);
  free((void *)spec.scalings);
  if (be) be->spec.batch = batch;
  return be;
}

int check_programs(Check *check, bool fp8, Mainloop mainloop, const Gpu *gpu, Error *err) {
  const ModelConfig model = check_model(fp8);
  const Spec spec = check_spec(fp8);
  Spec by_program = spec;
  by_program.fp8 = fp8;
  by_program.mainloop = mainloop;
  const int threads = omp_get_max_threads(); // the CPU's backend sets it
  Backend *be = open_fused(&model, by_program, gpu, err);
  if (!be) return -1;
  Backend *cpu = backend_cpu_create(&spec);
  const int status = check_operations(check, cpu, be, backend_fuse, err);
  cpu->services.destroy(cpu);
  be->services.destroy(be);
  omp_set_num_threads(threads);
  return status;
}

// ---- Whether programs pay

enum {
  TIMED_ROWS = 8192, // at most: by more a time per row hardly changes
  TIMED_STEPS = 2,
  MOST_ROUNDS = 3,
};
// What a program may lose before it is given up, so that no start decides by chance: a tenth, and a
// launch. Rounds end when they have taken most_ms.
static const double slower_by = 1.1, launch_ms = 0.005, most_ms = 500;

// Attention is the same with either kind. The results of these are as large as its.
static void no_attention(Backend *be, int64_t B, int64_t T, const act_t *qkv, Operand o,
                         stat_t *lse) {
  const int64_t cols = query_width(&be->spec);
  (void)lse;
  be->services.copy(be, o.data, qkv, (size_t)(B * T * cols) * act_bytes(&be->spec));
  be->requantize(be, B * T, cols, o);
}

static void no_attention_backward(Backend *be, int64_t B, int64_t T, const act_t *qkv,
                                  const act_t *o, const stat_t *lse, const act_t *do_,
                                  act_t *dqkv) {
  (void)o, (void)lse, (void)do_;
  be->services.copy(be, dqkv, qkv,
                    (size_t)(B * T * packed_width(&be->spec)) * act_bytes(&be->spec));
}

ModelConfig timed_model(const ModelConfig *model, bool fp8) {
  ModelConfig layer = *model;
  layer.num_hidden_layers = check_model(fp8).num_hidden_layers;
  return layer;
}

Spec timed_spec(const ModelConfig *model, const Spec *run) {
  const int64_t seq = min_i64(run->seq, TIMED_ROWS),
                batch = max_i64(1, min_i64(run->batch, TIMED_ROWS / seq)), rows = batch * seq;
  int64_t chunks = max_i64(1, run->loss_chunks * rows / batch_rows(run));
  while (run->fp8 && chunks > 1 && rows % (chunks * FP8_GROUP) != 0) chunks--;
  const ModelConfig layer = timed_model(model, run->fp8);
  return model_spec(&layer, (Spec){.batch = batch,
                                   .seq = seq,
                                   .loss_chunks = chunks,
                                   .train = true,
                                   .fp8 = run->fp8,
                                   .masters = MASTERS_BF16,
                                   .moments = MOMENTS_BF16,
                                   .failed = run->failed,
                                   .mainloop = run->mainloop,
                                   .gemm_cache = run->gemm_cache});
}

// Into least, which has the ms of each operation in a step, by these marks of steps.
static void add_times(double *least, const Mark *marks, int count) {
  double ms[OPERATION_COUNT] = {0};
  for (int i = 0; i < count; i++) {
    if (marks[i].what >= 0) ms[marks[i].what] += marks[i + 1].ms - marks[i].ms;
    if (marks[i].what != MARK_STEP_END) continue;
    for (Operation op = 0; op < OPERATION_COUNT; op++) {
      least[op] = fmin(least[op], ms[op]);
      ms[op] = 0;
    }
  }
}

// The first step loads kernels, and in FP8 finds the scales. While the GPU works on a step the next
// is launched.
static int time_steps(double *least, const ModelConfig *model, Backend *be, FuseOp *fuse,
                      OperationSet operations, Error *err) {
  Llama llama;
  if (fuse(be, operations, err) != 0) return -1;
  be->attention = no_attention;
  be->attention_backward = no_attention_backward;
  if (llama_create(&llama, model, be, err) != 0) return -1;
  const Spec *s = &llama.spec;
  const int most =
      (int)(TIMED_STEPS * (2 * OPERATION_COUNT * (s->L + s->loss_chunks) + 4 * s->L + 2));
  Mark *marks = xmalloc((size_t)most * sizeof *marks);
  Batch batch = batch_new(&llama);
  be->services.marks_open(be, most);
  llama_init_weights(&llama, 1);
  llama_load_batch(&llama, &batch);
  for (int step = 0; step <= TIMED_STEPS; step++) {
    be->observed = step > 0 ? OBSERVE_OPERATIONS : OBSERVE_NOTHING;
    llama_forward(&llama);
    llama_backward(&llama, 1, false);
    if (step > 0) be->services.mark(be, MARK_STEP_END);
    be->calibrating = false;
  }
  be->observed = OBSERVE_NOTHING;
  add_times(least, marks, be->services.marks_read(be, marks));
  batch_free(&batch);
  free(marks);
  llama_destroy(&llama);
  return 0;
}

// Of the operations that run on the same kind of kernels.
static double together(const double *ms, Operation operation) {
  double sum = 0;
  for (Operation i = 0; i < OPERATION_COUNT; i++)
    if (operations_with(operation) >> i & 1) sum += ms[i];
  return sum;
}

// Unfused first, so that clocks that still rise are no loss of the programs'.
int check_times(CheckedTimes *t, const ModelConfig *model, Backend *be, FuseOp *fuse, Error *err) {
  const OperationSet all = fused_operations(be);
  const double began = now_ms();
  t->slow = 0;
  for (Operation i = 0; i < OPERATION_COUNT; i++) t->fused[i] = t->unfused[i] = INFINITY;
  for (int round = 0; round < MOST_ROUNDS; round++) {
    if (round > 0 && now_ms() - began > most_ms) break;
    if (time_steps(t->unfused, model, be, fuse, 0, err) != 0 ||
        time_steps(t->fused, model, be, fuse, all, err) != 0)
      return -1;
  }
  for (Operation i = 0; i < OPERATION_COUNT; i++)
    if (all >> i & 1 && together(t->fused, i) > slower_by * together(t->unfused, i) + launch_ms)
      t->slow |= operations_with(i);
  return 0;
}

// ---- Remembered results

static ShortText wrong_programs(const Spec *spec) {
  return short_text("programs %s %s", spec->fp8 ? "fp8" : "bf16",
                    spec->mainloop == MAINLOOP_WGMMA ? "wgmma" : "mma_sync");
}

static ShortText slow_programs(const Spec *timed) {
  const int64_t sizes[] = {timed->batch, timed->seq, chunk_rows(timed), timed->D, timed->F,
                           timed->H,     timed->KV,  timed->d,          timed->V};
  ShortText q = wrong_programs(timed);
  short_append(&q, " slow");
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) short_append(&q, " %" PRId64, sizes[i]);
  return q;
}

// Programs are part of the executable, and another one is checked anew.
static ShortText stamp(void) {
  struct stat st;
  if (stat("/proc/self/exe", &st) != 0) return (ShortText){""};
  return short_text("%lld %lld.%09ld", (long long)st.st_size, (long long)st.st_mtim.tv_sec,
                    st.st_mtim.tv_nsec);
}

static bool recall(const Spec *spec, const Gpu *gpu, ShortText question, OperationSet *operations) {
  const ShortText executable = stamp();
  const size_t length = strlen(executable.text);
  char *answer = gpu_recall(gpu, spec->gemm_cache, question.text);
  const bool known = answer && length > 0 && strncmp(answer, executable.text, length) == 0 &&
                     sscanf(answer + length, " operations %" SCNx32, operations) == 1;
  free(answer);
  return known;
}

static void remember(const Spec *spec, const Gpu *gpu, ShortText question,
                     OperationSet operations) {
  char *answer = xasprintf("%s operations %" PRIx32, stamp().text, operations);
  gpu_remember(gpu, spec->gemm_cache, question.text, answer);
  free(answer);
}

static ShortText names_with(Operation operation) {
  ShortText names = {""};
  for (Operation i = 0; i < OPERATION_COUNT; i++)
    if (operations_with(operation) >> i & 1)
      short_append(&names, "%s%s", *names.text ? ", " : "", operation_name(i));
  return names;
}

static void say_wrong(const Check *check) {
  for (int i = 0; i < check->count; i++) {
    const CheckedOperation *c = &check->list[i];
    if (c->passed) continue;
    fprintf(
        stderr,
        "not fused: %s: on this GPU %s has an error of %.2e, and %.2e is allowed; please report "
        "what ./train --doctor prints\n",
        names_with(c->operation).text, c->tensor.text, fabs(c->error), c->bound);
  }
}

static void say_slow(const CheckedTimes *t) {
  OperationSet left = t->slow;
  for (Operation i = 0; i < OPERATION_COUNT; i++) {
    if (!(left >> i & 1)) continue;
    left &= ~operations_with(i);
    fprintf(stderr, "not fused: %s: on this GPU %.3f ms fused, and %.3f ms unfused\n",
            names_with(i).text, together(t->fused, i), together(t->unfused, i));
  }
}

// Where there is no memory for it, nothing is found or remembered.
static OperationSet wrong_here(const Spec *spec, const Gpu *gpu) {
  const ShortText question = wrong_programs(spec);
  Check check;
  Error ignored;
  OperationSet failed = 0;
  if (recall(spec, gpu, question, &failed) ||
      check_programs(&check, spec->fp8, spec->mainloop, gpu, &ignored) != 0)
    return failed;
  say_wrong(&check);
  failed = check_failed(&check);
  remember(spec, gpu, question, failed);
  return failed;
}

static OperationSet slow_here(const ModelConfig *model, const Spec *run, const Gpu *gpu) {
  const ModelConfig layer = timed_model(model, run->fp8);
  const Spec spec = timed_spec(model, run);
  const ShortText question = slow_programs(&spec);
  CheckedTimes times;
  Error ignored;
  if (recall(run, gpu, question, &times.slow)) return times.slow;
  Backend *be = open_fused(&layer, spec, gpu, &ignored);
  if (!be) return 0;
  (void)check_times(&times, &layer, be, backend_fuse, &ignored); // without memory none is slow
  be->services.destroy(be);
  say_slow(&times);
  remember(run, gpu, question, times.slow);
  return times.slow;
}

void check_remembered(Spec *spec, const ModelConfig *model, const Gpu *gpu) {
  spec->failed = wrong_here(spec, gpu);
  if (plans_ahead(spec) && !spec->deterministic) spec->slow = slow_here(model, spec, gpu);
}
