#include "model/scalings.h"

#include <stdio.h>

#include "model/params.h"

int scaling_count(const ModelConfig *c) {
  return scaling_index(c, c->num_hidden_layers, SCALING_DLOGITS) + 1;
}

int scaling_index(const ModelConfig *c, int64_t layer, ScalingOf of) {
  return params_count(c) + SCALING_KINDS * (int)layer + (int)of;
}

// The residual stream is scaled row by row. dlogits lie between -1 and 1 times what head_loss
// multiplies them by, which the backend takes account of.
void scaling_kinds(const ModelConfig *c, ScalingKind *kinds) {
  const int64_t L = c->num_hidden_layers;
  for (int i = 0; i < scaling_count(c); i++) kinds[i] = (ScalingKind){FP8_E4M3, 0};
  for (int64_t l = 0; l <= L; l++) {
    kinds[scaling_index(c, l, SCALING_X)].fixed = 1;
    if (l < L) kinds[scaling_index(c, l, SCALING_X1)].fixed = 1;
  }
  kinds[scaling_index(c, L, SCALING_DLOGITS)].fixed = 1;
}

ScalingName scaling_name(const ModelConfig *c, int index) {
  static const char *const params[] = {"attention norm", "qkv weight",     "out weight",
                                       "mlp norm",       "gate_up weight", "down weight"};
  static const char *const kinds[] = {"x",   "dx",  "attention output", "x1", "y", "dz",
                                      "dx1", "dqkv"};
  ScalingName name = {""};
  const int at = index - params_count(c), first = param_index(c, PARAM_ATTN_NORM, 0);
  const int64_t L = c->num_hidden_layers, of_layer = at / SCALING_KINDS;
  if (at >= 0 && of_layer < L)
    snprintf(name.text, sizeof name.text, "%s of layer %lld", kinds[at % SCALING_KINDS],
             (long long)of_layer);
  else if (at >= 0)
    snprintf(name.text, sizeof name.text, "%s",
             at % SCALING_KINDS == SCALING_DLOGITS ? "dlogits"
             : at % SCALING_KINDS == SCALING_X     ? "final x"
                                                   : "final dx");
  else if (index >= first && index < param_index(c, PARAM_FINAL_NORM, -1))
    snprintf(name.text, sizeof name.text, "%s of layer %d", params[(index - first) % 6],
             (index - first) / 6);
  else if (index == 0 && !c->tie_word_embeddings)
    snprintf(name.text, sizeof name.text, "embedding");
  else
    snprintf(name.text, sizeof name.text,
             index == param_index(c, PARAM_FINAL_NORM, -1) ? "final norm" : "lm_head weight");
  return name;
}
