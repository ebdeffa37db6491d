#include "kernels/cuda/attention.h"

#include <assert.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/os.h"
#include "kernels/cuda/gpu.h"
#include "kernels/gpu_backends.h"

// A graph is offered fewer configurations than FORM_CONFIGS; the backward may have two graphs.
enum { FORM_CONFIGS = 8, MAX_CONFIGS = 2 * FORM_CONFIGS };

typedef struct Direction {
  AttentionConfig configs[MAX_CONFIGS];
  CudnnDescriptor plans[MAX_CONFIGS]; // NULL where not asked for, failed to compile, or not kept
  int count;
  int used; // the plan that calls run
  AttentionChoice choice;
} Direction;

struct AttentionCudnn {
  const CudnnApi *api;
  CudnnHandle handle;
  cudaStream_t stream;
  AttentionShape shape;
  Direction direction[2];       // by AttentionDirection
  float scale, mask_value, one; // read by cuDNN at every call
  // The backward's workspace: row sums, then offsets of the sums of dq, of documents' dk and dv of
  // each query head, of the plan's own, and the size
  size_t dq_sum, dk_heads, dv_heads, plan, workspace;
};

static const AttentionConfig *used_config(const AttentionCudnn *a, AttentionDirection direction) {
  const Direction *d = &a->direction[direction];
  return &d->configs[d->used];
}

// ---- Calls

typedef struct Pack {
  int count;
  int64_t ids[20];
  const void *pointers[20];
} Pack;

static void pack(Pack *p, int64_t id, const void *pointer) {
  p->ids[p->count] = id;
  p->pointers[p->count++] = pointer;
}

static void pack_documents(Pack *p, const AttentionDocuments *d) {
  pack(p, ATTENTION_LENGTHS, d->lengths);
  pack(p, ATTENTION_QKV_OFFSETS, d->qkv_offsets);
  pack(p, ATTENTION_O_OFFSETS, d->o_offsets);
  pack(p, ATTENTION_LSE_OFFSETS, d->lse_offsets);
}

static void pack_backward(Pack *p, const AttentionCudnn *a, const AttentionTensors *t, size_t k,
                          size_t v) {
  const AttentionShape *s = &a->shape;
  const char *dqkv = t->dqkv, *workspace = t->workspace;
  pack(p, ATTENTION_DO, t->do_);
  pack(p, ATTENTION_ONE, &a->one);
  pack(p, ATTENTION_ROW_SUM, workspace);
  pack(p, ATTENTION_DQ, dqkv);
  pack(p, ATTENTION_DK, dqkv + k);
  pack(p, ATTENTION_DV, dqkv + v);
  if (!used_config(a, ATTENTION_BACKWARD)->deterministic)
    pack(p, ATTENTION_DQ_SUM, workspace + a->dq_sum);
  if (s->rows == 0 || s->H == s->KV) return;
  pack(p, ATTENTION_DK_HEADS, workspace + a->dk_heads);
  pack(p, ATTENTION_DV_HEADS, workspace + a->dv_heads);
}

int attention_cudnn_run(const AttentionCudnn *a, AttentionDirection direction,
                        const AttentionTensors *t, Error *err) {
  const Direction *d = &a->direction[direction];
  const size_t head = (size_t)a->shape.d * 2, k = (size_t)a->shape.H * head,
               v = k + (size_t)a->shape.KV * head;
  const char *qkv = t->qkv, *workspace = t->workspace;
  Pack p = {.count = 0};
  assert(d->plans[d->used]); // not the backward of an object made with forward_only
  pack(&p, ATTENTION_Q, qkv);
  pack(&p, ATTENTION_K, qkv + k);
  pack(&p, ATTENTION_V, qkv + v);
  pack(&p, ATTENTION_O, t->o);
  pack(&p, ATTENTION_LSE, t->lse);
  pack(&p, ATTENTION_SCALE, &a->scale);
  pack(&p, ATTENTION_MASK_VALUE, &a->mask_value);
  if (a->shape.rows > 0) pack_documents(&p, &t->documents);
  if (direction == ATTENTION_BACKWARD) {
    pack_backward(&p, a, t, k, v);
    workspace += a->plan;
  }
  return plan_execute(a->api, a->handle, d->plans[d->used], p.count, p.ids, p.pointers, workspace,
                      err);
}

// ---- Workspace

static void lay_out(AttentionCudnn *a) {
  const AttentionConfig *backward = used_config(a, ATTENTION_BACKWARD);
  const AttentionShape *s = &a->shape;
  const size_t rows = (size_t)attention_rows(s), H = (size_t)s->H, d = (size_t)s->d,
               R = (size_t)attention_row(s), group = (size_t)(s->H / s->KV);
  Arena arena = {.block = NULL};
  arena_take(&arena, rows * H * sizeof(float));
  a->dq_sum = arena.used;
  if (!backward->deterministic)
    arena_take(&arena, rows * (s->rows > 0 ? R : H * d) * sizeof(float));
  // Rows of R group elements have room for both.
  a->dk_heads = arena.used;
  a->dv_heads = arena.used + H * d * 2;
  if (s->rows > 0 && group > 1) arena_take(&arena, rows * R * group * 2);
  a->plan = arena.used;
  arena_take(&arena, backward->workspace);
  a->workspace = arena.used;
}

size_t attention_cudnn_workspace(const AttentionCudnn *a, AttentionDirection direction) {
  return direction == ATTENTION_FORWARD ? used_config(a, direction)->workspace : a->workspace;
}

int attention_cudnn_configs(const AttentionCudnn *a, AttentionDirection direction,
                            const AttentionConfig **list) {
  *list = a->direction[direction].configs;
  return a->direction[direction].count;
}

const AttentionChoice *attention_cudnn_choice(const AttentionCudnn *a,
                                              AttentionDirection direction) {
  return &a->direction[direction].choice;
}

// ---- Timing

// Tensors to time on, one allocation.
typedef struct Scratch {
  const AttentionCudnn *attention;
  AttentionDirection direction;
  AttentionTensors tensors;
  void *table; // of documents
} Scratch;

// Returns the total bytes.
static size_t place(Scratch *s, size_t workspace, char *memory) {
  const AttentionShape *shape = &s->attention->shape;
  const size_t rows = (size_t)attention_rows(shape), qkv = rows * (size_t)attention_row(shape) * 2,
               o = rows * (size_t)(shape->H * shape->d) * 2;
  AttentionTensors *t = &s->tensors;
  Arena arena = {.block = memory};
  t->qkv = arena_take(&arena, qkv);
  t->do_ = arena_take(&arena, o);
  t->o = arena_take(&arena, o);
  t->lse = arena_take(&arena, rows * (size_t)shape->H * sizeof(float));
  t->dqkv = arena_take(&arena, qkv);
  t->workspace = arena_take(&arena, workspace);
  s->table = arena_take(&arena, attention_table_bytes(shape->B, 1));
  t->documents = attention_table_at(s->table, shape->B, 0);
  return arena.used;
}

// Three quarters of the places are used, where T allows, by documents of about one length: of all
// rows, or of as many as one call takes.
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

static int call(const void *context, Error *err) {
  const Scratch *s = context;
  return attention_cudnn_run(s->attention, s->direction, &s->tensors, err);
}

// A long call runs only twice: with nine runs of each plan a window of 131072 tokens had no step
// within 40 s.
static int time_plan(const Scratch *s, cudaStream_t stream, double *ms, Error *err) {
  enum { WARM_UP = 1, RUNS = 7, LONG_MS = 20 };
  if (time_calls(call, s, 0, 1, stream, ms, err)) return -1; // the first call loads the kernel
  const bool is_long = *ms > LONG_MS;
  return time_calls(call, s, is_long ? 0 : WARM_UP, is_long ? 1 : RUNS, stream, ms, err);
}

// Makes configuration i the one that calls run, for a trial or for good.
static void use(AttentionCudnn *a, AttentionDirection direction, int i) {
  a->direction[direction].used = i;
  lay_out(a);
}

// Times every compiled plan; writes the times into the direction's configs, 0 without memory.
static int time_plans(AttentionCudnn *a, AttentionDirection direction, Error *err) {
  Direction *d = &a->direction[direction];
  size_t workspace = attention_cudnn_workspace(a, ATTENTION_FORWARD);
  for (int i = 0; i < d->count; i++) {
    use(a, direction, i);
    const size_t bytes = d->plans[i] ? attention_cudnn_workspace(a, direction) : 0;
    if (bytes > workspace) workspace = bytes;
  }
  Scratch s = {.attention = a, .direction = ATTENTION_FORWARD};
  char *memory = gpu_alloc(place(&s, workspace, NULL));
  if (!memory) return 0; // no memory is not an error: the first configuration is used
  place(&s, workspace, memory);
  // qkv, and do, which lies behind it
  fill_random(memory, (size_t)((char *)s.tensors.o - memory), 1, a->stream);
  const cudaError_t written = write_documents(&s);
  int status = 0;
  if (written == cudaSuccess && direction == ATTENTION_BACKWARD)
    status = call(&s, err); // o and lse
  s.direction = direction;
  for (int i = 0; i < d->count && status == 0; i++) {
    if (!d->plans[i]) continue;
    use(a, direction, i);
    status = time_plan(&s, a->stream, &d->configs[i].milliseconds, err);
  }
  if (status == 0) CUDA_TRY(err, written);
  const cudaError_t freed = cudaFree(memory); // waits for what runs on it
  if (status == 0) CUDA_TRY(err, freed);
  return status;
}

// ---- Plans

static const char *direction_name(AttentionDirection direction) {
  return direction == ATTENTION_FORWARD ? "forward" : "backward";
}

// Adds what is offered to the direction's configs, and compiles those that `wanted` needs, an index
// or ATTENTION_FASTEST or _FIRST. why_not: why the latest failed.
static void compile_offered(const CudnnApi *api, const CudnnConfig *offered, int count, int wanted,
                            bool deterministic, Direction *d, Error *why_not) {
  bool done = false;
  for (int i = 0; i < count; i++) {
    AttentionConfig *config = &d->configs[d->count];
    CudnnDescriptor *plan = &d->plans[d->count++];
    *config = (AttentionConfig){
        .engine = offered[i].engine, .kernel = offered[i].kernel, .deterministic = deterministic};
    if (done || (wanted >= 0 && i != wanted)) continue;
    const double start = now_ms();
    if (plan_create(api, offered[i].descriptor, plan, &config->workspace, why_not)) *plan = NULL;
    config->plan_seconds = (now_ms() - start) * 1e-3;
    done = wanted == ATTENTION_FIRST && *plan;
  }
}

// Checks that cuDNN offers enough configurations of the graph for `wanted`.
static int check_offered(const AttentionCudnn *a, AttentionDirection direction, int count,
                         int wanted, Error *err) {
  const AttentionShape *s = &a->shape;
  if (count == 0 && s->rows > 0)
    return error_set(err,
                     "cuDNN %s has nothing on this GPU to run attention's %s with that stops at a "
                     "document's end: take data.documents=join, or backend.device=cpu",
                     cudnn_version_text(a->api->version).text, direction_name(direction));
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

// Compiles one form of the direction, as `wanted` asks.
static int compile_form(AttentionCudnn *a, AttentionDirection direction, bool deterministic,
                        int wanted, Error *why_not, Error *err) {
  CudnnGraph g;
  CudnnConfig offered[FORM_CONFIGS];
  int count = 0;
  int status = direction == ATTENTION_FORWARD
                   ? attention_graph_forward(&g, a->api, a->handle, &a->shape, err)
                   : attention_graph_backward(&g, a->api, a->handle, &a->shape, deterministic, err);
  if (status) return -1;
  status = graph_configs(&g, NULL, offered, FORM_CONFIGS, &count, err);
  if (status == 0) status = check_offered(a, direction, count, wanted, err);
  if (status == 0)
    compile_offered(a->api, offered, count, wanted, deterministic, &a->direction[direction],
                    why_not);
  configs_destroy(a->api, offered, count);
  graph_destroy(&g);
  return status;
}

// Keeps the fastest of the compiled plans, the first where none was timed, and no other.
static int keep_fastest(AttentionCudnn *a, AttentionDirection direction, bool deterministic_only,
                        const Error *why_not, Error *err) {
  Direction *d = &a->direction[direction];
  int compiled = 0, chosen = -1;
  for (int i = 0; i < d->count; i++) compiled += d->plans[i] != NULL;
  if (compiled > 1 && time_plans(a, direction, err)) return -1;
  for (int i = 0; i < d->count; i++) {
    if (!d->plans[i] || (deterministic_only && !d->configs[i].deterministic)) continue;
    if (chosen < 0 || d->configs[i].milliseconds < d->configs[chosen].milliseconds) chosen = i;
  }
  if (chosen < 0)
    return error_set(err, "none of %d ways to run attention's %s compiled: %s", d->count,
                     direction_name(direction), why_not->text);
  use(a, direction, chosen);
  d->configs[chosen].chosen = true;
  for (int i = 0; i < d->count; i++) {
    if (i == chosen || !d->plans[i]) continue;
    a->api->destroy_descriptor(d->plans[i]);
    d->plans[i] = NULL;
  }
  return 0;
}

static void forget_plans(const CudnnApi *api, Direction *d) {
  for (int i = 0; i < d->count; i++)
    if (d->plans[i]) api->destroy_descriptor(d->plans[i]);
  *d = (Direction){.count = 0};
}

// ---- Choices

// Compiles only a known choice. False where cuDNN no longer offers it, or where it does not
// compile; then everything of the attempt is freed.
static bool recall(AttentionCudnn *a, AttentionDirection direction, const AttentionChoice *known) {
  const int i = known->number;
  Direction *d = &a->direction[direction];
  Error ignored;
  if (compile_form(a, direction, known->deterministic, i, &ignored, &ignored) || !d->plans[i] ||
      d->configs[i].engine != known->engine || d->configs[i].kernel != known->kernel) {
    forget_plans(a->api, d);
    return false;
  }
  use(a, direction, i);
  d->configs[i].chosen = true;
  d->configs[i].milliseconds = known->milliseconds;
  d->choice = *known;
  return true;
}

// Remembers the choice of keep_fastest.
static void note_choice(AttentionCudnn *a, AttentionDirection direction) {
  Direction *d = &a->direction[direction];
  const AttentionConfig *chosen = used_config(a, direction);
  AttentionChoice *c = &d->choice;
  *c = (AttentionChoice){.deterministic = chosen->deterministic,
                         .engine = chosen->engine,
                         .kernel = chosen->kernel,
                         .milliseconds = chosen->milliseconds};
  for (int i = 0; i < d->count; i++) {
    const AttentionConfig *other = &d->configs[i];
    if (other->deterministic == chosen->deterministic)
      c->number += i < d->used;
    else if (other->milliseconds > 0 && (c->other_form == 0 || other->milliseconds < c->other_form))
      c->other_form = other->milliseconds;
  }
}

static bool needs_deterministic(const AttentionShape *s) {
  return s->rows > 0 && documents_need_deterministic(s->d);
}

// The other form of the backward is optional.
static int plan(AttentionCudnn *a, AttentionDirection direction, const AttentionOptions *options,
                Error *err) {
  const bool backward = direction == ATTENTION_BACKWARD;
  const int wanted = backward ? options->backward_config : options->forward_config;
  const AttentionQuestion question = {
      .shape = a->shape,
      .direction = direction,
      .deterministic = backward && (options->deterministic || needs_deterministic(&a->shape)),
      .both_forms = backward && options->both_forms,
      .first = wanted == ATTENTION_FIRST};
  Choices *choices = wanted < 0 ? options->choices : NULL;
  AttentionChoice known;
  if (choices && attention_choice_find(choices, &question, &known) && recall(a, direction, &known))
    return 0;
  Error why_not = {""}, not_offered;
  if (compile_form(a, direction, question.deterministic, wanted, &why_not, err)) return -1;
  if (question.both_forms)
    (void)compile_form(a, direction, !question.deterministic, ATTENTION_FASTEST, &why_not,
                       &not_offered);
  if (keep_fastest(a, direction, question.deterministic, &why_not, err)) return -1;
  note_choice(a, direction);
  if (choices) attention_choice_keep(choices, &question, &a->direction[direction].choice);
  return 0;
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
  if (plan(a, ATTENTION_FORWARD, options, err) == 0 &&
      (options->forward_only || plan(a, ATTENTION_BACKWARD, options, err) == 0))
    return a;
  attention_cudnn_destroy(a);
  return NULL;
}

void attention_cudnn_destroy(AttentionCudnn *a) {
  if (!a) return;
  for (int direction = 0; direction < 2; direction++)
    forget_plans(a->api, &a->direction[direction]);
  free(a);
}
