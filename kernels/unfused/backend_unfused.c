#include "base/memory.h"
#include "kernels/unfused/unfused.h"

// Columns of the scratch, for the operations that no fused kernel runs.
static int64_t product_cols(const Backend *be, const OpsConfig *c) {
  static const Operation norm_dgrads[] = {OP_LM_HEAD_DGRAD, OP_GATE_UP_DGRAD, OP_QKV_DGRAD};
  int64_t cols = be->kinds[OP_DOWN_DGRAD] == KERNEL_FUSED ? 0 : c->F;
  for (size_t i = 0; i < sizeof norm_dgrads / sizeof *norm_dgrads; i++)
    if (be->kinds[norm_dgrads[i]] != KERNEL_FUSED && cols < c->D) cols = c->D;
  return cols;
}

int unfused_open(Unfused *u, const OpsConfig *config, const GpuOptions *options, Error *err) {
  Backend *be = &u->cuda.base;
  if (cuda_open(&u->cuda, config, options, err)) return -1;
  be->qkv = unfused_qkv;
  be->qkv_token = unfused_qkv_token;
  be->residual = unfused_residual;
  be->gate_up = unfused_gate_up;
  be->row_logits = unfused_row_logits;
  be->head_loss = unfused_head_loss;
  be->head_dgrad = unfused_head_dgrad;
  be->norm_dgrad = unfused_norm_dgrad;
  be->down_dgrad = unfused_down_dgrad;
  be->rope_backward = unfused_rope_backward;
  be->most_parts.sumsq = be->most_parts.s = 1;
  const int64_t elements = config->max_tokens * product_cols(be, config);
  if (!options->train || elements == 0) return 0;
  u->product = cuda_take(&u->cuda, (size_t)elements * sizeof(bf16_bits), err);
  return u->product ? 0 : -1;
}

Backend *backend_unfused_create(const OpsConfig *config, const GpuOptions *options, Error *err) {
  Unfused *u = xcalloc(1, sizeof *u);
  Backend *be = &u->cuda.base;
  for (int i = 0; i < OPERATION_COUNT; i++) be->kinds[i] = KERNEL_UNFUSED;
  if (unfused_open(u, config, options, err) == 0 && cuda_ready(&u->cuda, "cuda, unfused", err) == 0)
    return be;
  cuda_destroy(be);
  return NULL;
}
