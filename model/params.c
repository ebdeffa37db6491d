#include "model/params.h"

#include "base/rng.h"

enum { GLOBALS_BEFORE = 1, PER_LAYER = 6 }; // embed; then attn_norm qkv out mlp_norm gate_up down

int params_count(const ModelConfig *model) {
  return GLOBALS_BEFORE + PER_LAYER * (int)model->num_hidden_layers +
         (model->tie_word_embeddings ? 1 : 2);
}

int param_index(const ModelConfig *model, ParamKind kind, int64_t layer) {
  const int after = GLOBALS_BEFORE + PER_LAYER * (int)model->num_hidden_layers;
  if (kind == PARAM_FINAL_NORM) return after;
  if (kind == PARAM_LM_HEAD && !model->tie_word_embeddings) return after + 1;
  if (kind == PARAM_EMBED || kind == PARAM_LM_HEAD) return 0;
  return GLOBALS_BEFORE + PER_LAYER * (int)layer + (int)(kind - PARAM_ATTN_NORM);
}

static ParamTensor matrix(int64_t rows, int64_t cols, int norm) {
  return (ParamTensor){.rows = rows, .cols = cols, .norm = norm, .decay = true};
}

void params_table(const ModelConfig *c, ParamTensor *list) {
  const int64_t D = c->hidden_size, F = c->intermediate_size, V = c->vocab_size, d = c->head_dim;
  const int64_t H = c->num_attention_heads, KV = c->num_key_value_heads;
  const int final_norm = param_index(c, PARAM_FINAL_NORM, -1);
  const ParamTensor vector = {.rows = 1, .cols = D, .norm = -1};
  for (int64_t l = 0; l < c->num_hidden_layers; l++) {
    const int attn_norm = param_index(c, PARAM_ATTN_NORM, l);
    const int mlp_norm = param_index(c, PARAM_MLP_NORM, l);
    ParamTensor *of_layer = list + attn_norm - PARAM_ATTN_NORM; // by kind
    of_layer[PARAM_ATTN_NORM] = of_layer[PARAM_MLP_NORM] = vector;
    of_layer[PARAM_QKV] = matrix((H + 2 * KV) * d, D, attn_norm);
    of_layer[PARAM_OUT] = matrix(D, H * d, -1);
    of_layer[PARAM_GATE_UP] = matrix(2 * F, D, mlp_norm);
    of_layer[PARAM_DOWN] = matrix(D, F, -1);
  }
  list[final_norm] = vector;
  list[param_index(c, PARAM_LM_HEAD, -1)] = matrix(V, D, final_norm); // the embedding, if tied
  if (!c->tie_word_embeddings) list[param_index(c, PARAM_EMBED, -1)] = matrix(V, D, -1);
}

void param_init(const ModelConfig *model, uint64_t seed, const char *hf_name, bool norm,
                int64_t first, int64_t count, float *values) {
  const uint64_t key = rng_key(seed, hf_name);
  for (int64_t i = 0; i < count; i++)
    values[i] =
        norm ? 1 : (float)(model->initializer_range * rng_normal(key, (uint64_t)(first + i)));
}
