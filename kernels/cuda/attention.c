// cuDNN's attention behind kernels/ops.h: a plan for each shape (B, T), the run's made at the
// start, others (of --eval, say) when they occur.
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
  oldest->B = oldest->T = 0;
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

static int plan_shape(Cuda *c, int64_t B, int64_t T, bool both_forms, Error *err) {
  const OpsConfig *o = &c->config;
  const AttentionShape shape = {.B = B, .T = T, .H = o->H, .KV = o->KV, .d = o->d};
  const bool deterministic = c->options.deterministic, train = c->options.train;
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
                     size_text(bytes).text, (long long)B, (long long)T);
  p->B = B;
  p->T = T;
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
  char *first = xasprintf("coda attention 1 gpu %s sm %d driver %d cudnn %zu\n", gpu->name,
                          gpu->sm_count, gpu->driver, version);
  choices_open(&c->attention_choices, path, first);
  free(path);
  free(first);
}

// The deterministic backward's scratch grows with T^2, the plain one's with T. A run that does not
// ask for it may use it where it is faster and its scratch no more than four times as large; a run
// that asks for it reports its cost.
int cuda_attention_open(Cuda *c, Error *err) {
  if (cudnn_open(&c->cudnn, err) ||
      cudnn_check(&c->cudnn, c->cudnn.create(&c->cudnn_handle), "making a handle", err) ||
      cudnn_check(&c->cudnn, c->cudnn.set_stream(c->cudnn_handle, c->gpu.stream),
                  "setting the stream", err))
    return -1;
  open_choices(c);
  phase_end(&c->base.opening, "cuDNN");
  if (c->options.batch == 0) return 0;
  const bool deterministic = c->options.deterministic,
             both_forms = deterministic || c->options.seq <= 8 * c->config.d;
  if (plan_shape(c, c->options.batch, c->options.seq, both_forms, err)) return -1;
  phase_end(&c->base.opening, "attention");
  if (deterministic && c->options.train) describe_cost(c);
  return 0;
}

void cuda_attention_close(Cuda *c) {
  for (int i = 0; i < c->attention_count; i++) {
    attention_cudnn_destroy(c->attention[i].plan);
    cuda_give_back(c, c->attention[i].workspace);
  }
  choices_close(&c->attention_choices);
  if (c->cudnn_handle) c->cudnn.destroy(c->cudnn_handle);
}

static PlannedAttention *find_plan(Cuda *c, int64_t B, int64_t T) {
  for (int i = 0; i < c->attention_count; i++)
    if (c->attention[i].B == B && c->attention[i].T == T) return &c->attention[i];
  return NULL;
}

static void run(Backend *be, int64_t B, int64_t T, AttentionDirection direction,
                AttentionTensors tensors) {
  Cuda *c = cuda_of(be);
  Error err;
  PlannedAttention *p = find_plan(c, B, T);
  if (!p) {
    error_check(plan_shape(c, B, T, false, &err), &err);
    p = find_plan(c, B, T);
  }
  p->last_call = ++c->attention_calls;
  tensors.workspace = p->workspace;
  error_check(attention_cudnn_run(p->plan, direction, &tensors, &err), &err);
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
