#include "kernels/cuda/attention.h"

#include <assert.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/cuda/gpu.h"

enum { MOST_CONFIGS = 8 }; // cuDNN offers fewer for a graph

struct AttentionCudnn {
  const CudnnApi *api;
  CudnnHandle handle;
  cudaStream_t stream;
  AttentionShape shape;
  AttentionPlan plans[2];       // forward, backward
  float scale, mask_value, one; // read by cuDNN at every call
  // The backward's workspace: row sums, then offsets of the sums of dq, of documents' dk and dv of
  // each query head, and of the plan's own; and the size of the workspace for both directions
  size_t dq_sum, dk_heads, dv_heads, own, workspace;
};

const AttentionPlan *attention_cudnn_plan(const AttentionCudnn *a, bool backward) {
  return &a->plans[backward];
}

// ---- Calls

int attention_cudnn_run(const AttentionCudnn *a, bool backward, const AttentionTensors *t,
                        Error *err) {
  const AttentionShape *s = &a->shape;
  const AttentionPlan *plan = &a->plans[backward];
  const size_t head = (size_t)s->d * 2, k = (size_t)s->H * head, v = k + (size_t)s->KV * head;
  const char *qkv = t->qkv, *dqkv = t->dqkv, *workspace = t->workspace;
  assert(plan->plan); // not the backward of a shape without one
  const void *at[ATTENTION_IDS] = {
      [ATTENTION_Q] = qkv,
      [ATTENTION_K] = qkv + k,
      [ATTENTION_V] = qkv + v,
      [ATTENTION_O] = t->o,
      [ATTENTION_LSE] = t->lse,
      [ATTENTION_SCALE] = &a->scale,
      [ATTENTION_MASK_VALUE] = &a->mask_value,
      [ATTENTION_BIAS] = s->mask == MASK_BIAS ? t->bias : NULL,
  };
  if (s->rows > 0) {
    at[ATTENTION_LENGTHS] = t->documents.lengths;
    at[ATTENTION_QKV_OFFSETS] = t->documents.qkv_offsets;
    at[ATTENTION_O_OFFSETS] = t->documents.o_offsets;
    at[ATTENTION_LSE_OFFSETS] = t->documents.lse_offsets;
  }
  if (backward) {
    const bool keeps_heads = s->rows > 0 && s->H > s->KV;
    at[ATTENTION_DO] = t->do_;
    at[ATTENTION_ONE] = &a->one;
    at[ATTENTION_ROW_SUM] = workspace;
    at[ATTENTION_DQ] = dqkv;
    at[ATTENTION_DK] = dqkv + k;
    at[ATTENTION_DV] = dqkv + v;
    at[ATTENTION_DQ_SUM] = plan->graph == ATTENTION_BACKWARD ? workspace + a->dq_sum : NULL;
    at[ATTENTION_DK_HEADS] = keeps_heads ? workspace + a->dk_heads : NULL;
    at[ATTENTION_DV_HEADS] = keeps_heads ? workspace + a->dv_heads : NULL;
    workspace += a->own;
  }
  return plan_execute(a->api, a->handle, plan->plan, at, ATTENTION_IDS, workspace, err);
}

// ---- Workspace

size_t attention_cudnn_workspace(const AttentionCudnn *a) {
  return a->workspace;
}

// Makes the plan the one that calls of its direction run, for a trial or for good.
static void use(AttentionCudnn *a, const AttentionPlan *plan) {
  a->plans[plan->graph != ATTENTION_FORWARD] = *plan;
  a->workspace = a->plans[false].workspace;
  const AttentionPlan *backward = &a->plans[true];
  if (!backward->plan) return;
  const AttentionShape *s = &a->shape;
  const size_t rows = (size_t)attention_rows(s), H = (size_t)s->H, d = (size_t)s->d,
               R = (size_t)attention_row(s), group = (size_t)(s->H / s->KV);
  Arena arena = {.block = NULL};
  arena_take(&arena, rows * H * sizeof(float));
  a->dq_sum = arena.used;
  if (backward->graph == ATTENTION_BACKWARD)
    arena_take(&arena, rows * (s->rows > 0 ? R : H * d) * sizeof(float));
  // Rows of R group elements have room for both.
  a->dk_heads = arena.used;
  a->dv_heads = arena.used + H * d * 2;
  if (s->rows > 0 && group > 1) arena_take(&arena, rows * R * group * 2);
  a->own = arena.used;
  arena_take(&arena, backward->workspace);
  if (arena.used > a->workspace) a->workspace = arena.used;
}

// ---- Timing

// Tensors to time on, one allocation.
typedef struct Scratch {
  const AttentionCudnn *attention;
  bool backward;
  AttentionTensors tensors;
  void *table; // of documents
} Scratch;

// Returns the total bytes.
static size_t lay_out(Scratch *s, size_t workspace, char *memory) {
  const AttentionShape *shape = &s->attention->shape;
  const size_t rows = (size_t)attention_rows(shape), qkv = rows * (size_t)attention_row(shape) * 2,
               o = rows * (size_t)(shape->H * shape->d) * 2;
  AttentionTensors *t = &s->tensors;
  Arena arena = {.block = memory};
  t->qkv = arena_take(&arena, qkv);
  t->do_ = arena_take(&arena, o);
  t->bias = arena_take(&arena, shape->mask == MASK_BIAS ? rows * (size_t)shape->T * 2 : 0);
  t->o = arena_take(&arena, o);
  t->lse = arena_take(&arena, rows * (size_t)shape->H * sizeof(float));
  t->dqkv = arena_take(&arena, qkv);
  t->workspace = arena_take(&arena, workspace);
  s->table = arena_take(&arena, attention_table_bytes(shape->B, 1));
  t->documents = attention_table_at(s->table, shape->B, 0);
  return arena.used;
}

// Documents of about equal length: three quarters of the most that a call takes, where T allows,
// with all rows, or as many rows as one call takes.
static cudaError_t write_documents(const Scratch *s) {
  const AttentionShape *shape = &s->attention->shape;
  if (shape->rows == 0) return cudaSuccess;
  const int64_t needed = (shape->rows + shape->T - 1) / shape->T,
                usual = needed > shape->B * 3 / 4 + 1 ? needed : shape->B * 3 / 4 + 1,
                used = usual < shape->B ? usual : shape->B,
                rows = used < needed ? used * shape->T : shape->rows;
  const size_t bytes = attention_table_bytes(shape->B, 1);
  int32_t *lengths = xcalloc((size_t)used, sizeof *lengths);
  void *table = xmalloc(bytes);
  for (int64_t i = 0, left = rows; i < used; i++) left -= lengths[i] = (int32_t)(left / (used - i));
  attention_table_fill(shape, lengths, used, 1, table);
  const cudaError_t status = cudaMemcpy(s->table, table, bytes, cudaMemcpyHostToDevice);
  free(table);
  free(lengths);
  return status;
}

static int run_once(const void *context, Error *err) {
  const Scratch *s = context;
  return attention_cudnn_run(s->attention, s->backward, &s->tensors, err);
}

// A long call runs only twice: with nine runs of each plan a window of 131072 tokens had no step
// within 40 s.
static int time_plan(const Scratch *s, cudaStream_t stream, double *ms, Error *err) {
  enum { WARM_UP = 1, RUNS = 7, LONG_MS = 20 };
  if (time_calls(run_once, s, 0, 1, stream, ms, err)) return -1; // the first call loads the kernel
  const bool is_long = *ms > LONG_MS;
  return time_calls(run_once, s, is_long ? 0 : WARM_UP, is_long ? 1 : RUNS, stream, ms, err);
}

// Times the plans of one direction, all 0 where there is no memory for it.
static int time_plans(AttentionCudnn *a, AttentionPlan *list, int count, Error *err) {
  size_t workspace = 0;
  for (int i = 0; i < count; i++) {
    use(a, &list[i]);
    if (a->workspace > workspace) workspace = a->workspace;
  }
  Scratch s = {.attention = a};
  char *memory = gpu_alloc(lay_out(&s, workspace, NULL));
  if (!memory) return 0; // not an error: the first configuration is used
  lay_out(&s, workspace, memory);
  // qkv, and behind it do and the bias
  fill_random(memory, (size_t)((char *)s.tensors.o - memory), 1, a->stream);
  const cudaError_t written = write_documents(&s);
  const bool backward = list->graph != ATTENTION_FORWARD;
  int status = 0;
  if (written == cudaSuccess && backward) status = run_once(&s, err); // o and lse
  s.backward = backward;
  for (int i = 0; i < count && status == 0; i++) {
    use(a, &list[i]);
    status = time_plan(&s, a->stream, &list[i].milliseconds, err);
  }
  if (status == 0) CUDA_TRY(err, written);
  const cudaError_t freed = cudaFree(memory); // waits for what runs on it
  if (status == 0) CUDA_TRY(err, freed);
  return status;
}

// ---- Plans

// Plans that compiled, of both graphs of a direction at most.
typedef struct Candidates {
  AttentionPlan list[2 * MOST_CONFIGS];
  int count, offered;
  Error why_not; // the latest one did not compile
} Candidates;

static const char *direction_of(AttentionGraph graph) {
  return graph == ATTENTION_FORWARD ? "forward" : "backward";
}

static int nothing_offered(const AttentionCudnn *a, AttentionGraph graph, Error *err) {
  const AttentionShape *s = &a->shape;
  return error_set(
      err,
      "cuDNN %s has no attention %s for this GPU, %lld %s of at most %lld tokens, %lld "
      "query and %lld key/value heads and head_dim %lld: choose head_dim 64 or 128%s, "
      "or backend.device=cpu",
      cudnn_version_text(a->api->version).text, direction_of(graph), (long long)s->B,
      s->rows > 0 ? "documents" : "windows", (long long)s->T, (long long)s->H, (long long)s->KV,
      (long long)s->d, s->rows > 0 ? ", backend.document_attention=bias" : "");
}

// Adds the first `most` plans of the graph that compile, from configuration `from` on.
static int compile(const AttentionCudnn *a, AttentionGraph graph, int from, int most, Candidates *c,
                   Error *err) {
  CudnnGraph g;
  CudnnDescriptor configs[MOST_CONFIGS];
  int count = 0;
  if (attention_graph(&g, a->api, a->handle, &a->shape, graph, err)) return -1;
  int status = graph_configs(&g, NULL, configs, MOST_CONFIGS, &count, err);
  if (status == 0 && count == 0) status = nothing_offered(a, graph, err);
  c->offered += count;
  for (int i = from; i < count && most > 0; i++) {
    AttentionPlan p = {.graph = graph, .number = i};
    if (plan_create(a->api, configs[i], &p.plan, &p.workspace, &c->why_not)) continue;
    c->list[c->count++] = p;
    most--;
  }
  descriptors_destroy(a->api, configs, count);
  graph_destroy(&g);
  return status;
}

// Keeps the chosen plan, and destroys the others; all of them where chosen is -1.
static void keep(AttentionCudnn *a, bool backward, const Candidates *c, int chosen) {
  a->plans[backward] = (AttentionPlan){0};
  for (int i = 0; i < c->count; i++)
    if (i != chosen) a->api->destroy_descriptor(c->list[i].plan);
  if (chosen >= 0) use(a, &c->list[chosen]);
}

// Compiles only the plan that is remembered. False where there is none, or where it is no longer
// offered or no longer compiles.
static bool recall(AttentionCudnn *a, const AttentionCall *call, const Choices *choices) {
  Candidates c = {.count = 0};
  AttentionPlan known;
  Error ignored;
  if (!choices || !attention_plan_find(choices, call, &known)) return false;
  (void)compile(a, known.graph, known.number, 1, &c, &ignored);
  const bool same = c.count == 1 && c.list[0].number == known.number;
  c.list[0].milliseconds = known.milliseconds;
  c.list[0].other_graph = known.other_graph;
  keep(a, call->backward, &c, same ? 0 : -1);
  return same;
}

static int plan(AttentionCudnn *a, const AttentionCall *call, Choices *choices, Error *err) {
  if (recall(a, call, choices)) return 0;
  const AttentionGraph graph = attention_graph_of(call);
  Candidates c = {.count = 0};
  Error not_offered;
  if (compile(a, graph, 0, call->deterministic ? 1 : MOST_CONFIGS, &c, err)) return -1;
  if (call->backward && call->both_graphs)
    (void)compile(a, graph == ATTENTION_BACKWARD ? ATTENTION_DETERMINISTIC : ATTENTION_BACKWARD, 0,
                  MOST_CONFIGS, &c, &not_offered);
  const int timed = c.count > 1 ? time_plans(a, c.list, c.count, err) : 0;
  const int chosen = timed == 0 ? attention_choose(call, c.list, c.count) : -1;
  keep(a, call->backward, &c, chosen);
  if (timed != 0) return -1;
  if (chosen < 0)
    return error_set(err, "none of %d ways to run attention's %s compiled: %s", c.offered,
                     direction_of(graph), c.why_not.text);
  if (choices) attention_plan_keep(choices, call, &c.list[chosen]);
  return 0;
}

AttentionCudnn *attention_cudnn_create(const CudnnApi *api, CudnnHandle handle,
                                       struct CUstream_st *stream, const AttentionCall *call,
                                       Choices *choices, Error *err) {
  AttentionCudnn *a = xcalloc(1, sizeof *a);
  a->api = api;
  a->handle = handle;
  a->stream = stream;
  a->shape = call->shape;
  a->scale = (float)(1 / sqrt((double)call->shape.d));
  a->mask_value = -INFINITY;
  a->one = 1;
  const AttentionCall forward = {.shape = call->shape, .deterministic = call->deterministic};
  if (plan(a, &forward, choices, err) == 0 && (!call->backward || plan(a, call, choices, err) == 0))
    return a;
  attention_cudnn_destroy(a);
  return NULL;
}

void attention_cudnn_destroy(AttentionCudnn *a) {
  if (!a) return;
  for (int i = 0; i < 2; i++)
    if (a->plans[i].plan) a->api->destroy_descriptor(a->plans[i].plan);
  free(a);
}
