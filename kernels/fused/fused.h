// The fused GPU backend: GEMMs of the layers' forward and backward pass with something around them
// are one kernel each, a program (program.h), and so are lm_head's dgrad and, where it pays, the
// loss. Backend.kinds says which operations run fused; the others are the unfused backend's, whose
// state is the first part of this one.
#pragma once
#include "kernels/fused/kernels.h"
#include "kernels/unfused/unfused.h"

typedef struct Fused {
  Unfused unfused; // first: a Backend * of this backend is a Fused *
  FusedKernels kernels;
  // Angles for programs/rope.cu: those of all positions, and scratch for batches whose sequences
  // are not whole steps.
  uint16_t *rope;          // [max_positions, rope_table_cols(d)]
  uint16_t *rope_periodic; // [max_positions + 63, rope_table_cols(d)]
  // Memory of the head (kernels.h), for the largest M of head_loss; NULL where no program runs it.
  struct {
    RowStat aim, sum, entropy;
    stat_t *u; // [the same M], where dlogits are cast
  } head;
} Fused;

static inline Fused *fused_of(Backend *be) {
  return (Fused *)be;
}

// ---- operations.c
QkvOp fused_qkv;
ResidualOp fused_residual;
GateUpOp fused_gate_up;
HeadLossOp fused_head_loss;
HeadDgradOp fused_head_dgrad;
NormDgradOp fused_norm_dgrad;
// Cuda.orthogonalize by programs, where these run them: sides are whole 16 bytes, as programs need.
void fused_orthogonalize(Cuda *c, const MuonLaunch *launch);
DownDgradOp fused_down_dgrad;
