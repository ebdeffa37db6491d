// cuDNN's attention behind kernels/ops.h. Each shape (B, T) has plans: the run's are made at the
// start, others (such as those of --eval) when they occur.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gpu.h"

// The plans of one shape.
typedef struct Planned {
  AttentionShape shape;
  AttentionCudnn *plans;
  void *workspace;   // the run's, or their own
  int64_t last_call; // the value of Attention.calls at their last call
} Planned;

_Static_assert(MAX_ATTENTION_SHAPES > 1 + MOST_HALVINGS,
               "shapes that are not the run's need an entry");

struct Attention {
  CudnnApi cudnn;
  CudnnHandle handle;
  // The run's own shapes come first and stay, since recorded steps use them. A new shape replaces
  // the least recently used of the others.
  Planned planned[MAX_ATTENTION_SHAPES];
  int count, of_run;
  void *workspace; // of the run's shapes, the most that one needs
  int64_t calls;
  Choices choices;
  void *table, *host;     // the documents' table on the GPU, and where the host fills it in
  void *bias;             // with biases_documents: bf16 [batch, seq, seq], and the table is each
                          // row's first row (launch_document_bias)
  int64_t document_calls; // calls of attention for the documents that are set; 0: none are set
};

static void forget(Cuda *c, Planned *p) {
  attention_cudnn_destroy(p->plans);
  if (p->workspace != c->attention->workspace) cuda_give_back(c, p->workspace);
  *p = (Planned){.plans = NULL};
}

// The entry for the next plans.
static Planned *free_entry(Cuda *c) {
  Attention *a = c->attention;
  if (a->count < MAX_ATTENTION_SHAPES) return &a->planned[a->count++];
  Planned *oldest = &a->planned[a->of_run];
  for (int i = a->of_run; i < MAX_ATTENTION_SHAPES; i++)
    if (a->planned[i].last_call < oldest->last_call) oldest = &a->planned[i];
  CUDA_CHECK(cudaStreamSynchronize(c->gpu.stream));
  forget(c, oldest);
  return oldest;
}

// train: with a backward. NULL, and err says why, on failure.
static Planned *plan_shape(Cuda *c, AttentionShape shape, bool train, bool both_graphs,
                           Error *err) {
  Attention *a = c->attention;
  const AttentionCall call = {.shape = shape,
                              .backward = train,
                              .deterministic = c->base.spec.deterministic,
                              .both_graphs = both_graphs};
  Planned *p = free_entry(c);
  p->plans = attention_cudnn_create(&a->cudnn, a->handle, c->gpu.stream, &call, &a->choices, err);
  if (!p->plans) return NULL;
  choices_save(&a->choices);
  p->shape = shape;
  return p;
}

// What the shape needs. NULL, and err says why, on failure.
static void *take_workspace(Cuda *c, const Planned *p, Error *err) {
  const size_t bytes = attention_cudnn_workspace(p->plans);
  void *workspace = cuda_take(c, bytes, err);
  if (!workspace)
    error_set(err,
              "the GPU has no %s left for attention's workspace at %lld x %lld tokens; use a "
              "smaller train.batch_size",
              size_text(bytes).text, (long long)p->shape.B, (long long)p->shape.T);
  return workspace;
}

// All shapes of the run use one workspace, since no two run at a time.
static int share_workspace(Cuda *c, Error *err) {
  Attention *a = c->attention;
  const Planned *most = a->planned;
  a->of_run = a->count;
  for (const Planned *p = a->planned; p < a->planned + a->count; p++)
    if (attention_cudnn_workspace(p->plans) > attention_cudnn_workspace(most->plans)) most = p;
  if (!(a->workspace = take_workspace(c, most, err))) return -1;
  for (int i = 0; i < a->count; i++) a->planned[i].workspace = a->workspace;
  return 0;
}

// The cost of equal bits, for the start-up table.
static void describe_cost(Cuda *c, const AttentionCudnn *plans) {
  const AttentionPlan *b = attention_cudnn_plan(plans, true);
  if (b->milliseconds > 0 && b->other_graph > 0)
    snprintf(c->base.costs, sizeof c->base.costs,
             "attention's backward: deterministic %.3f ms a layer, otherwise %.3f ms",
             b->milliseconds, b->other_graph);
  else
    snprintf(c->base.costs, sizeof c->base.costs,
             "attention's backward: deterministic; there was no memory to time its cost");
}

static void open_choices(Cuda *c) {
  const Gpu *gpu = &c->gpu;
  const size_t version = c->attention->cudnn.version;
  char *path =
      c->base.spec.gemm_cache ? NULL : choices_path("attention", gpu->name, gpu->driver, version);
  char *first = xasprintf("coda attention 5 gpu %s sm %d driver %d cudnn %zu\n", gpu->name,
                          gpu->sm_count, gpu->driver, version);
  choices_open(&c->attention->choices, path, first);
  free(path);
  free(first);
}

// Of B sequences of T rows, or of the documents in them. Nobody tried lengths of their own without
// padding but on Hopper.
static AttentionShape shape_of(const Cuda *c, int64_t B, int64_t T, bool documents) {
  const Spec *o = &c->base.spec;
  AttentionShape s = {.B = B, .T = T, .H = o->H, .KV = o->KV, .d = o->d};
  if (!documents) return s;
  s.mask = o->biases_documents ? MASK_BIAS : c->gpu.major == 9 ? MASK_NONE : MASK_LENGTHS;
  if (s.mask == MASK_BIAS) return s;
  const DocumentCalls calls = document_calls(o);
  s.B = calls.per_call;
  s.T = calls.longest;
  s.rows = B * T;
  return s;
}

static int64_t calls_for(const Cuda *c, int64_t documents) {
  const DocumentCalls calls = document_calls(&c->base.spec);
  const int64_t needed = (documents + calls.per_call - 1) / calls.per_call;
  return needed > calls.usual && !c->base.spec.biases_documents ? needed : calls.usual;
}

static void set_document_calls(Cuda *c, int64_t calls) {
  c->attention->document_calls = calls;
  c->documents_are_usual = calls == document_calls(&c->base.spec).usual;
}

// Worst case: every row is a document.
static int make_table(Cuda *c, Error *err) {
  Attention *a = c->attention;
  const Spec *o = &c->base.spec;
  if (o->usual_documents == 0) return 0;
  const size_t bytes = o->biases_documents ? (size_t)batch_rows(o) * sizeof(int32_t)
                                           : attention_table_bytes(document_calls(o).per_call,
                                                                   calls_for(c, o->max_tokens));
  a->host = xmalloc(bytes);
  if (!(a->table = cuda_take(c, bytes, err))) return -1;
  if (!o->biases_documents) return 0;
  return (a->bias = cuda_take(c, document_bias_bytes(o), err)) ? 0 : -1;
}

// The deterministic backward keeps the scores, 2 B H T^2 bytes; the plain one keeps dq in fp32,
// 4 rows H d bytes. A run that does not ask for equal bits may still use the deterministic one
// where it is faster and needs at most four times the scratch. A run that asks for it reports its
// cost.
static bool may_take_both(const Cuda *c, const AttentionShape *s) {
  return c->base.spec.deterministic || s->B * s->T * s->T <= 8 * s->d * attention_rows(s);
}

static int plan_run(Cuda *c, Error *err) {
  const Spec *o = &c->base.spec;
  const bool documents = o->usual_documents > 0;
  const AttentionShape shape = shape_of(c, o->batch, o->seq, documents),
                       whole = shape_of(c, o->batch, o->seq, false);
  const Planned *p = plan_shape(c, shape, o->train, may_take_both(c, &shape), err);
  if (!p) return -1;
  if (o->deterministic && o->train) describe_cost(c, p->plans);
  for (int i = 1; i <= o->halvings; i++) {
    const AttentionShape pieces = shape_of(c, o->batch << i, o->seq >> i, false);
    if (!plan_shape(c, pieces, o->train, may_take_both(c, &pieces), err)) return -1;
  }
  if (documents && o->whole_windows && !plan_shape(c, whole, false, false, err)) return -1;
  return share_workspace(c, err);
}

int cuda_attention_open(Cuda *c, Error *err) {
  Attention *a = c->attention = xcalloc(1, sizeof *a);
  if (cudnn_open(&a->cudnn, err) ||
      cudnn_check(&a->cudnn, a->cudnn.create(&a->handle), "making a handle", err) ||
      cudnn_check(&a->cudnn, a->cudnn.set_stream(a->handle, c->gpu.stream), "setting the stream",
                  err))
    return -1;
  Spec *o = &c->base.spec;
  o->biases_documents |=
      o->usual_documents > 0 && gpu_biases_documents(&c->gpu, o->d, o->deterministic);
  open_choices(c);
  set_document_calls(c, 0);
  phase_end(&c->base.opening, "cuDNN");
  if (make_table(c, err) != 0) return -1;
  if (!plans_ahead(o)) return 0;
  const int status = plan_run(c, err);
  phase_end(&c->base.opening, "attention");
  return status;
}

void cuda_attention_close(Cuda *c) {
  Attention *a = c->attention;
  if (!a) return;
  for (int i = 0; i < a->count; i++) forget(c, &a->planned[i]);
  cuda_give_back(c, a->workspace);
  choices_close(&a->choices);
  cuda_give_back(c, a->table);
  cuda_give_back(c, a->bias);
  free(a->host);
  if (a->handle) a->cudnn.destroy(a->handle);
  free(a);
  c->attention = NULL;
}

size_t cuda_cudnn_version(const Cuda *c) {
  return c->attention->cudnn.version;
}

static Planned *find_plans(Attention *a, const AttentionShape *s) {
  for (int i = 0; i < a->count; i++) {
    const AttentionShape *other = &a->planned[i].shape;
    if (other->B == s->B && other->T == s->T && other->rows == s->rows && other->mask == s->mask)
      return &a->planned[i];
  }
  return NULL;
}

static void set_bias(Cuda *c, const int32_t *lengths, int64_t count) {
  Attention *a = c->attention;
  const int64_t M = batch_rows(&c->base.spec), T = c->base.spec.seq;
  int32_t *first = a->host;
  int64_t row = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t begin = row % T, end = row + lengths[i];
    assert(begin + lengths[i] <= T); // no document is in two windows
    while (row < end) first[row++] = (int32_t)begin;
  }
  assert(row == M);
  c->base.services.write(&c->base, a->table, first, (size_t)M * sizeof *first);
  launch_document_bias(M, T, a->table, a->bias, c->gpu.stream);
}

void cuda_set_documents(Backend *be, const int32_t *lengths, int64_t count) {
  Cuda *c = cuda_of(be);
  Attention *a = c->attention;
  assert(documents_fit(&c->base.spec, lengths, count));
  set_document_calls(c, count > 0 ? calls_for(c, count) : 0);
  if (count == 0) return;
  if (c->base.spec.biases_documents) {
    set_bias(c, lengths, count);
    return;
  }
  const AttentionShape s = shape_of(c, 1, 1, true);
  attention_table_fill(&s, lengths, count, a->document_calls, a->host);
  be->services.write(be, a->table, a->host, attention_table_bytes(s.B, a->document_calls));
}

static void run(Backend *be, int64_t B, int64_t T, bool backward, AttentionTensors tensors) {
  Cuda *c = cuda_of(be);
  Attention *a = c->attention;
  const int64_t calls = a->document_calls;
  const AttentionShape shape = shape_of(c, B, T, calls > 0);
  Error err;
  Planned *p = find_plans(a, &shape);
  if (!p && (p = plan_shape(c, shape, c->base.spec.train, false, &err)))
    p->workspace = take_workspace(c, p, &err);
  error_check(p && p->workspace ? 0 : -1, &err);
  p->last_call = ++a->calls;
  tensors.workspace = p->workspace;
  tensors.bias = a->bias;
  for (int64_t i = 0; i < calls || i == 0; i++) {
    if (shape.rows > 0) tensors.documents = attention_table_at(a->table, shape.B, i);
    error_check(attention_cudnn_run(p->plans, backward, &tensors, &err), &err);
  }
}

void cuda_attention(Backend *be, int64_t B, int64_t T, const act_t *qkv, Operand o, stat_t *lse) {
  run(be, B, T, false, (AttentionTensors){.qkv = qkv, .o = o.data, .lse = (float *)lse});
  if (o.by_row) cuda_requantize(be, B * T, be->spec.H * be->spec.d, o);
}

void cuda_attention_backward(Backend *be, int64_t B, int64_t T, const act_t *qkv, const act_t *o,
                             const stat_t *lse, const act_t *do_, act_t *dqkv) {
  run(be, B, T, true,
      (AttentionTensors){
          .qkv = qkv, .o = (void *)o, .lse = (float *)lse, .do_ = do_, .dqkv = dqkv});
}
