// Hugging Face LlamaConfig: reading every spelling that transformers 4 and 5 write, writing one
// that both read, and what follows from a model's sizes.
#include <stdlib.h>
#include <string.h>
#include "model/config/keys.h"
#include "data/tokenizer.h"

// What LlamaConfig can say and this trainer does only in one way.
static const struct {
  const char *name, *value; // the only value, as JSON; null or absent means the same
  bool written;             // into our config.json
} fixed_keys[] = {
    {"model_type", "\"llama\"", true},      {"hidden_act", "\"silu\"", true},
    {"attention_bias", "false", true},      {"mlp_bias", "false", true},
    {"attention_dropout", "0", true},       {"partial_rotary_factor", "1", false},
    {"quantization_config", "null", false},
};
enum { FIXED_KEYS = sizeof fixed_keys / sizeof *fixed_keys };

static int check_fixed(KeyReader *r, const cJSON *item, const char *prefix) {
  for (int i = 0; i < FIXED_KEYS; i++) {
    if (strcmp(fixed_keys[i].name, item->string) != 0 || cJSON_IsNull(item)) continue;
    cJSON *only = cJSON_Parse(fixed_keys[i].value);
    const bool same = cJSON_Compare(item, only, true);
    cJSON_Delete(only);
    if (same) return 0;
    JsonText shown = {0};
    json_append_value(&shown, item);
    error_set(r->err, "%s: %s%s is %s, but only %s is supported", r->where, prefix, item->string,
              shown.text, fixed_keys[i].value);
    free(shown.text);
    return -1;
  }
  return 0;
}

// transformers 5 keeps rope_theta inside rope_parameters; a file may have it in both places.
static int read_inner_theta(KeyReader *r, const cJSON *value, const char *name) {
  const Key *key = key_find("model", "rope_theta");
  const bool given = r->given[key - config_keys];
  const double outer = r->config->model.rope_theta;
  if (key_set(r, key, value)) return -1;
  if (given && outer != r->config->model.rope_theta)
    return error_set(r->err, "%s: rope_theta is %g, but %s.rope_theta is %g; keep one of them",
                     r->where, outer, name, r->config->model.rope_theta);
  return 0;
}

static int read_rope_key(KeyReader *r, const cJSON *item, const char *name) {
  const Key *type = key_find("model.rope_scaling", "rope_type");
  const Key *key = key_find("model.rope_scaling", item->string);
  if (strcmp(item->string, "type") == 0) key = type; // transformers before 4.43
  if (key == type && r->given[type - config_keys]) { // both spellings
    const RopeType first = r->config->model.rope_scaling.type;
    if (key_set(r, type, item)) return -1;
    if (first == r->config->model.rope_scaling.type) return 0;
    return error_set(r->err, "%s: %s.type and %s.rope_type differ; keep one of them", r->where,
                     name, name);
  }
  if (key) return key_set(r, key, item);
  if (strcmp(item->string, "rope_theta") == 0) return read_inner_theta(r, item, name);
  if (strcmp(item->string, "partial_rotary_factor") == 0) return check_fixed(r, item, "");
  return key_unknown(r, "model.rope_scaling", item->string);
}

int model_read_rope(KeyReader *r, const cJSON *value, const char *name) {
  for (int i = 0; i < config_key_count; i++)
    if (strcmp(config_keys[i].section, "model.rope_scaling") == 0) r->given[i] = false;
  memset(&r->config->model.rope_scaling, 0, sizeof r->config->model.rope_scaling);
  if (cJSON_IsNull(value)) return 0;
  if (!cJSON_IsObject(value))
    return error_set(r->err, "%s: %s must be null or an object with rope_type and factor", r->where,
                     name);
  if (keys_unique(r, value, name)) return -1;
  for (const cJSON *item = value->child; item; item = item->next)
    if (read_rope_key(r, item, name)) return -1;
  const bool has_type = r->given[key_find("model.rope_scaling", "rope_type") - config_keys];
  if (!has_type && r->given[key_find("model.rope_scaling", "factor") - config_keys])
    return error_set(r->err,
                     "%s: %s has a factor but no rope_type; it must be \"default\" or \"llama3\"",
                     r->where, name);
  return 0;
}

static bool is_rope(const char *name) {
  return strcmp(name, "rope_scaling") == 0 || strcmp(name, "rope_parameters") == 0;
}

// LlamaConfig's defaults where they differ from ours, which are LLaMA-3's.
static int fill_hugging_face_defaults(KeyReader *r) {
  static const char *const defaults[][2] = {{"rms_norm_eps", "1e-06"}, {"rope_theta", "10000"}};
  for (int i = 0; i < 2; i++) {
    const Key *key = key_find("model", defaults[i][0]);
    if (!r->given[key - config_keys] && key_set_json(r, key, defaults[i][1])) return -1;
  }
  return 0;
}

int model_read(KeyReader *r, const cJSON *object) {
  const char *name = r->hugging_face ? "" : "model";
  if (keys_unique(r, object, name)) return -1;
  const cJSON *rope = NULL;
  for (const cJSON *item = object->child; item; item = item->next) {
    const Key *key = key_find("model", item->string);
    if (key && key_set(r, key, item)) return -1;
    if (key) continue;
    if (is_rope(item->string)) {
      if (rope && !cJSON_IsNull(rope) && !cJSON_IsNull(item))
        return error_set(r->err,
                         "%s: rope_scaling and rope_parameters say the same thing; keep "
                         "one of them",
                         r->where);
      if (!rope || cJSON_IsNull(rope)) rope = item;
      continue;
    }
    if (!r->hugging_face) return key_unknown(r, "model", item->string);
    if (check_fixed(r, item, "")) return -1;
  }
  // Last, so that an outer rope_theta is known.
  if (rope && model_read_rope(r, rope, rope->string)) return -1;
  return r->hugging_face ? fill_hugging_face_defaults(r) : 0;
}

// ---- Consistency

static int check_llama3(const ModelConfig *model, const char *where, Error *err) {
  const struct {
    const char *name;
    double value;
  } needed[] = {
      {"factor", model->rope_scaling.factor},
      {"low_freq_factor", model->rope_scaling.low_freq_factor},
      {"high_freq_factor", model->rope_scaling.high_freq_factor},
      {"original_max_position_embeddings",
       (double)model->rope_scaling.original_max_position_embeddings},
  };
  for (int i = 0; i < 4; i++)
    if (needed[i].value == 0) // no valid value is 0
      return error_set(err, "%s: rope_scaling.%s is missing; llama3 scaling needs it", where,
                       needed[i].name);
  if (!(model->rope_scaling.high_freq_factor > model->rope_scaling.low_freq_factor))
    return error_set(err,
                     "%s: rope_scaling.high_freq_factor is %g, but it must be above "
                     "low_freq_factor, which is %g",
                     where, model->rope_scaling.high_freq_factor,
                     model->rope_scaling.low_freq_factor);
  return 0;
}

static int resolve_heads(ModelConfig *model, const char *where, Error *err) {
  const long long D = model->hidden_size, H = model->num_attention_heads;
  if (model->num_key_value_heads == 0) model->num_key_value_heads = H;
  if (H % model->num_key_value_heads != 0)
    return error_set(err,
                     "%s: num_key_value_heads is %lld, but it must divide num_attention_heads, "
                     "which is %lld",
                     where, (long long)model->num_key_value_heads, H);
  if (model->head_dim == 0) {
    if (D % H != 0)
      return error_set(err,
                       "%s: hidden_size is %lld, but it must be a multiple of "
                       "num_attention_heads, which is %lld, unless head_dim is given",
                       where, D, H);
    model->head_dim = D / H;
  }
  if (model->head_dim % 2 != 0 || model->head_dim > 1024)
    return error_set(err,
                     "%s: head_dim is %lld, but it must be even and at most 1024, because RoPE "
                     "turns pairs (hidden_size %lld, num_attention_heads %lld)",
                     where, (long long)model->head_dim, D, H);
  return 0;
}

int model_resolve(ModelConfig *model, const char *where, Error *err) {
  if (resolve_heads(model, where, err)) return -1;
  if (model->rope_scaling.type == ROPE_LLAMA3) return check_llama3(model, where, err);
  memset(&model->rope_scaling, 0, sizeof model->rope_scaling);
  return 0;
}

// ---- config.json

int model_config_parse(ModelConfig *model, const char *name, const char *json, Error *err) {
  Config config;
  memset(&config, 0, sizeof config);
  KeyReader r = {.config = &config, .where = name, .hugging_face = true, .err = err};
  cJSON *tree = json_parse(name, json, strlen(json), err);
  if (!tree) return -1;
  int failed = -1;
  if (!cJSON_IsObject(tree))
    error_set(err, "%s: a config.json must be a JSON object", name);
  else
    failed = model_read(&r, tree);
  cJSON_Delete(tree);
  if (failed || keys_fill_defaults(&r, true) || model_resolve(&config.model, name, err)) return -1;
  *model = config.model;
  return 0;
}

// rope_theta beside rope_scaling is transformers 4's spelling, which version 5 still reads.
char *model_config_json(const ModelConfig *model, const char *torch_dtype) {
  Config config;
  memset(&config, 0, sizeof config);
  config.model = *model;
  JsonText out = {0};
  json_append(&out, "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n");
  for (int i = 0; i < FIXED_KEYS; i++)
    if (fixed_keys[i].written)
      json_append(&out, "  \"%s\": %s,\n", fixed_keys[i].name, fixed_keys[i].value);
  // Without a null here, transformers would take 1 and 2 for the begin and the end.
  if (model->vocab_size == BYTE_VOCAB)
    json_append(&out, "  \"bos_token_id\": %d,\n  \"eos_token_id\": %d,\n", TOKEN_BEGIN, TOKEN_END);
  else
    json_append(&out, "  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n");
  json_append(&out, "  \"torch_dtype\": \"%s\",\n  \"use_cache\": true,\n", torch_dtype);
  keys_append_section(&out, "model", &config, 2);
  json_append(&out, "\n}\n");
  return out.text;
}

// ---- Counts

// Weights of one layer's matrices: q, k, v, o, gate, up, down.
static int64_t layer_matrices(const ModelConfig *m) {
  const int64_t qkv_rows = (m->num_attention_heads + 2 * m->num_key_value_heads) * m->head_dim;
  const int64_t attention_width = m->num_attention_heads * m->head_dim;
  return m->hidden_size * (qkv_rows + attention_width + 3 * m->intermediate_size);
}

int64_t model_parameters(const ModelConfig *model, bool with_embedding) {
  const int64_t V = model->vocab_size, D = model->hidden_size;
  const int64_t layer = layer_matrices(model) + 2 * D; // and its two norms
  const int64_t look_up = with_embedding && !model->tie_word_embeddings ? V * D : 0;
  return look_up + model->num_hidden_layers * layer + D + V * D;
}

double model_step_flops(const ModelConfig *model, int64_t sequences, int64_t T) {
  const double matrices = (double)(model->num_hidden_layers * layer_matrices(model) +
                                   model->vocab_size * model->hidden_size);
  const double tokens = (double)sequences * (double)T;
  const double attention = (double)(model->num_attention_heads * model->head_dim);
  return 6 * tokens * matrices +
         6 * (double)model->num_hidden_layers * tokens * (double)T * attention;
}
