// One struct owns the model: its config, its parameters with gradients and optimizer state, its
// activations. Dimension names as in kernels/ops.h.
#pragma once
#include "kernels/ops.h"
#include "model/activations.h"
#include "model/params.h"

typedef struct Llama {
  ModelConfig config;
  RunShape shape;
  Backend *be; // not owned
  int param_count;
  ParamInfo *info;      // [param_count] model/params.c's table
  ParamTensor *tensors; // [param_count] the same order: pointers into the two blocks below
  Acts acts;
  char *params_block; // masters, moments, compute copies
  char *grads_block;
  char *acts_block;
} Llama;

// Allocates everything the run needs on the backend (the sum printed by memory_plan_print); weights
// are not set.
int llama_create(Llama *llama, const ModelConfig *config, const RunShape *shape, Backend *be,
                 Error *err);
void llama_destroy(Llama *llama);

// Random weights (params.h), moments zero, compute copies written.
void llama_init_weights(Llama *llama, uint64_t seed);

// RoPE's angle per position for each of the d/2 pairs, llama3 scaling applied (fresh memory).
// HF transformers, modeling_rope_utils.py, _compute_llama3_parameters; LLaMA-3.1's own scaling.
double *rope_inv_freq(const ModelConfig *config);

// The backend configuration that serves this model: OpsConfig with inv_freq from rope_inv_freq
// (freed by the caller).
OpsConfig llama_ops_config(const ModelConfig *config, const RunShape *shape, int64_t max_positions,
                           int threads);

// A micro-batch. tokens and targets: [B, T] int32 on the host, row-major.
void llama_load_batch(Llama *llama, const int32_t *tokens, const int32_t *targets);
// Forward through the layers: x_final and its sum of squares.
void llama_forward(Llama *llama);
// The loss of the loaded micro-batch is added to the running step's, times scale / tokens:
// validation.
void llama_loss(Llama *llama, double scale);
// lm_head, loss and the whole backward; gradients are added to those there where accumulate.
void llama_loss_backward(Llama *llama, double scale, bool accumulate);
