#include "kernels/fused/backend_fused.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/check.h"
#include "kernels/fused/state.h"

enum {
  NARROWEST_TILE = 128, // columns: no tile shape leaves more parts a row
  LONG_HEAD = 2048,     // hidden_size from which the logits' epilogue hides behind their product
};

static int check_model(const OpsConfig *c, Error *err) {
  const struct {
    const char *name;
    int64_t value;
  } sizes[] = {{"hidden_size", c->D}, {"intermediate_size", c->F}, {"head_dim", c->d}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i].value % 8 != 0)
      return error_set(err,
                       "model.%s is %lld, but fused kernels take multiples of 8; change it, or use "
                       "backend.kernels \"unfused\"",
                       sizes[i].name, (long long)sizes[i].value);
  return 0;
}

int backend_fused_supported(const OpsConfig *config, Error *err) {
  int device, major, minor;
  CUDA_TRY(err, cudaGetDevice(&device));
  CUDA_TRY(err, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CUDA_TRY(err, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return fused_kernels_check(major, minor, err) || check_model(config, err) ? -1 : 0;
}

static int make_workspace(Fused *f, Error *err) {
  const OpsConfig *c = &f->twin.config;
  const size_t rope_row = (size_t)rope_table_cols(c->d) * sizeof(uint16_t);
  Unfused *u = &f->twin;
  if (unfused_take(u, (void **)&f->rope, (size_t)c->max_positions * rope_row, err) ||
      unfused_take(u, (void **)&f->rope_periodic, (size_t)(c->max_positions + 63) * rope_row, err))
    return -1;
  fused_rope_table(c->max_positions, c->d, c->max_positions, f->twin.rope, f->rope,
                   f->twin.gpu.stream);
  f->head = fused_takes(f, PROGRAM_LOGITS, c->V, c->D) &&
            (f->twin.options.every_program || c->D >= LONG_HEAD);
  f->head_gradient = f->head && f->twin.options.every_program;
  if (!f->head) return 0;
  f->softmax_stride = f->twin.options.loss_tokens > 0 ? f->twin.options.loss_tokens : c->max_tokens;
  f->head_tile = tile_choose(PROGRAM_LOGITS, f->softmax_stride, c->V, c->D);
  return unfused_take(u, (void **)&f->softmax,
                      (size_t)(tile_parts(f->head_tile, c->V) * f->softmax_stride) * sizeof(MaxSum),
                      err);
}

static void fused_close(Fused *f) {
  if (f->twin.gpu.stream) CUDA_CHECK(cudaStreamSynchronize(f->twin.gpu.stream));
  CUDA_CHECK(cudaFree(f->rope));
  CUDA_CHECK(cudaFree(f->rope_periodic));
  CUDA_CHECK(cudaFree(f->softmax));
  unfused_close(&f->twin);
}

static void op_destroy(Backend *be) {
  fused_close(fused_of(be));
  free(be);
}

static void set_operations(Backend *be) {
  be->destroy = op_destroy;
  be->embed = fused_op_embed;
  be->qkv = fused_op_qkv;
  be->residual = fused_op_residual;
  be->gate_up = fused_op_gate_up;
  be->norm_dgrad = fused_op_norm_dgrad;
  be->down_dgrad = fused_op_down_dgrad;
  be->lm_head = fused_op_lm_head;
  be->head_loss = fused_op_head_loss;
}

static Elsewhere taken_from_twin(const OpsConfig *c, const UnfusedOptions *o) {
  const int64_t R = packed_width(c);
  return (Elsewhere){.qkv = fused_does(c, o, PROGRAM_ROPE, R, c->D),
                     .out = fused_does(c, o, PROGRAM_RESIDUAL, c->D, c->H * c->d),
                     .mlp = fused_does(c, o, PROGRAM_SWIGLU, 2 * c->F, c->D),
                     .down = fused_does(c, o, PROGRAM_RESIDUAL, c->D, c->F),
                     .qkv_dgrad = fused_does(c, o, PROGRAM_NORM_DGRAD_RESIDUAL, c->D, R),
                     .gate_up_dgrad = fused_does(c, o, PROGRAM_NORM_DGRAD_RESIDUAL, c->D, 2 * c->F),
                     .head_dgrad = fused_does(c, o, PROGRAM_NORM_DGRAD, c->D, c->V)};
}

static void describe(Fused *f) {
  Backend *be = &f->twin.base;
  const OpsConfig *c = &f->twin.config;
  const Elsewhere *e = &f->twin.options.elsewhere;
  const struct {
    const char *name;
    bool fused;
  } operations[] = {{"qkv", e->qkv},
                    {"out", e->out},
                    {"gate_up", e->mlp},
                    {"down", e->down},
                    {"qkv_dgrad", e->qkv_dgrad},
                    {"gate_up_dgrad", e->gate_up_dgrad},
                    {"lm_head_dgrad", e->head_dgrad}};
  unfused_describe(&f->twin);
  if (f->head) be->kinds[OP_VALIDATION_LOSS] = KERNEL_FUSED;
  if (f->head_gradient) be->kinds[OP_HEAD_LOSS] = KERNEL_FUSED;
  be->name = "cuda, fused";
  be->parts.sumsq = (c->D + NARROWEST_TILE - 1) / NARROWEST_TILE;
  be->parts.gate_up = (c->F + NARROWEST_TILE - 1) / NARROWEST_TILE;
  const char *lead = "; unfused, for their width:";
  for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
    if (operations[i].fused) continue;
    const size_t used = strlen(be->description);
    snprintf(be->description + used, sizeof be->description - used, "%s %s", lead,
             operations[i].name);
    lead = ",";
  }
}

Backend *backend_fused_create(const OpsConfig *config, const UnfusedOptions *options, Error *err) {
  if (check_model(config, err)) return NULL;
  Fused *f = xcalloc(1, sizeof *f);
  UnfusedOptions twin = *options;
  twin.elsewhere = taken_from_twin(config, options);
  if (unfused_open(&f->twin, config, &twin, err)) {
    free(f);
    return NULL;
  }
  if (fused_kernels_open(&f->kernels, &f->twin.gpu, err) || make_workspace(f, err)) {
    fused_close(f);
    free(f);
    return NULL;
  }
  set_operations(&f->twin.base);
  describe(f);
  return &f->twin.base;
}
