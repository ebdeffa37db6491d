// Which plans are compiled, timed, kept and remembered, with a counter in place of cuDNN.
#include <cuda_runtime_api.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/gpu.h"
#include "tests/support/test.h"

// What stands in for other functions needs few of their arguments.
#pragma GCC diagnostic ignored "-Wunused-parameter"

// A configuration, or the plan made from it.
typedef struct Made {
  AttentionGraph graph;
  int number;
} Made;

enum { OFFERED = 3 };
static struct Machine {
  bool fails[3][OFFERED], has_no_memory;
  double ms[3][OFFERED];
  AttentionGraph graph; // that was built last
  Made ran;             // last, with these
  const void *tensors[ATTENTION_IDS], *workspace;
  int plans, compiled, runs; // plans that exist, and all that were compiled and run so far
} machine;

static CudnnDescriptor made(Made m) {
  Made *new = xmalloc(sizeof *new);
  *new = m;
  return new;
}

// ---- cuDNN's and CUDA's part
int attention_graph(CudnnGraph *g, const CudnnApi *api, CudnnHandle handle, const AttentionShape *s,
                    AttentionGraph graph, Error *err) {
  graph_begin(g, api);
  machine.graph = graph;
  return 0;
}
int graph_configs(const CudnnGraph *g, CudnnDescriptor device, CudnnDescriptor *list, int max,
                  int *count, Error *err) {
  for (*count = 0; *count < OFFERED; ++*count) list[*count] = made((Made){machine.graph, *count});
  return 0;
}
void descriptors_destroy(const CudnnApi *api, const CudnnDescriptor *list, int count) {
  for (int i = 0; i < count; i++) free(list[i]);
}
void graph_destroy(CudnnGraph *g) {}
int plan_create(const CudnnApi *api, CudnnDescriptor config, CudnnDescriptor *plan,
                size_t *workspace, Error *err) {
  const Made m = *(Made *)config;
  if (machine.fails[m.graph][m.number]) return error_set(err, "it cannot");
  *plan = made(m);
  *workspace = 256 + (size_t)m.number * 1000;
  machine.plans++, machine.compiled++;
  return 0;
}
static int plan_destroy(CudnnDescriptor plan) {
  free(plan);
  machine.plans--;
  return 0;
}
int plan_execute(const CudnnApi *api, CudnnHandle handle, CudnnDescriptor plan,
                 const void *const *tensors, int ids, const void *workspace, Error *err) {
  machine.ran = *(Made *)plan;
  memcpy(machine.tensors, tensors, (size_t)ids * sizeof *tensors);
  machine.workspace = workspace;
  machine.runs++;
  return 0;
}
int time_calls(TimedCall *call, const void *context, int warm_up, int runs, cudaStream_t stream,
               double *milliseconds, Error *err) {
  for (int i = 0; i < warm_up + runs; i++) assert_int_equal(call(context, err), 0);
  *milliseconds = machine.ms[machine.ran.graph][machine.ran.number];
  return 0;
}
void *gpu_alloc(size_t bytes) {
  return machine.has_no_memory ? NULL : aligned_alloc(256, (bytes + 255) / 256 * 256);
}
void fill_random(void *to, size_t bytes, double scale, cudaStream_t stream) {
  memset(to, 1, bytes);
}
cudaError_t cudaFree(void *memory) {
  free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  memcpy(to, from, bytes);
  return cudaSuccess;
}

// ---- Tests
static const CudnnApi api = {.version = 91900, .destroy_descriptor = plan_destroy};

static AttentionCudnn *create(const AttentionCall *call, Choices *choices, int compiled) {
  Error err;
  machine.compiled = 0;
  AttentionCudnn *a = attention_cudnn_create(&api, NULL, NULL, call, choices, &err);
  if (!a) fail_msg("%s", err.text);
  assert_int_equal(machine.plans, 1 + call->backward);
  assert_int_equal(machine.compiled, compiled);
  return a;
}
static void destroy(AttentionCudnn *a) {
  attention_cudnn_destroy(a);
  assert_int_equal(machine.plans, 0);
}

// Runs it, and compares what ran, and with which tensors, with the plan.
static void check_run(const AttentionCudnn *a, const AttentionShape *s, bool backward) {
  static char memory[1 << 20];
  const AttentionTensors t = {memory, memory, (float *)(void *)memory, memory, memory, memory,
                              memory, {0}};
  const AttentionPlan *p = attention_cudnn_plan(a, backward);
  Error err;
  assert_int_equal(attention_cudnn_run(a, backward, &t, &err), 0);
  assert_true(machine.ran.graph == p->graph && machine.ran.number == p->number);
  assert_true((machine.tensors[ATTENTION_DO] != NULL) == backward);
  assert_true((machine.tensors[ATTENTION_DQ_SUM] != NULL) == (p->graph == ATTENTION_BACKWARD));
  assert_true((machine.tensors[ATTENTION_DV_HEADS] != NULL) == (backward && s->rows > 0));
  assert_true((machine.tensors[ATTENTION_BIAS] != NULL) == (s->mask == MASK_BIAS));
  const size_t before = (size_t)((const char *)machine.workspace - memory);
  assert_true(before + p->workspace <= attention_cudnn_workspace(a));
}

// The last configuration of each graph is the fastest. graph: the one to be chosen.
static void check_call(AttentionCall call, AttentionGraph graph) {
  const bool equal_bits = call.deterministic, both = call.both_graphs,
             first = machine.has_no_memory;
  Choices known;
  choices_open(&known, NULL, "test\n");
  AttentionCudnn *a = create(&call, &known, (equal_bits ? 2 : 6) + (both ? 3 : 0));
  const AttentionPlan *p = attention_cudnn_plan(a, true);
  assert_int_equal(p->graph, graph);
  assert_int_equal(p->number, first || equal_bits ? 0 : 2);
  assert_int_equal(attention_cudnn_plan(a, false)->number, first || equal_bits ? 0 : 2);
  const bool timed = !first && (!equal_bits || both);
  const AttentionPlan chosen = *p;
  assert_true((chosen.milliseconds > 0) == timed && (chosen.other_graph > 0) == (timed && both));
  for (int backward = 0; backward < 2; backward++) check_run(a, &call.shape, backward);
  destroy(a);
  // What was timed is remembered: then that plan alone is compiled.
  a = create(&call, &known, timed ? 2 : (equal_bits ? 2 : 6) + (both ? 3 : 0));
  p = attention_cudnn_plan(a, true);
  assert_true(p->graph == chosen.graph && p->number == chosen.number);
  assert_true(p->milliseconds == chosen.milliseconds && p->other_graph == chosen.other_graph);
  destroy(a);
  // Until it does not compile.
  machine.fails[chosen.graph][chosen.number] = true;
  Error err;
  a = attention_cudnn_create(&api, NULL, NULL, &call, &known, &err);
  assert_int_not_equal(attention_cudnn_plan(a, true)->number, chosen.number);
  destroy(a);
  machine.fails[chosen.graph][chosen.number] = false;
  choices_close(&known);
}

static void reset(bool deterministic_is_faster) {
  machine = (struct Machine){.plans = 0};
  for (int graph = 0; graph < 3; graph++)
    for (int i = 0; i < OFFERED; i++) machine.ms[graph][i] = 1 + graph + 0.25 * (OFFERED - i);
  for (int i = 0; i < OFFERED && deterministic_is_faster; i++)
    machine.ms[ATTENTION_DETERMINISTIC][i] = 1.5 - 0.25 * i;
}

// Documents of lengths of their own with heads of 40 columns have no other backward than the
// deterministic one.
TEST(the_fastest_plan_or_the_first_is_kept_and_remembered) {
  for (int i = 0; i < 128; i++) {
    const bool no_memory = i & 1, documents = i & 2, equal_bits = i & 4, both = i & 8,
               faster = i & 16, narrow = i & 32, biased = i & 64;
    const AttentionCall call = {.shape = {2, 64, 8, 2, narrow ? 40 : 64,
                                          documents && !biased ? 100 : 0,
                                          biased ? MASK_BIAS : MASK_NONE},
                                .backward = true,
                                .deterministic = equal_bits,
                                .both_graphs = both};
    reset(faster);
    machine.has_no_memory = no_memory;
    check_call(call,
               equal_bits || (documents && !biased && narrow) || (both && faster && !no_memory)
                   ? ATTENTION_DETERMINISTIC
                   : ATTENTION_BACKWARD);
  }
}

TEST(long_calls_run_twice_and_short_ones_nine_times) {
  reset(false);
  const AttentionCall call = {.shape = {2, 64, 8, 2, 64, 0, 0}};
  destroy(create(&call, NULL, OFFERED));
  assert_int_equal(machine.runs, 9 * OFFERED);
  machine.ms[ATTENTION_FORWARD][1] = 21;
  machine.runs = 0;
  destroy(create(&call, NULL, OFFERED));
  assert_int_equal(machine.runs, 9 * (OFFERED - 1) + 2);
}

TEST(a_call_that_nothing_can_run_says_why) {
  reset(false);
  const AttentionCall call = {.shape = {2, 64, 8, 2, 64, 0, 0}, .backward = true};
  for (int i = 0; i < OFFERED; i++) machine.fails[ATTENTION_BACKWARD][i] = true;
  assert_null(attention_cudnn_create(&api, NULL, NULL, &call, NULL, &err));
  assert_string_equal(err.text, "none of 3 ways to run attention's backward compiled: it cannot");
  assert_int_equal(machine.plans, 0);
}
