// The state of the fused backend, and its operations by file.
#pragma once
#include "kernels/fused/fused.h"
#include "kernels/unfused/state.h"

typedef struct Fused {
  Unfused twin; // first: a Backend * of this backend is a Fused *, and for the twin's operations an
                // Unfused *
  FusedKernels kernels;
  // Angles for programs/rope.cu: of all positions, and scratch for batches of sequences that are
  // not whole steps.
  uint16_t *rope;          // [max_positions, rope_table_cols(d)]
  uint16_t *rope_periodic; // [max_positions + 63, rope_table_cols(d)]
  MaxSum *softmax;         // [tiles of V, softmax_stride]
  int64_t softmax_stride;  // the largest M of head_loss
  TileShape head_tile;
  bool head, head_gradient; // logits are the program's; in training, too
} Fused;

static inline Fused *fused_of(Backend *be) {
  return (Fused *)be;
}

// Whether the fused kernel does a product, or the twin. The same at every call: M is the run's.
static inline bool fused_does(const OpsConfig *c, const UnfusedOptions *o, ProgramName name,
                              int64_t N, int64_t K) {
  return N % 8 == 0 && K % 8 == 0 && (o->every_program || tile_pays(name, c->max_tokens, N, K));
}
static inline bool fused_takes(const Fused *f, ProgramName name, int64_t N, int64_t K) {
  return fused_does(&f->twin.config, &f->twin.options, name, N, K);
}

// What every program with r gets.
static inline ProgramArgs norm_args(const Fused *f, const stat_t *sumsq) {
  const OpsConfig *c = &f->twin.config;
  return (ProgramArgs){
      .in = {{(float *)(uintptr_t)sumsq, c->max_tokens, (int32_t)f->twin.base.parts.sumsq}},
      .inverse_D = (float)(1 / (double)c->D),
      .eps = (float)c->rms_norm_eps};
}
static inline void run_program(const Fused *f, ProgramName name, const ProgramCall *call) {
  fused_launch(&f->kernels.programs[name], tile_choose(name, call->M, call->N, call->K), call,
               f->twin.gpu.stream);
}

// What a twin's operation left in the first of a statistic's parts is the whole: the others become
// 0.
void fused_clear_other_parts(const Fused *f, int64_t M, int64_t parts, stat_t *statistic);

// forward_fused.c, backward_fused.c: kernels/ops.h's operations
void fused_op_embed(Backend *, int64_t, const int32_t *, const act_t *, act_t *, stat_t *);
void fused_op_qkv(Backend *, int64_t, int64_t, int64_t, const act_t *, const stat_t *,
                  const act_t *, act_t *);
void fused_op_residual(Backend *, int64_t, int64_t, const act_t *, const act_t *, const act_t *,
                       act_t *, stat_t *);
void fused_op_gate_up(Backend *, int64_t, const act_t *, const stat_t *, const act_t *, act_t *,
                      act_t *);
void fused_op_lm_head(Backend *, int64_t, const act_t *, const stat_t *, const act_t *, act_t *);
void fused_op_head_loss(Backend *, int64_t, const act_t *, const stat_t *, const act_t *,
                        const int32_t *, act_t *, double, stat_t *);
void fused_op_norm_dgrad(Backend *, int64_t, int64_t, const act_t *, const act_t *, const act_t *,
                         const stat_t *, const stat_t *, int64_t, const act_t *, act_t *);
void fused_op_down_dgrad(Backend *, int64_t, const act_t *, const act_t *, const act_t *,
                         const stat_t *, act_t *, stat_t *, act_t *);
