// The fused CUDA backend: every product of the forward and backward pass with something around it
// is one kernel, a program (program.h). What remains is the unfused backend's: attention, the pass
// after its backward, weight gradients and other bare products, embedding, loss gradient and
// update.
#pragma once
#include "kernels/unfused/backend_unfused.h"

// As backend_unfused_create (elsewhere is not read). Needs compute
// capability 9.0, and hidden_size, intermediate_size and head_dim in multiples of 8; where
// vocab_size is not one, the output layer runs unfused, which the description says.
Backend *backend_fused_create(const OpsConfig *config, const UnfusedOptions *options, Error *err);

// 0 if the current GPU and this model are such, else -1 and why not.
int backend_fused_supported(const OpsConfig *config, Error *err);
