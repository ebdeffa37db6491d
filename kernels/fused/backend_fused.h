// The fused CUDA backend: products of the layers' forward and backward pass with something around
// them are one kernel each, a program (program.h), and so is lm_head's dgrad, and at large
// hidden_size the loss of a validation. What remains is the unfused backend's: attention, the pass
// after its backward, weight gradients and other bare products, embedding, the loss of training,
// the update; and products whose width does not fit the tiles.
#pragma once
#include "kernels/unfused/backend_unfused.h"

// As backend_unfused_create (elsewhere is not read). Needs compute capability 9.0, and hidden_size,
// intermediate_size and head_dim in multiples of 8; where vocab_size is not one, the whole output
// layer is the unfused backend's. The description names what is.
Backend *backend_fused_create(const OpsConfig *config, const UnfusedOptions *options, Error *err);

// 0 if the current GPU and this model are such, else -1 and why not.
int backend_fused_supported(const OpsConfig *config, Error *err);
