// Attention through cuDNN against the CPU backend: odd shapes, every configuration that cuDNN
// offers, the deterministic backward.
//
// Bounds: twice the error of a twin that rounds as such a kernel does (attention_problem.h).
#include <cuda_runtime_api.h>

#include "kernels/cuda/kernels.h"
#include "tests/gpu/attention_problem.h"
#include "tests/support/bf16.h"
#include "tests/support/test.h"

// ---- The GPU

typedef struct Gpu {
  CudnnApi api;
  CudnnHandle handle;
  cudaStream_t stream;
  bool hopper;
} Gpu;

static void cuda_ok(cudaError_t status) {
  if (status != cudaSuccess) fail_msg("CUDA: %s", cudaGetErrorString(status));
}
static void ok(int status, const Error *err) {
  if (status) fail_msg("%s", err->text);
}

static int open_gpu(void **state) {
  static Gpu gpu;
  Error err;
  *state = &gpu;
  if (cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking) != cudaSuccess ||
      cudnn_open(&gpu.api, &err) ||
      cudnn_check(&gpu.api, gpu.api.create(&gpu.handle), "opening cuDNN", &err) ||
      cudnn_check(&gpu.api, gpu.api.set_stream(gpu.handle, gpu.stream), "opening cuDNN", &err)) {
    printf("# no GPU or no cuDNN: %s\n", err.text);
    return -1;
  }
  int major = 0;
  cuda_ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  gpu.hopper = major == 9;
  printf("# cuDNN %s\n", cudnn_version_text(gpu.api.version).text);
  return 0;
}

static int close_gpu(void **state) {
  Gpu *gpu = *state;
  gpu->api.destroy(gpu->handle);
  return cudaStreamDestroy(gpu->stream) == cudaSuccess ? 0 : -1;
}

// Device memory between two fences, all of it poisoned: 0xff bytes are NaN in bf16 and in fp32.
enum { FENCE = 4096, POISON = 0xff };
typedef struct Fenced {
  char *base, *data;
  size_t bytes;
} Fenced;

static Fenced fenced_new(size_t bytes) {
  Fenced f = {.bytes = bytes};
  cuda_ok(cudaMalloc((void **)&f.base, bytes + 2 * FENCE));
  cuda_ok(cudaMemset(f.base, POISON, bytes + 2 * FENCE));
  f.data = f.base + FENCE;
  return f;
}
static void fenced_poison(const Fenced *f) {
  cuda_ok(cudaMemset(f->data, POISON, f->bytes));
}
static void fenced_write(const Fenced *f, const void *from) {
  cuda_ok(cudaMemcpy(f->data, from, f->bytes, cudaMemcpyHostToDevice));
}
static void *fenced_read(const Fenced *f) {
  void *to = xmalloc(f->bytes);
  cuda_ok(cudaMemcpy(to, f->data, f->bytes, cudaMemcpyDeviceToHost));
  return to;
}
static void fenced_free(Fenced *f, const char *name) {
  unsigned char fence[FENCE];
  for (int side = 0; side < 2; side++) {
    cuda_ok(cudaMemcpy(fence, side ? f->data + f->bytes : f->base, FENCE, cudaMemcpyDeviceToHost));
    for (int i = 0; i < FENCE; i++)
      if (fence[i] != POISON)
        fail_msg("%s: byte %d %s the buffer was written", name, i, side ? "after" : "before");
  }
  cuda_ok(cudaFree(f->base));
}
static void expect_unchanged(const Fenced *f, const void *was, const char *name) {
  void *is = fenced_read(f);
  if (memcmp(is, was, f->bytes) != 0) fail_msg("the input %s was written", name);
  free(is);
}

// ---- Running it

typedef struct Device {
  Fenced qkv, o, lse, d_o, dqkv, workspace, table, bias;
  int64_t places;
} Device;

// launch_document_bias: zeros, but for -2^100 before each row's document.
static void write_bias(const Problem *p, const Fenced *bias) {
  const int64_t T = p->s.T, M = p->s.B * T;
  const size_t bytes = (size_t)M * sizeof(int32_t);
  int32_t *first = xmalloc(bytes);
  for (int64_t i = 0, row = 0; i < p->documents; i++) {
    const int64_t begin = row;
    while (row < begin + p->lengths[i]) first[row++] = (int32_t)(begin % T);
  }
  Fenced rows = fenced_new(bytes);
  fenced_write(&rows, first);
  launch_document_bias(M, T, (const int32_t *)(const void *)rows.data, bias->data, NULL);
  cuda_ok(cudaDeviceSynchronize());
  uint16_t *written = fenced_read(bias);
  for (int64_t i = 0; i < M * T; i++)
    assert_int_equal(written[i], i % T < first[i / T] ? to_bf16(-0x1p100f) : 0);
  fenced_free(&rows, "first rows");
  free(written), free(first);
}

static Device device_new(const Problem *p, const AttentionCudnn *a) {
  const bool biased = p->s.mask == MASK_BIAS;
  Device d = {fenced_new(p->n.qkv * 2),
              fenced_new(p->n.o * 2),
              fenced_new(p->n.lse * 4),
              fenced_new(p->n.o * 2),
              fenced_new(p->n.qkv * 2),
              fenced_new(attention_cudnn_workspace(a)),
              fenced_new(attention_table_bytes(p->s.B, 1)),
              fenced_new(biased ? p->n.rows * (size_t)p->s.T * 2 : 0),
              p->s.B};
  void *table = xmalloc(d.table.bytes);
  attention_table_fill(&p->s, p->lengths, biased ? 0 : p->documents, 1, table);
  fenced_write(&d.table, table);
  free(table);
  if (biased) write_bias(p, &d.bias);
  fenced_write(&d.qkv, p->qkv);
  fenced_write(&d.d_o, p->d_o);
  return d;
}
static void device_free(Device *d) {
  fenced_free(&d->qkv, "qkv"), fenced_free(&d->o, "o"), fenced_free(&d->lse, "lse");
  fenced_free(&d->d_o, "do"), fenced_free(&d->dqkv, "dqkv");
  fenced_free(&d->workspace, "workspace"), fenced_free(&d->table, "table");
  fenced_free(&d->bias, "bias");
}

static void launch(AttentionCudnn *a, const Device *d) {
  Error err;
  const AttentionTensors tensors = {.qkv = d->qkv.data,
                                    .o = d->o.data,
                                    .lse = (float *)(void *)d->lse.data,
                                    .do_ = d->d_o.data,
                                    .dqkv = d->dqkv.data,
                                    .workspace = d->workspace.data,
                                    .bias = d->bias.data,
                                    .documents = attention_table_at(d->table.data, d->places, 0)};
  ok(attention_cudnn_run(a, false, &tensors, &err), &err);
  ok(attention_cudnn_run(a, true, &tensors, &err), &err);
}

typedef struct Outputs {
  uint16_t *o, *dqkv;
  float *lse;
  char *workspace;
} Outputs;

static Outputs read_outputs(const Device *d) {
  return (Outputs){fenced_read(&d->o), fenced_read(&d->dqkv), fenced_read(&d->lse),
                   fenced_read(&d->workspace)};
}
static void outputs_free(Outputs *out) {
  free(out->o), free(out->dqkv), free(out->lse), free(out->workspace);
}

static Outputs run_poisoned(const Gpu *gpu, AttentionCudnn *a, const Device *d) {
  fenced_poison(&d->o), fenced_poison(&d->lse), fenced_poison(&d->dqkv);
  fenced_poison(&d->workspace);
  cuda_ok(cudaDeviceSynchronize());
  launch(a, d);
  cuda_ok(cudaStreamSynchronize(gpu->stream));
  return read_outputs(d);
}

// ---- Comparing

// Relative L2 distance over columns [first, first + count) of rows of `row`. Where the truth is
// next to nothing (dq and dk at T = 1), relative to a hundredth of the inputs' size.
static double distance(const float *x, const float *truth, size_t rows, int64_t row, int64_t first,
                       int64_t count) {
  double difference = 0, norm = 0;
  for (size_t m = 0; m < rows; m++)
    for (int64_t c = first; c < first + count; c++) {
      const double e = (double)x[(int64_t)m * row + c] - (double)truth[(int64_t)m * row + c];
      difference += e * e;
      norm += (double)truth[(int64_t)m * row + c] * (double)truth[(int64_t)m * row + c];
    }
  return sqrt(difference / fmax(norm, 1e-4 * (double)rows * (double)count));
}

static void expect_close(const char *name, const float *x, const float *truth, const float *twin,
                         size_t rows, int64_t row, int64_t first, int64_t count, char *report,
                         size_t bytes) {
  const double error = distance(x, truth, rows, row, first, count);
  const double bound = 2 * distance(twin, truth, rows, row, first, count) + 1e-4;
  const size_t used = strlen(report);
  snprintf(report + used, bytes - used, "  %s %.1e/%.1e", name, error, bound);
  if (!(error <= bound)) {
    printf("# %s\n", report);
    fail_msg("%s: error %g is above its bound %g", name, error, bound);
  }
}

static void compare_all(const Problem *p, const Outputs *out, const char *label) {
  const AttentionShape *s = &p->s;
  const int64_t R = attention_row(s), d = s->d;
  const float *truth = p->reference.dqkv, *twin = p->twin.dqkv;
  char report[512];
  snprintf(report, sizeof report,
           "B%lld T%lld H%lld KV%lld d%lld, %lld documents, mask %d, %s:", (long long)s->B,
           (long long)s->T, (long long)s->H, (long long)s->KV, (long long)d,
           (long long)p->documents, s->mask, label);
  float *o = widened(out->o, p->n.o), *dqkv = widened(out->dqkv, p->n.qkv);
  expect_close("o", o, p->reference.o, p->twin.o, p->n.rows, s->H * d, 0, s->H * d, report,
               sizeof report);
  expect_close("dq", dqkv, truth, twin, p->n.rows, R, 0, s->H * d, report, sizeof report);
  expect_close("dk", dqkv, truth, twin, p->n.rows, R, s->H * d, s->KV * d, report, sizeof report);
  expect_close("dv", dqkv, truth, twin, p->n.rows, R, (s->H + s->KV) * d, s->KV * d, report,
               sizeof report);
  double worst = 0;
  for (size_t i = 0; i < p->n.lse; i++) {
    const double e = fabs((double)out->lse[i] - (double)p->reference.lse[i]);
    if (!(e <= worst)) worst = e; // a NaN stays
  }
  printf("# %s  lse %.1e/1e-05 (absolute)\n", report, worst);
  assert_true(worst <= 1e-5);
  free(o), free(dqkv);
}

// Equal bits; of dqkv only the k and v columns where dq's order of summation is free.
static void expect_equal_bits(const Problem *p, bool deterministic, const Outputs *x,
                              const Outputs *y) {
  const int64_t R = attention_row(&p->s), q = p->s.H * p->s.d;
  assert_memory_equal(x->o, y->o, p->n.o * 2);
  assert_memory_equal(x->lse, y->lse, p->n.lse * 4);
  size_t differ = 0;
  for (size_t m = 0; m < p->n.rows; m++) {
    const int64_t at = (int64_t)m * R;
    for (int64_t c = 0; c < q; c++) differ += x->dqkv[at + c] != y->dqkv[at + c];
    assert_memory_equal(x->dqkv + at + q, y->dqkv + at + q, (size_t)(R - q) * 2);
  }
  if (deterministic) assert_int_equal(differ, 0);
}

static AttentionCall call_of(AttentionShape s, bool deterministic) {
  return (AttentionCall){.shape = s, .backward = true, .deterministic = deterministic};
}

static AttentionCudnn *create(const Gpu *gpu, const AttentionCall *call, Choices *choices) {
  Error err;
  AttentionCudnn *a =
      attention_cudnn_create(&gpu->api, gpu->handle, gpu->stream, call, choices, &err);
  if (!a) fail_msg("%s", err.text);
  return a;
}

// As if these configurations were remembered as the fastest.
static AttentionCudnn *create_numbered(const Gpu *gpu, AttentionShape s, int forward,
                                       int backward) {
  const AttentionCall calls[2] = {{.shape = s}, call_of(s, false)};
  const int numbers[2] = {forward, backward};
  Choices known;
  choices_open(&known, NULL, "test\n");
  for (int i = 0; i < 2; i++) {
    const AttentionPlan plan = {attention_graph_of(&calls[i]), numbers[i], .milliseconds = 1};
    attention_plan_keep(&known, &calls[i], &plan);
  }
  AttentionCudnn *a = create(gpu, &calls[1], &known);
  choices_close(&known);
  for (int i = 0; i < 2; i++) assert_int_equal(attention_cudnn_plan(a, i)->number, numbers[i]);
  return a;
}

// Destroys a.
static void check(const Gpu *gpu, const Problem *p, AttentionCudnn *a, bool deterministic,
                  const char *label) {
  Device d = device_new(p, a);
  Outputs first = run_poisoned(gpu, a, &d), second = run_poisoned(gpu, a, &d);
  compare_all(p, &first, label);
  expect_equal_bits(p, deterministic, &first, &second);
  expect_unchanged(&d.qkv, p->qkv, "qkv");
  expect_unchanged(&d.d_o, p->d_o, "do");
  outputs_free(&first), outputs_free(&second);
  device_free(&d);
  attention_cudnn_destroy(a);
}

static void check_first(const Gpu *gpu, Problem p, bool deterministic) {
  const AttentionCall call = call_of(p.s, deterministic);
  AttentionCudnn *a = deterministic ? create(gpu, &call, NULL) : create_numbered(gpu, p.s, 0, 0);
  check(gpu, &p, a, deterministic, deterministic ? "deterministic" : "plain");
  problem_free(&p);
}

// ---- Tests

static const AttentionShape shapes[] = {
    {1, 1, 4, 4, 64, 0, 0},   {3, 1, 3, 1, 48, 0, 0},    {2, 77, 4, 4, 64, 0, 0},
    {3, 77, 3, 1, 80, 0, 0},  {1, 77, 8, 2, 128, 0, 0},  {2, 128, 8, 1, 48, 0, 0},
    {1, 128, 6, 6, 48, 0, 0}, {2, 256, 8, 2, 64, 0, 0},  {1, 256, 3, 1, 128, 0, 0},
    {1, 256, 8, 1, 80, 0, 0}, {1, 333, 8, 1, 128, 0, 0}, {2, 333, 4, 4, 80, 0, 0},
    {1, 333, 8, 2, 64, 0, 0}, {1, 333, 3, 1, 48, 0, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

TEST(every_shape_agrees_with_the_cpu) {
  for (size_t i = 0; i < SHAPES; i++) check_first(*state, problem_new(shapes[i]), false);
}

TEST(the_deterministic_backward_gives_equal_bits) {
  for (size_t i = 0; i < SHAPES; i++) check_first(*state, problem_new(shapes[i]), true);
}

static int offered(const Gpu *gpu, const AttentionShape *s, AttentionGraph graph) {
  enum { MOST = 8 };
  CudnnGraph g;
  CudnnDescriptor list[MOST];
  Error err;
  int count = 0;
  ok(attention_graph(&g, &gpu->api, gpu->handle, s, graph, &err), &err);
  ok(graph_configs(&g, NULL, list, MOST, &count, &err), &err);
  descriptors_destroy(&gpu->api, list, count);
  graph_destroy(&g);
  return count;
}

static void check_all_configurations(const Gpu *gpu, const Problem *p) {
  const int forward = offered(gpu, &p->s, ATTENTION_FORWARD),
            backward = offered(gpu, &p->s, ATTENTION_BACKWARD);
  for (int k = 0; k < forward || k < backward; k++) {
    const int f = k < forward ? k : forward - 1, b = k < backward ? k : backward - 1;
    char label[64];
    snprintf(label, sizeof label, "number %d and %d", f, b);
    check(gpu, p, create_numbered(gpu, p->s, f, b), false, label);
  }
}

TEST(every_configuration_that_is_offered_agrees) {
  static const AttentionShape tried[] = {{1, 333, 8, 2, 64, 0, 0}, {2, 200, 4, 1, 128, 0, 0}};
  for (size_t i = 0; i < 2; i++) {
    Problem p = problem_new(tried[i]);
    check_all_configurations(*state, &p);
    problem_free(&p);
  }
}

// ---- Documents

// Ends at every place where a document may end: after one row, before the last, at tiles' edges,
// none within; all places used, and some left.
static const int32_t lengths[] = {1, 77,  128, 1, 129, 127, 64, 333, 2,   63, 65,
                                  1, 256, 1,   1, 40,  333, 8,  1,   200, 1};
enum { LENGTHS = sizeof lengths / sizeof *lengths };
// The same in windows of 333 rows, and of 256.
static const int32_t in_333[] = {1, 77, 255, 333, 128, 1, 129, 75, 64, 2, 63, 65, 1, 40, 8, 1, 89};
static const int32_t in_256[] = {1, 255, 128, 127, 1, 256, 64, 65, 63, 64};
typedef struct DocumentCase {
  const int32_t *lengths;
  int64_t count; // of lengths
  AttentionShape shape;
} DocumentCase;
static const DocumentCase document_cases[] = {
    {lengths, LENGTHS, {LENGTHS, 333, 4, 4, 64, 0, 0}},
    {lengths, LENGTHS, {LENGTHS + 11, 333, 8, 2, 64, 0, 0}},
    {lengths, LENGTHS, {LENGTHS + 3, 333, 3, 1, 80, 0, 0}},
    {lengths, LENGTHS, {64, 512, 8, 1, 128, 0, 0}},
    {lengths, 9, {16, 333, 6, 6, 48, 0, 0}},
    {lengths, 1, {8, 64, 4, 2, 64, 0, 0}},
    {lengths, 2, {2, 77, 4, 1, 128, 0, 0}},
    {lengths, 3, {40, 256, 6, 2, 40, 0, 0}},
};
static const DocumentCase biased_cases[] = {
    {in_333, 17, {4, 333, 4, 4, 64, 0, MASK_BIAS}},  {in_333, 17, {4, 333, 8, 2, 64, 0, MASK_BIAS}},
    {in_256, 10, {4, 256, 8, 1, 128, 0, MASK_BIAS}}, {in_333, 17, {4, 333, 3, 1, 80, 0, MASK_BIAS}},
    {in_256, 10, {4, 256, 6, 6, 48, 0, MASK_BIAS}},  {in_333, 4, {2, 333, 6, 2, 40, 0, MASK_BIAS}},
    {in_333, 1, {1, 1, 4, 2, 64, 0, MASK_BIAS}},
};
enum { CASES = sizeof document_cases / sizeof *document_cases };
enum { BIASED = sizeof biased_cases / sizeof *biased_cases, DOCUMENT_CASES = 2 * CASES + BIASED };

// Those with lengths, the same with a mask of them, and those with a bias.
static Problem document_problem(size_t i) {
  const DocumentCase *c = i < 2 * CASES ? &document_cases[i / 2] : &biased_cases[i - 2 * CASES];
  AttentionShape s = c->shape;
  if (s.mask != MASK_BIAS) {
    s.mask = i % 2 ? MASK_LENGTHS : MASK_NONE;
    for (int64_t k = 0; k < c->count; k++) s.rows += c->lengths[k];
  }
  return problem_of_documents(s, c->lengths, c->count);
}

// Without a bias on Hopper alone: gpu_biases_documents.
static bool runs_here(const Gpu *gpu, const Problem *p) {
  return gpu->hopper || p->s.mask == MASK_BIAS;
}

static void check_documents(const Gpu *gpu, bool deterministic) {
  for (size_t i = 0; i < DOCUMENT_CASES; i++) {
    Problem p = document_problem(i);
    if (runs_here(gpu, &p))
      check_first(gpu, p, deterministic);
    else
      problem_free(&p);
  }
}

TEST(documents_see_themselves_alone) {
  check_documents(*state, false);
}

TEST(documents_give_equal_bits_where_that_is_asked_for) {
  check_documents(*state, true);
}

TEST(every_configuration_for_documents_agrees) {
  static const size_t tried[] = {0, 1, 2, 3, 2 * CASES, 2 * CASES + 1, 2 * CASES + 2};
  for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
    Problem p = document_problem(tried[i]);
    if (runs_here(*state, &p)) check_all_configurations(*state, &p);
    problem_free(&p);
  }
}

// Which plans are timed, kept and compiled again is tested without a GPU
// (tests/emulated/test_attention_plan.c).
TEST(the_fastest_plan_and_the_remembered_one_agree) {
  Problem p = problem_new((AttentionShape){2, 256, 6, 6, 48, 0, 0});
  for (int equal_bits = 0; equal_bits < 2; equal_bits++) {
    AttentionCall call = call_of(p.s, equal_bits);
    call.both_graphs = true;
    Choices known;
    choices_open(&known, NULL, "test\n");
    AttentionCudnn *a = create(*state, &call, &known);
    const AttentionPlan chosen = *attention_cudnn_plan(a, true);
    assert_true(chosen.milliseconds > 0 && chosen.other_graph > 0);
    check(*state, &p, a, equal_bits, equal_bits ? "both graphs, equal bits" : "both graphs");
    a = create(*state, &call, &known);
    const AttentionPlan *again = attention_cudnn_plan(a, true);
    assert_true(again->number == chosen.number && again->graph == chosen.graph);
    assert_true(fabs(again->milliseconds / chosen.milliseconds - 1) < 1e-6);
    check(*state, &p, a, equal_bits, "remembered");
    choices_close(&known);
  }
  problem_free(&p);
}

TEST(a_captured_graph_replays_the_same_bits) {
  const Gpu *gpu = *state;
  Problem p = problem_new(shapes[7]);
  const AttentionCall call = call_of(p.s, true);
  AttentionCudnn *a = create(gpu, &call, NULL);
  Device d = device_new(&p, a);
  Outputs eager = run_poisoned(gpu, a, &d);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  size_t nodes = 0;
  cuda_ok(cudaStreamBeginCapture(gpu->stream, cudaStreamCaptureModeGlobal));
  launch(a, &d);
  cuda_ok(cudaStreamEndCapture(gpu->stream, &graph));
  cuda_ok(cudaGraphGetNodes(graph, NULL, &nodes));
  cuda_ok(cudaGraphInstantiate(&exec, graph, 0));
  fenced_poison(&d.o), fenced_poison(&d.lse), fenced_poison(&d.dqkv);
  fenced_poison(&d.workspace);
  cuda_ok(cudaDeviceSynchronize());
  cuda_ok(cudaGraphLaunch(exec, gpu->stream));
  cuda_ok(cudaStreamSynchronize(gpu->stream));
  Outputs replayed = read_outputs(&d);
  printf("# %zu nodes\n", nodes);
  expect_equal_bits(&p, true, &eager, &replayed);
  cuda_ok(cudaGraphExecDestroy(exec));
  cuda_ok(cudaGraphDestroy(graph));
  outputs_free(&eager), outputs_free(&replayed);
  device_free(&d);
  attention_cudnn_destroy(a);
  problem_free(&p);
}

TEST_GROUP(open_gpu, close_gpu);
