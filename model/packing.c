#include "model/packing.h"

#include <assert.h>
#include <stdio.h>

#include "kernels/math.h"

int hf_tensor_count(const ModelConfig *model) {
  return 9 * (int)model->num_hidden_layers + (model->tie_word_embeddings ? 2 : 3);
}

// layer: -1 outside the layers.
static void add(HfTensor **at, const ModelConfig *c, int64_t layer, const char *name,
                ParamKind kind, int part, int rank, int64_t rows, int64_t cols) {
  HfTensor *t = (*at)++;
  *t = (HfTensor){"", kind, param_index(c, kind, layer), part, rank, rows, cols};
  if (layer < 0)
    snprintf(t->name, sizeof t->name, "%s.weight", name);
  else
    snprintf(t->name, sizeof t->name, "model.layers.%lld.%s.weight", (long long)layer, name);
}

void hf_tensor_list(const ModelConfig *c, HfTensor *list) {
  HfTensor *at = list;
  const int64_t D = c->hidden_size, F = c->intermediate_size, V = c->vocab_size, d = c->head_dim;
  const int64_t Hd = c->num_attention_heads * d, KVd = c->num_key_value_heads * d;
  if (!c->tie_word_embeddings) add(&at, c, -1, "lm_head", PARAM_LM_HEAD, 0, 2, V, D);
  add(&at, c, -1, "model.embed_tokens", PARAM_EMBED, 0, 2, V, D);
  for (int64_t l = 0; l < c->num_hidden_layers; l++) {
    add(&at, c, l, "input_layernorm", PARAM_ATTN_NORM, 0, 1, 1, D);
    add(&at, c, l, "mlp.down_proj", PARAM_DOWN, 0, 2, D, F);
    add(&at, c, l, "mlp.gate_proj", PARAM_GATE_UP, 0, 2, F, D);
    add(&at, c, l, "mlp.up_proj", PARAM_GATE_UP, 1, 2, F, D);
    add(&at, c, l, "post_attention_layernorm", PARAM_MLP_NORM, 0, 1, 1, D);
    add(&at, c, l, "self_attn.k_proj", PARAM_QKV, 1, 2, KVd, D);
    add(&at, c, l, "self_attn.o_proj", PARAM_OUT, 0, 2, D, Hd);
    add(&at, c, l, "self_attn.q_proj", PARAM_QKV, 0, 2, Hd, D);
    add(&at, c, l, "self_attn.v_proj", PARAM_QKV, 2, 2, KVd, D);
  }
  add(&at, c, -1, "model.norm", PARAM_FINAL_NORM, 0, 1, 1, D);
  assert(at - list == hf_tensor_count(c));
}

int64_t packed_row(const ModelConfig *c, const HfTensor *t, int64_t row) {
  if (t->kind == PARAM_GATE_UP) return 2 * pair_of_feature(row, c->intermediate_size) + t->part;
  if (t->kind != PARAM_QKV) return row;
  const int64_t d = c->head_dim, half = d / 2, head = row / d, j = row % d;
  const int64_t first_head[] = {0, c->num_attention_heads,
                                c->num_attention_heads + c->num_key_value_heads};
  const int64_t paired = t->part == 2 ? j : j < half ? 2 * j : 2 * (j - half) + 1;
  return (first_head[t->part] + head) * d + paired;
}
