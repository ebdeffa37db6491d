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

// ---- Attention. It is cuDNN's with either kind of kernels, and cuDNN would compile for these sizes
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
  char name[80];
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
  *t = (Tensor){.count = count, .floor = floor};
  snprintf(t->name, sizeof t->name, "%s%s", name, more);
  return t->values = xcalloc((size_t)count, sizeof *t->values);
}

static void add_act(Step *s, Backend *be, const char *name, int64_t layer, const act_t *from,
                    int64_t count) {
  char more[32];
  snprintf(more, sizeof more, " of layer %lld", (long long)layer);
  float *to = add(s, name, more, count, 1e-6);
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
  Batch batch = batch_alloc(ROWS);
  const uint64_t V = (uint64_t)llama->spec.V;
  for (int i = 0; i < ROWS; i++) {
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

static void note_error(CheckedOperation *c, const char *tensor, double error, double bound) {
  c->passed = c->passed && error <= bound;
  if (c->bound > 0 && (isnan(c->error) || error / bound <= c->error / c->bound)) return;
  c->error = error;
  c->bound = bound;
  snprintf(c->tensor, sizeof c->tensor, "%s", tensor);
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
    printf(" %8.3f %8.2f", timed->time[BENCH_FUSED].median, op_rates(times, timed).over_bare);
  else
    printf(" %8s %8s", "-", "-");
  printf("  %s\n", c->tensor);
}

void check_print(const Check *check, bool fp8, const BenchResult *times) {
  printf("      %-15s %-32s %8s %8s %8s %8s  %s\n", "operation", "program", "error", "allowed",
         "ms", "/cuBLASLt", "worst in");
  for (int i = 0; i < check->count; i++) {
    const CheckedOperation *c = &check->list[i];
    for (Operation operation = 0; operation < OPERATION_COUNT; operation++)
      if (operations_with(c->operation) >> operation & 1) print_row(c, operation, fp8, times);
  }
}

// ---- On a GPU

// The batch is set later, so that no algorithms are timed for these sizes.
static Backend *open_fused(bool fp8, Mainloop mainloop, const Gpu *gpu, Error *err) {
  const ModelConfig model = check_model(fp8);
  Spec spec = check_spec(fp8);
  spec.batch = 0;
  spec.kernels = KERNELS_FUSED;
  spec.mainloop = mainloop;
  spec.fp8 = fp8;
  if (fp8) scalings_declare(&model, &spec);
  Backend *be = backend_gpu_create(&spec, gpu, err);
  free((void *)spec.scalings);
  if (be) be->spec.batch = BATCH;
  return be;
}

int check_programs(Check *check, bool fp8, Mainloop mainloop, const Gpu *gpu, Error *err) {
  const Spec spec = check_spec(fp8);
  const int threads = omp_get_max_threads(); // the CPU's backend sets it
  Backend *be = open_fused(fp8, mainloop, gpu, err);
  if (!be) return -1;
  Backend *cpu = backend_cpu_create(&spec);
  const int status = check_operations(check, cpu, be, backend_fuse, err);
  cpu->services.destroy(cpu);
  be->services.destroy(be);
  omp_set_num_threads(threads);
  return status;
}

// ---- Remembered results

typedef struct Line {
  char text[96];
} Line;

static Line question_of(const Spec *spec) {
  Line q;
  snprintf(q.text, sizeof q.text, "programs %s %s", spec->fp8 ? "fp8" : "bf16",
           spec->mainloop == MAINLOOP_WGMMA ? "wgmma" : "mma_sync");
  return q;
}

// Programs are part of the executable, and another one is checked anew.
static Line stamp(void) {
  Line l = {""};
  struct stat st;
  if (stat("/proc/self/exe", &st) == 0)
    snprintf(l.text, sizeof l.text, "%lld %lld.%09ld", (long long)st.st_size,
             (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
  return l;
}

static bool recall(const Spec *spec, const Gpu *gpu, OperationSet *failed) {
  const Line executable = stamp();
  const size_t length = strlen(executable.text);
  char *answer = gpu_recall(gpu, spec->gemm_cache, question_of(spec).text);
  const bool known = answer && length > 0 && strncmp(answer, executable.text, length) == 0 &&
                     sscanf(answer + length, " failed %" SCNx32, failed) == 1;
  free(answer);
  return known;
}

static void say(const Check *check) {
  for (int i = 0; i < check->count; i++) {
    const CheckedOperation *c = &check->list[i];
    if (c->passed) continue;
    fflush(stdout);
    fprintf(stderr,
            "the fused program of %s is not used: on this GPU its %s has an error of %.2e, and "
            "%.2e is allowed; please report what ./train --doctor prints\n",
            operation_name(c->operation), c->tensor, fabs(c->error), c->bound);
  }
}

OperationSet check_remembered(const Spec *spec, const Gpu *gpu) {
  Check check;
  Error err;
  OperationSet failed = 0;
  if (recall(spec, gpu, &failed)) return failed;
  if (check_programs(&check, spec->fp8, spec->mainloop, gpu, &err) != 0) return 0; // no memory
  say(&check);
  failed = check_failed(&check);
  char *answer = xasprintf("%s failed %" PRIx32, stamp().text, failed);
  gpu_remember(gpu, spec->gemm_cache, question_of(spec).text, answer);
  free(answer);
  return failed;
}
