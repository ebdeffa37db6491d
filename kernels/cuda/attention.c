// cuDNN's attention behind kernels/ops.h: a plan for each shape (B, T), the run's made at the
// start, others (of --eval, say) when they occur.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/cuda.h"

// The entry for the next plan.
static PlannedAttention *free_place(Cuda *c) {
  if (c->attention_count < MAX_ATTENTION_SHAPES) return &c->attention[c->attention_count++];
  const int first = c->options.batch > 0;
  PlannedAttention *oldest = &c->attention[first];
  for (int i = first; i < MAX_ATTENTION_SHAPES; i++)
    if (c->attention[i].last_call < oldest->last_call) oldest = &c->attention[i];
  CUDA_CHECK(cudaStreamSynchronize(c->gpu.stream));
  attention_cudnn_destroy(oldest->plan);
  oldest->plan = NULL;
  oldest->shape = (AttentionShape){0};
  return oldest;
}

// Makes the workspace at least `bytes` large.
static int take_workspace(Cuda *c, PlannedAttention *p, size_t bytes) {
  Error ignored;
  if (p->workspace && bytes <= p->bytes) return 0;
  cuda_give_back(c, p->workspace);
  p->workspace = cuda_take(c, bytes, &ignored);
  p->bytes = p->workspace ? bytes : 0;
  return p->workspace ? 0 : -1;
}

// train: with a backward.
static int plan_shape(Cuda *c, AttentionShape shape, bool train, bool both_forms, Error *err) {
  const bool deterministic = c->options.deterministic;
  const int config = deterministic ? ATTENTION_FIRST : ATTENTION_FASTEST;
  const AttentionOptions options = {.deterministic = deterministic,
                                    .forward_only = !train,
                                    .both_forms = both_forms,
                                    .forward_config = config,
                                    .backward_config = config,
                                    .choices = &c->attention_choices};
  PlannedAttention *p = free_place(c);
  p->plan =
      attention_cudnn_create(&c->cudnn, c->cudnn_handle, c->gpu.stream, &shape, &options, err);
  if (!p->plan) return -1;
  choices_save(&c->attention_choices);
  size_t bytes = attention_cudnn_workspace(p->plan, ATTENTION_FORWARD);
  const size_t backward = train ? attention_cudnn_workspace(p->plan, ATTENTION_BACKWARD) : 0;
  if (backward > bytes) bytes = backward;
  if (take_workspace(c, p, bytes) != 0)
    return error_set(err,
                     "the GPU has no %s left for attention's workspace at %lld x %lld tokens; use "
                     "a smaller train.batch_size",
                     size_text(bytes).text, (long long)shape.B, (long long)shape.T);
  p->shape = shape;
  return 0;
}

// The cost of equal bits, for the start-up table.
static void describe_cost(Cuda *c) {
  const AttentionChoice *b = attention_cudnn_choice(c->attention[0].plan, ATTENTION_BACKWARD);
  if (b->milliseconds > 0 && b->other_form > 0)
    snprintf(c->base.costs, sizeof c->base.costs,
             "attention's backward: deterministic %.3f ms a layer, otherwise %.3f ms",
             b->milliseconds, b->other_form);
  else
    snprintf(c->base.costs, sizeof c->base.costs,
             "attention's backward: deterministic; there was no memory to time its cost");
}

static void open_choices(Cuda *c) {
  const Gpu *gpu = &c->gpu;
  const size_t version = c->cudnn.version;
  char *path =
      c->options.gemm_cache ? NULL : choices_path("attention", gpu->name, gpu->driver, version);
  char *first = xasprintf("coda attention 3 gpu %s sm %d driver %d cudnn %zu\n", gpu->name,
                          gpu->sm_count, gpu->driver, version);
  choices_open(&c->attention_choices, path, first);
  free(path);
  free(first);
}

// Of B sequences of T rows, or of the documents in them.
static AttentionShape shape_of(const Cuda *c, int64_t B, int64_t T, bool documents) {
  const OpsConfig *o = &c->config;
  AttentionShape s = {.B = B, .T = T, .H = o->H, .KV = o->KV, .d = o->d};
  if (!documents) return s;
  const DocumentCalls calls = document_calls(o, &c->options);
  s.B = calls.per_call;
  s.T = calls.longest;
  s.rows = B * T;
  return s;
}

static int check_documents(const Cuda *c, Error *err) {
  const Gpu *gpu = &c->gpu;
  if (c->config.usual_documents == 0 || gpu_attends_documents(gpu)) return 0;
  return error_set(err,
                   "attention that stops at a document's end runs on GPUs of compute capability 9 "
                   "and 10 alone, and the GPU (%s) has %d.%d: take data.documents=join, or "
                   "backend.device=cpu",
                   gpu->name, gpu->major, gpu->minor);
}

static int64_t calls_for(const Cuda *c, int64_t documents) {
  const DocumentCalls calls = document_calls(&c->config, &c->options);
  const int64_t needed = (documents + calls.per_call - 1) / calls.per_call;
  return needed > calls.usual ? needed : calls.usual;
}

// Worst case: every row is a document.
static int make_table(Cuda *c, Error *err) {
  if (c->config.usual_documents == 0) return 0;
  const int64_t per_call = document_calls(&c->config, &c->options).per_call;
  const size_t bytes = attention_table_bytes(per_call, calls_for(c, c->config.max_tokens));
  c->documents.host = xmalloc(bytes);
  return (c->documents.table = cuda_take(c, bytes, err)) ? 0 : -1;
}

// The deterministic backward keeps scores, B H T^2 2 bytes, the plain one dq in fp32, rows H d 4
// bytes. A run that does not ask for it may use it where it is faster and its scratch no more than
// four times as large; a run that asks for it reports its cost.
static bool may_take_both(const Cuda *c, const AttentionShape *s) {
  return c->options.deterministic || s->B * s->T * s->T <= 8 * s->d * attention_rows(s);
}

static int plan_run(Cuda *c, Error *err) {
  const GpuOptions *o = &c->options;
  const bool documents = c->config.usual_documents > 0;
  const AttentionShape shape = shape_of(c, o->batch, o->seq, documents),
                       whole = shape_of(c, o->batch, o->seq, false);
  if (plan_shape(c, shape, o->train, may_take_both(c, &shape), err)) return -1;
  if (o->deterministic && o->train) describe_cost(c);
  return documents && c->config.whole_windows ? plan_shape(c, whole, false, false, err) : 0;
}

int cuda_attention_open(Cuda *c, Error *err) {
  if (cudnn_open(&c->cudnn, err) ||
      cudnn_check(&c->cudnn, c->cudnn.create(&c->cudnn_handle), "making a handle", err) ||
      cudnn_check(&c->cudnn, c->cudnn.set_stream(c->cudnn_handle, c->gpu.stream),
                  "setting the stream", err))
    return -1;
  open_choices(c);
  phase_end(&c->base.opening, "cuDNN");
  if (check_documents(c, err) != 0 || make_table(c, err) != 0) return -1;
  if (c->options.batch == 0) return 0;
  const int status = plan_run(c, err);
  phase_end(&c->base.opening, "attention");
  return status;
}

void cuda_attention_close(Cuda *c) {
  for (int i = 0; i < c->attention_count; i++) {
    attention_cudnn_destroy(c->attention[i].plan);
    cuda_give_back(c, c->attention[i].workspace);
  }
  choices_close(&c->attention_choices);
  free(c->documents.host);
  if (c->cudnn_handle) c->cudnn.destroy(c->cudnn_handle);
}

static PlannedAttention *find_plan(Cuda *c, const AttentionShape *s) {
  for (int i = 0; i < c->attention_count; i++) {
    const AttentionShape *other = &c->attention[i].shape;
    if (other->B == s->B && other->T == s->T && other->rows == s->rows) return &c->attention[i];
  }
  return NULL;
}

void cuda_set_documents(Backend *be, const int32_t *lengths, int64_t count) {
  Cuda *c = cuda_of(be);
  assert(documents_fit(&c->config, lengths, count));
  c->documents.calls = count > 0 ? calls_for(c, count) : 0;
  if (count == 0) return;
  const AttentionShape s = shape_of(c, 1, 1, true);
  attention_table_fill(&s, lengths, count, c->documents.calls, c->documents.host);
  be->services.write(be, c->documents.table, c->documents.host,
                     attention_table_bytes(s.B, c->documents.calls));
}

static void run(Backend *be, int64_t B, int64_t T, AttentionDirection direction,
                AttentionTensors tensors) {
  Cuda *c = cuda_of(be);
  const int64_t calls = c->documents.calls;
  const AttentionShape shape = shape_of(c, B, T, calls > 0);
  Error err;
  PlannedAttention *p = find_plan(c, &shape);
  if (!p) {
    error_check(plan_shape(c, shape, c->options.train, false, &err), &err);
    p = find_plan(c, &shape);
  }
  p->last_call = ++c->attention_calls;
  tensors.workspace = p->workspace;
  for (int64_t i = 0; i < calls || i == 0; i++) {
    if (calls > 0) tensors.documents = attention_table_at(c->documents.table, shape.B, i);
    error_check(attention_cudnn_run(p->plan, direction, &tensors, &err), &err);
  }
}

void cuda_attention(Backend *be, int64_t B, int64_t T, const act_t *qkv, Operand o, stat_t *lse) {
  run(be, B, T, ATTENTION_FORWARD,
      (AttentionTensors){.qkv = qkv, .o = o.data, .lse = (float *)lse});
  if (o.by_row) cuda_repack(be, B * T, cuda_of(be)->config.H * cuda_of(be)->config.d, o);
}

void cuda_attention_backward(Backend *be, int64_t B, int64_t T, const act_t *qkv, const act_t *o,
                             const stat_t *lse, const act_t *do_, act_t *dqkv) {
  run(be, B, T, ATTENTION_BACKWARD,
      (AttentionTensors){
          .qkv = qkv, .o = (void *)o, .lse = (float *)lse, .do_ = do_, .dqkv = dqkv});
}
