#include "model/params.h"

#include "base/rng.h"

enum { GLOBALS_BEFORE = 1, PER_LAYER = 6 }; // embed; then attn_norm qkv out mlp_norm gate_up down

int params_count(const ModelConfig *model) {
  return GLOBALS_BEFORE + PER_LAYER * (int)model->num_hidden_layers +
         (model->tie_word_embeddings ? 1 : 2);
}

int param_index(const ModelConfig *model, ParamKind kind, int layer) {
  const int after = GLOBALS_BEFORE + PER_LAYER * (int)model->num_hidden_layers;
  switch (kind) {
  case PARAM_EMBED:
    return 0;
  case PARAM_FINAL_NORM:
    return after;
  case PARAM_LM_HEAD:
    return model->tie_word_embeddings ? 0 : after + 1;
  default:
    return GLOBALS_BEFORE + PER_LAYER * layer + (int)(kind - PARAM_ATTN_NORM);
  }
}

static ParamInfo describe(const ModelConfig *c, ParamKind kind, int layer) {
  const int64_t D = c->hidden_size, F = c->intermediate_size, V = c->vocab_size, d = c->head_dim;
  const int64_t H = c->num_attention_heads, KV = c->num_key_value_heads;
  const int final_norm = param_index(c, PARAM_FINAL_NORM, -1);
  ParamInfo p = {.kind = kind, .layer = layer, .rows = 1, .cols = D, .norm = -1};
  switch (kind) {
  case PARAM_EMBED:
    p.rows = V;
    p.plain = true;
    if (c->tie_word_embeddings) p.norm = final_norm;
    break;
  case PARAM_QKV:
    p.rows = (H + 2 * KV) * d;
    p.norm = param_index(c, PARAM_ATTN_NORM, layer);
    break;
  case PARAM_OUT:
    p.rows = D, p.cols = H * d;
    p.plain = true;
    break;
  case PARAM_GATE_UP:
    p.rows = 2 * F;
    p.norm = param_index(c, PARAM_MLP_NORM, layer);
    break;
  case PARAM_DOWN:
    p.rows = D, p.cols = F;
    p.plain = true;
    break;
  case PARAM_LM_HEAD:
    p.rows = V;
    p.norm = final_norm;
    break;
  case PARAM_ATTN_NORM:
  case PARAM_MLP_NORM:
  case PARAM_FINAL_NORM:
    return p; // a vector: read through the folded copies only, never decayed
  }
  p.decay = true;
  return p;
}

void params_table(const ModelConfig *model, ParamInfo *table) {
  table[0] = describe(model, PARAM_EMBED, -1);
  for (int l = 0; l < (int)model->num_hidden_layers; l++)
    for (int k = PARAM_ATTN_NORM; k <= PARAM_DOWN; k++)
      table[param_index(model, (ParamKind)k, l)] = describe(model, (ParamKind)k, l);
  table[param_index(model, PARAM_FINAL_NORM, -1)] = describe(model, PARAM_FINAL_NORM, -1);
  if (!model->tie_word_embeddings)
    table[param_index(model, PARAM_LM_HEAD, -1)] = describe(model, PARAM_LM_HEAD, -1);
}

void param_init(const ModelConfig *model, uint64_t seed, const char *hf_name, bool norm,
                int64_t first, int64_t count, float *values) {
  const uint64_t key = rng_key(seed, hf_name);
  for (int64_t i = 0; i < count; i++)
    values[i] =
        norm ? 1 : (float)(model->initializer_range * rng_normal(key, (uint64_t)(first + i)));
}
