// The one table of parameter tensors. Gradients, optimizer state, the memory plan, initialisation
// and files all derive from it.
#pragma once
#include "kernels/ops.h"
#include "model/config/config.h"

typedef enum ParamKind {
  PARAM_EMBED,      // [V, D]   plain; tied: folded with the final norm too
  PARAM_ATTN_NORM,  // [1, D]
  PARAM_QKV,        // [R, D]   folded with attn_norm; rows of q and k heads in RoPE pairs
  PARAM_OUT,        // [D, H d]
  PARAM_MLP_NORM,   // [1, D]
  PARAM_GATE_UP,    // [2F, D]  folded with mlp_norm; rows alternate gate and up
  PARAM_DOWN,       // [D, F]
  PARAM_FINAL_NORM, // [1, D]
  PARAM_LM_HEAD,    // [V, D]   folded with final_norm; absent when tied
} ParamKind;

int params_count(const ModelConfig *model);
// Fills list[params_count(model)] with what is known without memory: rows, cols, norm and decay,
// which is true of matrices alone. Order: embed, per layer attn_norm qkv out mlp_norm gate_up down,
// final_norm, lm_head.
void params_table(const ModelConfig *model, ParamTensor *list);

// Indices into the list; layer: -1 outside the layers.
int param_index(const ModelConfig *model, ParamKind kind, int64_t layer);

// Initial values of HF tensor `hf_name`, element range [first, first + count): 1 for norms, else
// normal with standard deviation initializer_range. Depends on (seed, name, element) alone.
void param_init(const ModelConfig *model, uint64_t seed, const char *hf_name, bool norm,
                int64_t first, int64_t count, float *values);
