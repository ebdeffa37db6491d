// Hugging Face LlamaConfig: reading every spelling that transformers 4 and 5 write, and those
// MistralConfigs that mean the same, writing one that both read, and the counts that follow from a
// model's sizes.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "model/config/keys.h"

// Fields of LlamaConfig of which this trainer supports one value only.
static const struct {
  const char *name, *value; // the only value, as JSON; null or absent means the same
  bool written;             // into our config.json
} fixed_keys[] = {
    {"model_type", "\"llama\"", true},      {"hidden_act", "\"silu\"", true},
    {"attention_bias", "false", true},      {"mlp_bias", "false", true},
    {"attention_dropout", "0", true},       {"partial_rotary_factor", "1", false},
    {"quantization_config", "null", false},
};
enum { MODEL_TYPE, FIXED_KEYS = sizeof fixed_keys / sizeof *fixed_keys };

static bool is_mistral(const cJSON *object) {
  const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "model_type"));
  return type && strcmp(type, "mistral") == 0;
}

static int check_fixed(KeyReader *r, const cJSON *object, const cJSON *item) {
  for (int i = 0; i < FIXED_KEYS; i++) {
    if (strcmp(fixed_keys[i].name, item->string) != 0 || cJSON_IsNull(item)) continue;
    cJSON *only = cJSON_Parse(fixed_keys[i].value);
    const bool same = cJSON_Compare(item, only, true) || (i == MODEL_TYPE && is_mistral(object));
    cJSON_Delete(only);
    if (same) return 0;
    return error_set(r->err, "%s: %s is %s, but only %s%s is supported", r->where, item->string,
                     json_shown(item).text, fixed_keys[i].value,
                     i == MODEL_TYPE ? " or \"mistral\"" : "");
  }
  return 0;
}

// A config.json may have a key in two places: rope_theta outside and inside of rope_parameters,
// type and rope_type, rope_scaling and rope_parameters. Then both have the same value.
static int set_once(KeyReader *r, const char *name, const cJSON *value) {
  const Key *key = key_find(name);
  const Config before = *r->config;
  const bool given = key_given(r, name);
  if (key_set(r, key, value)) return -1;
  if (!given || key_equal(key, &before, r->config)) return 0;
  return error_set(r->err, "%s: %s has two values; keep one of them", r->where, key_shown(r, name));
}

static int read_rope_key(KeyReader *r, const cJSON *item) {
  const PathText name = path_text(ROPE ".%s", item->string);
  if (strcmp(item->string, "rope_theta") == 0) return set_once(r, "model.rope_theta", item);
  if (strcmp(item->string, "partial_rotary_factor") == 0) return check_fixed(r, NULL, item);
  return key_find(name.text) ? set_once(r, name.text, item) : key_unknown(r, name.text);
}

int model_read_rope(KeyReader *r, const cJSON *rope) {
  static const char type[] = ROPE ".rope_type";
  if (cJSON_IsNull(rope)) return 0;
  if (!cJSON_IsObject(rope))
    return error_set(r->err, "%s: %s must be null or an object with rope_type and factor", r->where,
                     key_shown(r, ROPE));
  // The type comes first: another one, such as yarn, has keys that we do not know.
  const cJSON *types[] = {cJSON_GetObjectItemCaseSensitive(rope, "rope_type"),
                          cJSON_GetObjectItemCaseSensitive(rope, "type")}; // before 4.43
  for (int i = 0; i < 2; i++)
    if (types[i] && set_once(r, type, types[i])) return -1;
  for (const cJSON *item = rope->child; item; item = item->next)
    if (item != types[0] && item != types[1] && read_rope_key(r, item)) return -1;
  if (!key_given(r, ROPE ".factor") || key_given(r, type)) return 0;
  return error_set(r->err, "%s: %s has a factor but no rope_type; it must be %s", r->where,
                   key_shown(r, ROPE), key_allowed(key_find(type)).text);
}

// LlamaConfig's default where it differs from ours, which is LLaMA-3's.
static int set_default(KeyReader *r, const char *name, const char *json) {
  return key_given(r, name) ? 0 : key_set_json(r, key_find(name), json);
}

// A Mistral is a LLaMA whose tokens see no further back than sliding_window: one that no sequence
// exceeds changes nothing. Where the file is silent MistralConfig's defaults hold.
static int read_mistral(KeyReader *r, const cJSON *object) {
  const cJSON *window = cJSON_GetObjectItemCaseSensitive(object, "sliding_window");
  int64_t tokens = 4096;
  if (set_default(r, "model.max_position_embeddings", "131072") ||
      (!cJSON_GetObjectItemCaseSensitive(object, "num_key_value_heads") &&
       set_default(r, "model.num_key_value_heads", "8")))
    return -1;
  if (cJSON_IsNull(window)) return 0;
  if (window && (json_integer(window, &tokens) != 0 || tokens < 1))
    return error_set(r->err, "%s: sliding_window is %s, but it must be a number of tokens or null",
                     r->where, json_shown(window).text);
  const int64_t longest = r->config->model.max_position_embeddings;
  if (tokens >= longest) return 0;
  return error_set(r->err,
                   "%s: sliding_window is %lld, but a window below max_position_embeddings, here "
                   "%lld, is not supported; for sequences of at most %lld tokens set "
                   "max_position_embeddings to that in the file",
                   r->where, (long long)tokens, (long long)longest, (long long)tokens);
}

static int read_model_key(KeyReader *r, const cJSON *object, const cJSON *item) {
  const PathText name = path_text("model.%s", item->string);
  if (strcmp(name.text, ROPE) == 0 || strcmp(item->string, "rope_parameters") == 0)
    return model_read_rope(r, item);
  if (key_find(name.text)) return set_once(r, name.text, item);
  return r->hugging_face ? check_fixed(r, object, item) : key_unknown(r, name.text);
}

int model_read(KeyReader *r, const cJSON *object) {
  for (const cJSON *item = object->child; item; item = item->next)
    if (read_model_key(r, object, item)) return -1;
  if (!r->hugging_face) return 0;
  if (is_mistral(object) && read_mistral(r, object)) return -1;
  return set_default(r, "model.rms_norm_eps", "1e-06") ||
                 set_default(r, "model.rope_theta", "10000")
             ? -1
             : 0;
}

// ---- config.json

int model_read_tree(KeyReader *r, cJSON *tree) {
  if (!tree) return -1;
  int failed = -1;
  if (cJSON_IsObject(tree))
    failed = model_read(r, tree);
  else
    error_set(r->err, "%s: a Hugging Face config.json must be a JSON object", r->where);
  cJSON_Delete(tree);
  return failed;
}

// Takes the tree over; NULL fails: its maker said why.
static int parse_tree(ModelConfig *model, const char *name, cJSON *tree, Error *err) {
  Config config;
  memset(&config, 0, sizeof config);
  KeyReader r = {.config = &config, .where = name, .hugging_face = true, .err = err};
  if (model_read_tree(&r, tree) || keys_fill_defaults(&r, true) || model_resolve(&r)) return -1;
  *model = config.model;
  return 0;
}

int model_config_parse(ModelConfig *model, const char *name, const char *json, Error *err) {
  return parse_tree(model, name, json_parse(name, json, strlen(json), err), err);
}

int model_config_read(ModelConfig *model, const char *path, Error *err) {
  return parse_tree(model, path, json_read(path, CONFIG_MAX_BYTES, err), err);
}

// ---- Writing

// Fields that are not carried over: ours are written, and a LLaMA has no sliding_window.
static bool we_write(const char *name) {
  static const char *const names[] = {"architectures", "torch_dtype",     "dtype",
                                      "rope_scaling",  "rope_parameters", "bos_token_id",
                                      "eos_token_id",  "use_cache",       "sliding_window"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(names[i], name) == 0) return true;
  for (int i = 0; i < FIXED_KEYS; i++)
    if (strcmp(fixed_keys[i].name, name) == 0) return fixed_keys[i].written;
  return key_find(path_text("model.%s", name).text) != NULL;
}

// Past the separators of values: to cJSON every control byte is white space.
static const char *skip(const char *at) {
  while (*at == ',' || *at == ':' || (*at > '\0' && *at <= ' ')) at++;
  return at;
}

// The next JSON value of the text, which is moved behind it.
static cJSON *next_value(const char **at, const char *end) {
  *at = skip(*at);
  return cJSON_ParseWithLengthOpts(*at, (size_t)(end - *at), at, false);
}

// Carried fields in their own spelling: the one of this name, or (NULL) all that we do not write.
// false: there is none of this name.
static bool write_carried(JsonWriter *w, const ConfigExtras *x, const char *name) {
  bool found = false;
  if (!x->carried) return false;
  const char *at = strchr(x->carried, '{') + 1, *end = at + strlen(at);
  for (cJSON *field; (field = next_value(&at, end)); cJSON_Delete(field)) {
    const char *value = skip(at), *key = field->valuestring;
    cJSON_Delete(next_value(&at, end));
    if (name ? strcmp(key, name) != 0 : we_write(key)) continue;
    char *json = xasprintf("%.*s", (int)(at - value), value);
    json_raw(w, key, json);
    free(json);
    found = true;
  }
  return found;
}

// A token's id, or null: without it transformers would take 1 and 2 for BOS and EOS. The place is
// the same whether it is carried over or not, so that a resumed run, which carries over its own
// files, writes the same bytes.
static void write_id(JsonWriter *w, const ConfigExtras *x, const char *name, int id) {
  if (x->carry_ids && write_carried(w, x, name)) return;
  json_number(w, name, id < 0 ? NAN : id, JSON_EXACT);
}

// rope_theta beside rope_scaling is transformers 4's spelling, which version 5 still reads.
char *model_config_json(const ModelConfig *model, const ConfigExtras *x) {
  Config config;
  memset(&config, 0, sizeof config);
  config.model = *model;
  JsonWriter w = {.indent = 2};
  json_open(&w, NULL, '{');
  json_raw(&w, "architectures", "[\"LlamaForCausalLM\"]");
  for (int i = 0; i < FIXED_KEYS; i++)
    if (fixed_keys[i].written) json_raw(&w, fixed_keys[i].name, fixed_keys[i].value);
  write_id(&w, x, "bos_token_id", x->bos);
  write_id(&w, x, "eos_token_id", x->eos);
  json_string(&w, "torch_dtype", x->dtype == SAVE_BF16 ? "bfloat16" : "float32");
  if (!write_carried(&w, x, "use_cache")) json_bool(&w, "use_cache", true);
  keys_write_section(&w, "model", &config);
  write_carried(&w, x, NULL);
  json_close(&w, '}');
  return w.text;
}
