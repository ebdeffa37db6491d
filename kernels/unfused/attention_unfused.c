// cuDNN's attention behind kernels/ops.h: a plan for each shape (B, T), the run's made at the
// start, another one (of validation) when it first occurs.
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernels/cuda/check.h"
#include "kernels/unfused/state.h"

static int plan_shape(Unfused *u, int64_t B, int64_t T, bool both_forms, Error *err) {
  const OpsConfig *c = &u->config;
  const AttentionShape shape = {.B = B, .T = T, .H = c->H, .KV = c->KV, .d = c->d};
  const bool deterministic = u->options.deterministic, train = u->options.train;
  const int config = deterministic ? ATTENTION_FIRST : ATTENTION_FASTEST;
  const AttentionOptions options = {.deterministic = deterministic,
                                    .forward_only = !train,
                                    .both_forms = both_forms,
                                    .forward_config = config,
                                    .backward_config = config};
  if (u->attention_count == MAX_ATTENTION_SHAPES)
    return error_set(err, "attention was asked for in more than %d shapes", MAX_ATTENTION_SHAPES);
  PlannedAttention planned = {.B = B, .T = T};
  planned.plan =
      attention_cudnn_create(&u->cudnn, u->cudnn_handle, u->gpu.stream, &shape, &options, err);
  if (!planned.plan) return -1;
  size_t bytes = attention_cudnn_workspace(planned.plan, ATTENTION_FORWARD);
  const size_t backward = train ? attention_cudnn_workspace(planned.plan, ATTENTION_BACKWARD) : 0;
  if (backward > bytes) bytes = backward;
  if (cudaMalloc(&planned.workspace, bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    attention_cudnn_destroy(planned.plan);
    return error_set(err,
                     "the GPU has no %s left for attention's workspace at %lld x %lld tokens; use "
                     "a smaller train.batch_size",
                     size_text(bytes).text, (long long)B, (long long)T);
  }
  u->attention_workspace_bytes += bytes;
  u->attention[u->attention_count++] = planned;
  return 0;
}

// What equal bits cost, for the start-up table.
static void describe_cost(Unfused *u) {
  const AttentionConfig *list;
  const int count = attention_cudnn_configs(u->attention[0].plan, ATTENTION_BACKWARD, &list);
  double chosen = 0, plain = 0;
  for (int i = 0; i < count; i++) {
    const double ms = list[i].milliseconds;
    if (list[i].chosen) chosen = ms;
    if (!list[i].deterministic && ms > 0 && (plain == 0 || ms < plain)) plain = ms;
  }
  if (chosen > 0 && plain > 0)
    snprintf(u->base.costs, sizeof u->base.costs,
             "attention's backward: deterministic %.3f ms a layer, otherwise %.3f ms", chosen,
             plain);
  else
    snprintf(u->base.costs, sizeof u->base.costs,
             "attention's backward: deterministic; there was no memory to time its cost");
}

// The deterministic backward's scratch grows with T^2, the plain one's with T. A run that does not
// ask for it may have it where it is faster and its scratch no more than four times as large; one
// that does learns what it costs.
int unfused_attention_open(Unfused *u, Error *err) {
  if (cudnn_open(&u->cudnn, err) ||
      cudnn_check(&u->cudnn, u->cudnn.create(&u->cudnn_handle), "making a handle", err) ||
      cudnn_check(&u->cudnn, u->cudnn.set_stream(u->cudnn_handle, u->gpu.stream),
                  "setting the stream", err))
    return -1;
  if (u->options.batch == 0) return 0;
  const bool deterministic = u->options.deterministic,
             both_forms = deterministic || u->options.seq <= 8 * u->config.d;
  if (plan_shape(u, u->options.batch, u->options.seq, both_forms, err)) return -1;
  if (deterministic && u->options.train) describe_cost(u);
  return 0;
}

void unfused_attention_close(Unfused *u) {
  for (int i = 0; i < u->attention_count; i++) {
    attention_cudnn_destroy(u->attention[i].plan);
    CUDA_CHECK(cudaFree(u->attention[i].workspace));
  }
  if (u->cudnn_handle) u->cudnn.destroy(u->cudnn_handle);
}

static void fail(const Error *err) {
  fprintf(stderr, "%s\n", err->text);
  exit(EXIT_FAILURE);
}

static const PlannedAttention *planned(Unfused *u, int64_t B, int64_t T) {
  for (int i = 0; i < u->attention_count; i++)
    if (u->attention[i].B == B && u->attention[i].T == T) return &u->attention[i];
  Error err;
  if (plan_shape(u, B, T, false, &err)) fail(&err);
  return &u->attention[u->attention_count - 1];
}

void unfused_op_attention(Backend *be, int64_t B, int64_t T, const act_t *qkv, act_t *o,
                          stat_t *lse) {
  const PlannedAttention *p = planned(unfused_of(be), B, T);
  Error err;
  if (attention_cudnn_forward(p->plan, qkv, o, lse, p->workspace, &err)) fail(&err);
}

void unfused_op_attention_backward(Backend *be, int64_t B, int64_t T, const act_t *qkv,
                                   const act_t *o, const stat_t *lse, const act_t *do_,
                                   act_t *dqkv) {
  const PlannedAttention *p = planned(unfused_of(be), B, T);
  Error err;
  if (attention_cudnn_backward(p->plan, qkv, o, lse, do_, dqkv, p->workspace, &err)) fail(&err);
}
