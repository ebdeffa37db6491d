#include "kernels/cuda/attention_cudnn.h"

#include <assert.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/rng.h"
#include "kernels/cuda/check.h"

// A graph is offered fewer configurations than FORM_CONFIGS; the backward may have two graphs.
enum { FORM_CONFIGS = 8, MAX_CONFIGS = 2 * FORM_CONFIGS, MAX_POINTERS = 16 };

typedef struct Direction {
  CudnnDescriptor plan; // NULL: not there
  size_t plan_workspace;
  bool deterministic; // the plan's form of the backward
  AttentionConfig configs[MAX_CONFIGS];
  int config_count;
} Direction;

struct AttentionCudnn {
  const CudnnApi *api;
  CudnnHandle handle;
  cudaStream_t stream;
  AttentionShape shape;
  Direction direction[2];       // by AttentionDirection
  float scale, mask_value, one; // read by cuDNN at every call
  size_t row_sum, dq_sum, plan; // offsets into the backward's workspace
  size_t workspace;             // of the backward
};

// ---- Calls

// Tensors of one call: ids and addresses in step.
typedef struct Binding {
  int64_t id[MAX_POINTERS];
  const void *pointer[MAX_POINTERS];
  int count;
} Binding;

static void bind(Binding *b, int64_t id, const void *pointer) {
  assert(b->count < MAX_POINTERS);
  b->id[b->count] = id;
  b->pointer[b->count++] = pointer;
}

static const void *columns(const AttentionCudnn *a, const void *qkv, int64_t head) {
  return (const char *)qkv + head * a->shape.d * 2;
}

static void bind_inputs(const AttentionCudnn *a, Binding *b, const void *qkv, const void *o,
                        const float *lse) {
  bind(b, ATTENTION_Q, columns(a, qkv, 0));
  bind(b, ATTENTION_K, columns(a, qkv, a->shape.H));
  bind(b, ATTENTION_V, columns(a, qkv, a->shape.H + a->shape.KV));
  bind(b, ATTENTION_O, o);
  bind(b, ATTENTION_LSE, lse);
  bind(b, ATTENTION_SCALE, &a->scale);
  bind(b, ATTENTION_MASK_VALUE, &a->mask_value);
}

static void bind_backward(const AttentionCudnn *a, Binding *b, const void *do_, void *dqkv,
                          char *workspace) {
  bind(b, ATTENTION_DO, do_);
  bind(b, ATTENTION_ONE, &a->one);
  bind(b, ATTENTION_ROW_SUM, workspace + a->row_sum);
  if (!a->direction[ATTENTION_BACKWARD].deterministic)
    bind(b, ATTENTION_DQ_SUM, workspace + a->dq_sum);
  bind(b, ATTENTION_DQ, columns(a, dqkv, 0));
  bind(b, ATTENTION_DK, columns(a, dqkv, a->shape.H));
  bind(b, ATTENTION_DV, columns(a, dqkv, a->shape.H + a->shape.KV));
}

// cuDNN reads the addresses of a call from a variant pack. Making one takes 1 us of the 6 to 12
// that a call takes on the host, too little to keep packs for.
static int run(const AttentionCudnn *a, const Direction *d, const Binding *b, void *workspace,
               Error *err) {
  const CudnnApi *api = a->api;
  CudnnDescriptor pack = NULL;
  if (cudnn_check(api, api->create_descriptor(BACKEND_VARIANT_PACK_DESCRIPTOR, &pack),
                  "creating a variant pack", err))
    return -1;
  int status = api->set_attribute(pack, ATTR_VARIANT_PACK_UNIQUE_IDS, TYPE_INT64, b->count, b->id);
  if (status == 0)
    status = api->set_attribute(pack, ATTR_VARIANT_PACK_DATA_POINTERS, TYPE_VOID_PTR, b->count,
                                b->pointer);
  if (status == 0)
    status = api->set_attribute(pack, ATTR_VARIANT_PACK_WORKSPACE, TYPE_VOID_PTR, 1, &workspace);
  if (status == 0) status = api->finalize(pack);
  if (status == 0) status = api->execute(a->handle, d->plan, pack);
  const int result = cudnn_check(api, status, "launching attention", err);
  api->destroy_descriptor(pack);
  return result;
}

int attention_cudnn_forward(const AttentionCudnn *a, const void *qkv, void *o, float *lse,
                            void *workspace, Error *err) {
  Binding b = {.count = 0};
  bind_inputs(a, &b, qkv, o, lse);
  return run(a, &a->direction[ATTENTION_FORWARD], &b, workspace, err);
}

int attention_cudnn_backward(const AttentionCudnn *a, const void *qkv, const void *o,
                             const float *lse, const void *do_, void *dqkv, void *workspace,
                             Error *err) {
  const Direction *d = &a->direction[ATTENTION_BACKWARD];
  assert(d->plan); // not of an object made with forward_only
  Binding b = {.count = 0};
  bind_inputs(a, &b, qkv, o, lse);
  bind_backward(a, &b, do_, dqkv, workspace);
  return run(a, d, &b, (char *)workspace + a->plan, err);
}

// ---- Workspace

static size_t aligned(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Lays out the backward's workspace: the graph's scratch tensors, then the plan's own.
static void lay_out(AttentionCudnn *a) {
  const AttentionShape *s = &a->shape;
  const Direction *backward = &a->direction[ATTENTION_BACKWARD];
  const size_t rows = (size_t)(s->B * s->T * s->H), elements = rows * (size_t)s->d;
  size_t at = 0;
  a->row_sum = at, at += aligned(rows * sizeof(float));
  a->dq_sum = at, at += backward->deterministic ? 0 : aligned(elements * sizeof(float));
  a->plan = at, at += aligned(backward->plan_workspace);
  a->workspace = at;
}

size_t attention_cudnn_workspace(const AttentionCudnn *a, AttentionDirection direction) {
  return direction == ATTENTION_FORWARD ? a->direction[ATTENTION_FORWARD].plan_workspace
                                        : a->workspace;
}

int attention_cudnn_configs(const AttentionCudnn *a, AttentionDirection direction,
                            const AttentionConfig **list) {
  *list = a->direction[direction].configs;
  return a->direction[direction].config_count;
}

// ---- Timing

// Tensors to time on, one allocation.
typedef struct Scratch {
  char *memory; // NULL: there was no room
  char *qkv, *o, *do_, *dqkv, *workspace;
  float *lse;
} Scratch;

// Uniform in [-1, 1): on zeros the chip draws less power and runs faster than on data. A block made
// on the host is copied over the rest, each copy doubling what is filled.
static int fill(char *to, size_t bytes, cudaStream_t stream, Error *err) {
  enum { BLOCK = 1 << 19 };
  size_t done = bytes < BLOCK ? bytes : BLOCK;
  uint16_t *block = xmalloc(BLOCK);
  for (size_t i = 0; i < BLOCK / 2; i++) {
    const float x = (float)(2 * rng_uniform(1, i) - 1);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    block[i] = (uint16_t)(bits >> 16);
  }
  const cudaError_t copied = cudaMemcpy(to, block, done, cudaMemcpyHostToDevice);
  free(block);
  CUDA_TRY(err, copied);
  while (done < bytes) {
    const size_t more = bytes - done < done ? bytes - done : done;
    CUDA_TRY(err, cudaMemcpyAsync(to + done, to, more, cudaMemcpyDeviceToDevice, stream));
    done += more;
  }
  return 0;
}

static int scratch_create(const AttentionCudnn *a, size_t workspace, Scratch *scratch, Error *err) {
  const AttentionShape *s = &a->shape;
  const size_t rows = (size_t)(s->B * s->T), qkv = aligned(rows * (size_t)attention_row(s) * 2);
  const size_t o = aligned(rows * (size_t)(s->H * s->d) * 2);
  const size_t lse = aligned(rows * (size_t)s->H * sizeof(float));
  *scratch = (Scratch){.memory = NULL};
  char *memory = NULL;
  if (cudaMalloc((void **)&memory, 2 * qkv + 2 * o + lse + workspace) != cudaSuccess) {
    cudaGetLastError(); // that there is no room is no failure: the first configuration is taken
    return 0;
  }
  scratch->memory = memory;
  scratch->qkv = memory, memory += qkv;
  scratch->do_ = memory, memory += o;
  scratch->o = memory, memory += o;
  scratch->lse = (float *)(void *)memory, memory += lse;
  scratch->dqkv = memory, memory += qkv;
  scratch->workspace = memory;
  return fill(scratch->qkv, qkv + o, a->stream, err); // qkv and do, which lie side by side
}

static int call(const AttentionCudnn *a, AttentionDirection direction, const Scratch *s,
                Error *err) {
  if (direction == ATTENTION_FORWARD)
    return attention_cudnn_forward(a, s->qkv, s->o, s->lse, s->workspace, err);
  return attention_cudnn_backward(a, s->qkv, s->o, s->lse, s->do_, s->dqkv, s->workspace, err);
}

static int compare_doubles(const void *x, const void *y) {
  const double a = *(const double *)x, b = *(const double *)y;
  return (a > b) - (a < b);
}

enum { WARM_UP = 2, RUNS = 7 };

static int record_runs(const AttentionCudnn *a, AttentionDirection direction,
                       const Scratch *scratch, cudaEvent_t events[RUNS + 1], double times[RUNS],
                       Error *err) {
  for (int i = 0; i <= RUNS; i++) CUDA_TRY(err, cudaEventCreate(&events[i]));
  for (int i = 0; i < WARM_UP; i++)
    if (call(a, direction, scratch, err)) return -1;
  CUDA_TRY(err, cudaEventRecord(events[0], a->stream));
  for (int i = 0; i < RUNS; i++) {
    if (call(a, direction, scratch, err)) return -1;
    CUDA_TRY(err, cudaEventRecord(events[i + 1], a->stream));
  }
  CUDA_TRY(err, cudaStreamSynchronize(a->stream));
  for (int i = 0; i < RUNS; i++) {
    float ms = 0;
    CUDA_TRY(err, cudaEventElapsedTime(&ms, events[i], events[i + 1]));
    times[i] = ms;
  }
  return 0;
}

// Median time of the direction's present plan.
static int time_plan(const AttentionCudnn *a, AttentionDirection direction, const Scratch *scratch,
                     double *milliseconds, Error *err) {
  cudaEvent_t events[RUNS + 1] = {NULL};
  double times[RUNS];
  const int status = record_runs(a, direction, scratch, events, times, err);
  for (int i = 0; i <= RUNS; i++)
    if (events[i]) cudaEventDestroy(events[i]);
  if (status) return -1;
  qsort(times, RUNS, sizeof *times, compare_doubles);
  *milliseconds = times[RUNS / 2];
  return 0;
}

// ---- Plans

// In step with the direction's configs.
typedef struct Plans {
  CudnnDescriptor plan[MAX_CONFIGS]; // NULL: not asked for, or failed to compile
  Error error;                       // why the latest one failed
} Plans;

static void plans_destroy(const CudnnApi *api, Plans *p) {
  for (int i = 0; i < MAX_CONFIGS; i++)
    if (p->plan[i]) api->destroy_descriptor(p->plan[i]);
}

static const char *direction_name(AttentionDirection direction) {
  return direction == ATTENTION_FORWARD ? "forward" : "backward";
}

// Adds what is offered to the direction's configs, and compiles those that `wanted` needs, an index
// or ATTENTION_FASTEST or _FIRST.
static void compile_offered(const CudnnApi *api, const CudnnConfig *offered, int count, int wanted,
                            bool deterministic, Direction *d, Plans *p) {
  bool done = false;
  for (int i = 0; i < count; i++) {
    AttentionConfig *config = &d->configs[d->config_count];
    CudnnDescriptor *plan = &p->plan[d->config_count++];
    *config = (AttentionConfig){
        .engine = offered[i].engine, .kernel = offered[i].kernel, .deterministic = deterministic};
    if (done || (wanted >= 0 && i != wanted)) continue;
    const double start = now_ms();
    if (plan_create(api, offered[i].descriptor, plan, &config->workspace, &p->error)) *plan = NULL;
    config->plan_seconds = (now_ms() - start) * 1e-3;
    done = wanted == ATTENTION_FIRST && *plan;
  }
}

// That what cuDNN offers for the graph is enough for `wanted`.
static int check_offered(const AttentionCudnn *a, AttentionDirection direction, int count,
                         int wanted, Error *err) {
  const AttentionShape *s = &a->shape;
  if (count == 0)
    return error_set(
        err,
        "cuDNN %s has nothing to run attention's %s with on this GPU for %lld x %lld "
        "tokens, %lld query and %lld key/value heads and head_dim %lld: choose head_dim "
        "64 or 128, or backend.device cpu",
        cudnn_version_text(a->api->version).text, direction_name(direction), (long long)s->B,
        (long long)s->T, (long long)s->H, (long long)s->KV, (long long)s->d);
  if (wanted < count) return 0;
  return error_set(err, "cuDNN %s offers %d ways to run attention's %s, number %d was asked for",
                   cudnn_version_text(a->api->version).text, count, direction_name(direction),
                   wanted);
}

static int make_graph(const AttentionCudnn *a, AttentionDirection direction, bool deterministic,
                      CudnnGraph *g, Error *err) {
  if (direction == ATTENTION_FORWARD)
    return attention_graph_forward(g, a->api, a->handle, &a->shape, err);
  return attention_graph_backward(g, a->api, a->handle, &a->shape, deterministic, err);
}

// Compiles one form of the direction, as `wanted` asks.
static int compile_form(AttentionCudnn *a, AttentionDirection direction, bool deterministic,
                        int wanted, Plans *p, Error *err) {
  CudnnGraph g;
  CudnnConfig offered[FORM_CONFIGS];
  int count = 0;
  if (make_graph(a, direction, deterministic, &g, err)) return -1;
  int status = graph_configs(&g, NULL, offered, FORM_CONFIGS, &count, err);
  if (status == 0) status = check_offered(a, direction, count, wanted, err);
  if (status == 0)
    compile_offered(a->api, offered, count, wanted, deterministic, &a->direction[direction], p);
  configs_destroy(a->api, offered, count);
  graph_destroy(&g);
  return status;
}

// Makes configuration i the direction's plan, for a trial or for good.
static void plan_use(AttentionCudnn *a, AttentionDirection direction, const Plans *p, int i) {
  Direction *d = &a->direction[direction];
  d->plan = p->plan[i];
  d->plan_workspace = d->configs[i].workspace;
  d->deterministic = d->configs[i].deterministic;
  lay_out(a);
}

// Times every compiled plan; leaves the times in the direction's configs, 0 where there is no room.
static int plans_time(AttentionCudnn *a, AttentionDirection direction, const Plans *p, Error *err) {
  Direction *d = &a->direction[direction];
  Scratch scratch;
  size_t workspace = attention_cudnn_workspace(a, ATTENTION_FORWARD);
  for (int i = 0; i < d->config_count; i++) {
    if (!p->plan[i]) continue;
    plan_use(a, direction, p, i);
    const size_t bytes = attention_cudnn_workspace(a, direction);
    if (bytes > workspace) workspace = bytes;
  }
  int status = scratch_create(a, workspace, &scratch, err);
  if (scratch.memory && status == 0 && direction == ATTENTION_BACKWARD) // o and lse
    status = call(a, ATTENTION_FORWARD, &scratch, err);
  for (int i = 0; scratch.memory && i < d->config_count && status == 0; i++) {
    if (!p->plan[i]) continue;
    plan_use(a, direction, p, i);
    status = time_plan(a, direction, &scratch, &d->configs[i].milliseconds, err);
  }
  if (scratch.memory) {
    const cudaError_t freed = cudaFree(scratch.memory); // waits for what runs on it
    if (status == 0) CUDA_TRY(err, freed);
  }
  return status;
}

// The fastest of the compiled ones, the first where none was timed; -1: none compiled.
static int fastest(const Direction *d, const Plans *p, bool deterministic_only) {
  int chosen = -1;
  for (int i = 0; i < d->config_count; i++) {
    if (!p->plan[i] || (deterministic_only && !d->configs[i].deterministic)) continue;
    if (chosen < 0 || d->configs[i].milliseconds < d->configs[chosen].milliseconds) chosen = i;
  }
  return chosen;
}

// Times what was compiled and keeps the plan to run with.
static int keep_fastest(AttentionCudnn *a, AttentionDirection direction, bool deterministic_only,
                        Plans *p, Error *err) {
  Direction *d = &a->direction[direction];
  int compiled = 0, status = 0;
  for (int i = 0; i < d->config_count; i++) compiled += p->plan[i] != NULL;
  if (compiled > 1) status = plans_time(a, direction, p, err);
  d->plan = NULL; // one of p's, for a trial
  if (status) return -1;
  const int chosen = fastest(d, p, deterministic_only);
  if (chosen < 0)
    return error_set(err, "none of %d ways to run attention's %s compiled: %s", d->config_count,
                     direction_name(direction), p->error.text);
  plan_use(a, direction, p, chosen);
  d->configs[chosen].chosen = true;
  p->plan[chosen] = NULL; // the direction's now
  return 0;
}

static int plan_forward(AttentionCudnn *a, const AttentionOptions *options, Error *err) {
  Plans p = {{NULL}, {""}};
  int status = compile_form(a, ATTENTION_FORWARD, false, options->forward_config, &p, err);
  if (status == 0) status = keep_fastest(a, ATTENTION_FORWARD, false, &p, err);
  plans_destroy(a->api, &p);
  return status;
}

static int plan_backward(AttentionCudnn *a, const AttentionOptions *options, Error *err) {
  Plans p = {{NULL}, {""}};
  int status = compile_form(a, ATTENTION_BACKWARD, options->deterministic, options->backward_config,
                            &p, err);
  Error not_offered; // the other form is a choice, no need
  if (status == 0 && options->both_forms)
    (void)compile_form(a, ATTENTION_BACKWARD, !options->deterministic, ATTENTION_FASTEST, &p,
                       &not_offered);
  if (status == 0) status = keep_fastest(a, ATTENTION_BACKWARD, options->deterministic, &p, err);
  plans_destroy(a->api, &p);
  return status;
}

AttentionCudnn *attention_cudnn_create(const CudnnApi *api, CudnnHandle handle,
                                       struct CUstream_st *stream, const AttentionShape *shape,
                                       const AttentionOptions *options, Error *err) {
  AttentionCudnn *a = xcalloc(1, sizeof *a);
  a->api = api;
  a->handle = handle;
  a->stream = stream;
  a->shape = *shape;
  a->scale = (float)(1 / sqrt((double)shape->d));
  a->mask_value = -INFINITY;
  a->one = 1;
  if (plan_forward(a, options, err) == 0 &&
      (options->forward_only || plan_backward(a, options, err) == 0))
    return a;
  attention_cudnn_destroy(a);
  return NULL;
}

void attention_cudnn_destroy(AttentionCudnn *a) {
  if (!a) return;
  for (int i = 0; i < 2; i++)
    if (a->direction[i].plan) a->api->destroy_descriptor(a->direction[i].plan);
  free(a);
}
