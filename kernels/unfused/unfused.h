// The unfused GPU backend: cuBLASLt's GEMMs, and a kernel of its own for what is around each of
// them. The fused backend starts with an Unfused and uses these operations where it has no program.
#pragma once
#include "kernels/cuda/cuda.h"
#include "kernels/unfused/kernels.h"

typedef struct Unfused {
  Cuda cuda; // first: a Backend * of this backend is an Unfused *
  // Scratch for the GEMMs of down_dgrad and norm_dgrad, [max_tokens, F or D]. NULL: they run fused.
  act_t *product;
} Unfused;

static inline Unfused *unfused_of(Backend *be) {
  return (Unfused *)be;
}

// NULL and a sentence on failure, as for backend_gpu_create; options->kernels is not read.
Backend *backend_unfused_create(const OpsConfig *config, const GpuOptions *options, Error *err);

// As cuda_open, with this backend's operations set and their scratch taken.
int unfused_open(Unfused *u, const OpsConfig *config, const GpuOptions *options, Error *err);

QkvOp unfused_qkv;
QkvTokenOp unfused_qkv_token;
ResidualOp unfused_residual;
GateUpOp unfused_gate_up;
RowLogitsOp unfused_row_logits;
HeadLossOp unfused_head_loss;
HeadDgradOp unfused_head_dgrad;
NormDgradOp unfused_norm_dgrad;
DownDgradOp unfused_down_dgrad;
RopeBackwardOp unfused_rope_backward;
