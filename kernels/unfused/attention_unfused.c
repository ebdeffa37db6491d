// cuDNN's attention behind kernels/ops.h: a plan for each shape (B, T), the run's made at the
// start, another one (of validation) when it first occurs.
#include <string.h>

#include "kernels/cuda/check.h"
#include "kernels/unfused/state.h"

static int make_workspace(Unfused *u, size_t bytes, Error *err) {
  if (bytes <= u->attention_workspace_bytes) return 0;
  CUDA_TRY(err, cudaStreamSynchronize(u->gpu.stream));
  CUDA_TRY(err, cudaFree(u->attention_workspace));
  u->attention_workspace = NULL;
  u->attention_workspace_bytes = 0;
  CUDA_TRY(err, cudaMalloc(&u->attention_workspace, bytes));
  u->attention_workspace_bytes = bytes;
  return 0;
}

static int plan_shape(Unfused *u, int64_t B, int64_t T, bool train, Error *err) {
  const OpsConfig *c = &u->config;
  const AttentionShape shape = {.B = B, .T = T, .H = c->H, .KV = c->KV, .d = c->d};
  const bool deterministic = u->options.deterministic;
  const int config = deterministic ? ATTENTION_FIRST : ATTENTION_FASTEST;
  const AttentionOptions options = {.deterministic = deterministic,
                                    .forward_only = !train,
                                    .forward_config = config,
                                    .backward_config = config};
  if (u->attention_count == MAX_ATTENTION_SHAPES)
    return error_set(err, "attention was asked for in more than %d shapes", MAX_ATTENTION_SHAPES);
  AttentionCudnn *plan =
      attention_cudnn_create(&u->cudnn, u->cudnn_handle, u->gpu.stream, &shape, &options, err);
  if (!plan) return -1;
  u->attention[u->attention_count++] = (PlannedAttention){.B = B, .T = T, .plan = plan};
  size_t bytes = attention_cudnn_workspace(plan, ATTENTION_FORWARD);
  const size_t backward = train ? attention_cudnn_workspace(plan, ATTENTION_BACKWARD) : 0;
  if (backward > bytes) bytes = backward;
  return make_workspace(u, bytes, err);
}

int unfused_attention_open(Unfused *u, Error *err) {
  if (cudnn_open(&u->cudnn, err) ||
      cudnn_check(&u->cudnn, u->cudnn.create(&u->cudnn_handle), "making a handle", err) ||
      cudnn_check(&u->cudnn, u->cudnn.set_stream(u->cudnn_handle, u->gpu.stream),
                  "setting the stream", err))
    return -1;
  if (u->options.batch == 0) return 0;
  return plan_shape(u, u->options.batch, u->options.seq, u->options.train, err);
}

void unfused_attention_close(Unfused *u) {
  for (int i = 0; i < u->attention_count; i++) attention_cudnn_destroy(u->attention[i].plan);
  CUDA_CHECK(cudaFree(u->attention_workspace));
  if (u->cudnn_handle) u->cudnn.destroy(u->cudnn_handle);
}

static void fail(const Error *err) {
  fprintf(stderr, "%s\n", err->text);
  exit(EXIT_FAILURE);
}

static AttentionCudnn *planned(Unfused *u, int64_t B, int64_t T) {
  for (int i = 0; i < u->attention_count; i++)
    if (u->attention[i].B == B && u->attention[i].T == T) return u->attention[i].plan;
  Error err;
  if (plan_shape(u, B, T, u->options.train, &err)) fail(&err);
  return u->attention[u->attention_count - 1].plan;
}

void unfused_op_attention(Backend *be, int64_t B, int64_t T, const act_t *qkv, act_t *o,
                          stat_t *lse) {
  Unfused *u = unfused_of(be);
  Error err;
  if (attention_cudnn_forward(planned(u, B, T), qkv, o, lse, u->attention_workspace, &err))
    fail(&err);
}

void unfused_op_attention_backward(Backend *be, int64_t B, int64_t T, const act_t *qkv,
                                   const act_t *o, const stat_t *lse, const act_t *do_,
                                   act_t *dqkv) {
  Unfused *u = unfused_of(be);
  Error err;
  if (attention_cudnn_backward(planned(u, B, T), qkv, o, lse, do_, dqkv, u->attention_workspace,
                               &err))
    fail(&err);
}
