#include "kernels/gpu_backends.h"
#include "kernels/muon_groups.h"

enum { BF16 = 2, FP32 = 4 }; // bytes

// Columns of the narrowest tile of each mainloop (kernels/fused/tiles.c): a tile writes a part.
static int64_t narrowest_tile(const GpuOptions *o) {
  return o->mainloop == MAINLOOP_MMA_SYNC ? 64 : 128;
}

void backend_gpu_sizes(Backend *be, const OpsConfig *c, const GpuOptions *o) {
  const int64_t part = narrowest_tile(o);
  be->act_bytes = BF16;
  be->fp8_bytes = 1;
  be->stat_bytes = FP32;
  be->computes_with_masters = c->masters == MASTERS_BF16;
  be->master_bytes = be->computes_with_masters ? BF16 : FP32;
  be->moment_bytes = c->moments == MOMENTS_BF16 ? BF16 : FP32;
  be->grad_bytes = o->grads_fp32 ? FP32 : BF16;
  be->rounds_gradients = !o->grads_fp32;
  be->most_parts.sumsq = c->D / part + 1;
  be->most_parts.s = c->F / part + 1;
  be->max_tokens = c->max_tokens;
  be->offload = o->train ? c->offload : OFFLOAD_NONE;
  be->offload_layers = c->offload_layers;
}

static bool keeps_scores(const OpsConfig *c, const GpuOptions *o) {
  return o->train &&
         (o->deterministic || (c->usual_documents > 0 && documents_need_deterministic(c->d)));
}

DocumentCalls document_calls(const OpsConfig *c, const GpuOptions *o) {
  const int64_t usual = c->usual_documents, longest = (c->longest_document + 127) / 128 * 128;
  if (usual == 0) return (DocumentCalls){0};
  int64_t per_call = usual;
  if (keeps_scores(c, o)) {
    const int64_t windows = c->max_tokens / longest, most = windows > 1 ? windows : 1;
    if (per_call > most) per_call = most;
  }
  return (DocumentCalls){per_call, longest, (usual + per_call - 1) / per_call};
}

// Of the deterministic backward of attention.
static size_t scores_bytes(const OpsConfig *c, const GpuOptions *o) {
  const DocumentCalls calls = document_calls(c, o);
  const int64_t B = calls.usual > 0 ? calls.per_call : o->batch,
                T = calls.usual > 0 ? calls.longest : o->seq;
  return keeps_scores(c, o) ? (size_t)(B * c->H * T * T) * BF16 : 0;
}

Backend backend_gpu_outline(const OpsConfig *c, const GpuOptions *o) {
  const size_t F = (size_t)c->F, Hd = (size_t)(c->H * c->d),
               loss_parts = (size_t)(c->V / narrowest_tile(o) + 1);
  Backend be = {.name = "GPU"};
  backend_gpu_sizes(&be, c, o);
  // Scratch of the SwiGLU's and attention's backward, and two sums of each row of dlogits.
  be.workspace_bytes = (size_t)c->max_tokens * (BF16 * F + 4 * BF16 * Hd) + scores_bytes(c, o) +
                       (size_t)o->loss_tokens * loss_parts * 2 * FP32;
  be.services.list_bytes = muon_bytes; // beside which the tables of the parameters are small
  return be;
}
