#include "model/packing.h"

#include <assert.h>
#include <stdio.h>

#include "kernels/program_math.h"

int hf_tensor_count(const ModelConfig *model) {
  return 9 * (int)model->num_hidden_layers + (model->tie_word_embeddings ? 2 : 3);
}

static void add(HfTensor **at, const char *name, int param, int part, int rank, int64_t rows,
                int64_t cols) {
  HfTensor *t = (*at)++;
  *t = (HfTensor){.param = param, .part = part, .rank = rank, .rows = rows, .cols = cols};
  snprintf(t->name, sizeof t->name, "%s.weight", name);
}

static void add_layer(HfTensor **at, const ModelConfig *c, int l) {
  const int64_t D = c->hidden_size, F = c->intermediate_size, d = c->head_dim;
  const int64_t Hd = c->num_attention_heads * d, KVd = c->num_key_value_heads * d;
  const struct {
    const char *name;
    ParamKind kind;
    int part, rank;
    int64_t rows, cols;
  } tensors[] = {
      {"input_layernorm", PARAM_ATTN_NORM, 0, 1, 1, D},
      {"mlp.down_proj", PARAM_DOWN, 0, 2, D, F},
      {"mlp.gate_proj", PARAM_GATE_UP, 0, 2, F, D},
      {"mlp.up_proj", PARAM_GATE_UP, 1, 2, F, D},
      {"post_attention_layernorm", PARAM_MLP_NORM, 0, 1, 1, D},
      {"self_attn.k_proj", PARAM_QKV, 1, 2, KVd, D},
      {"self_attn.o_proj", PARAM_OUT, 0, 2, D, Hd},
      {"self_attn.q_proj", PARAM_QKV, 0, 2, Hd, D},
      {"self_attn.v_proj", PARAM_QKV, 2, 2, KVd, D},
  };
  for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
    char name[64];
    snprintf(name, sizeof name, "model.layers.%d.%s", l, tensors[i].name);
    add(at, name, param_index(c, tensors[i].kind, l), tensors[i].part, tensors[i].rank,
        tensors[i].rows, tensors[i].cols);
  }
}

void hf_tensor_list(const ModelConfig *c, HfTensor *list) {
  HfTensor *at = list;
  const int64_t D = c->hidden_size, V = c->vocab_size;
  if (!c->tie_word_embeddings) add(&at, "lm_head", param_index(c, PARAM_LM_HEAD, -1), 0, 2, V, D);
  add(&at, "model.embed_tokens", param_index(c, PARAM_EMBED, -1), 0, 2, V, D);
  for (int l = 0; l < (int)c->num_hidden_layers; l++) add_layer(&at, c, l);
  add(&at, "model.norm", param_index(c, PARAM_FINAL_NORM, -1), 0, 1, 1, D);
  assert(at - list == hf_tensor_count(c));
}

int64_t layout_packed_row(const ModelConfig *c, const HfTensor *t, int64_t row) {
  const int offset = t->param - param_index(c, PARAM_ATTN_NORM, 0);
  const int kind = PARAM_ATTN_NORM + offset % (PARAM_DOWN - PARAM_ATTN_NORM + 1);
  const bool in_layer = t->param > 0 && t->param < param_index(c, PARAM_FINAL_NORM, -1);
  if (in_layer && kind == PARAM_QKV) {
    const int64_t d = c->head_dim, half = d / 2, head = row / d, j = row % d;
    const int64_t first_head[] = {0, c->num_attention_heads,
                                  c->num_attention_heads + c->num_key_value_heads};
    const int64_t paired = t->part == 2 ? j : j < half ? 2 * j : 2 * (j - half) + 1;
    return (first_head[t->part] + head) * d + paired;
  }
  if (in_layer && kind == PARAM_GATE_UP)
    return 2 * pair_of_feature(row, c->intermediate_size) + t->part;
  return row;
}
