#include "model/config/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "data/mixture.h"
#include "data/model_folder.h"
#include "kernels/formats.h"
#include "model/config/keys.h"

// ---- The model: an object, or the path of a config.json or of a folder with one

// `path` in the folder of the config file if it is there, else as it stands.
static PathText find_model_path(const char *config_name, const char *path) {
  const char *slash = strrchr(config_name, '/');
  if (!slash || path[0] == '/') return path_text("%s", path);
  const PathText beside = path_text("%.*s/%s", (int)(slash - config_name), config_name, path);
  return path_exists(beside.text) ? beside : path_text("%s", path);
}

typedef struct ModelFile {
  PathText path;
  bool has_tokenizer; // beside it
  cJSON *tree;
} ModelFile;

static int read_in_folder(void *file_, const char *folder, const FileSums *sums, Error *err) {
  ModelFile *file = file_;
  (void)sums;
  file->path = path_text("%s/" MODEL_CONFIG_FILE, folder);
  file->has_tokenizer = has_file(folder, TOKENIZER_FILE);
  file->tree = json_read(file->path.text, CONFIG_MAX_BYTES, err);
  return file->tree ? 0 : -1;
}

static int read_model_file(KeyReader *r, const char *config_name, const char *path) {
  const char *where = r->where;
  ModelFile file = {.path = find_model_path(config_name, path)};
  if (!path_exists(file.path.text))
    return error_set(r->err,
                     "%s: model: there is no '%s'; give model=FOLDER: a Hugging Face folder, a run "
                     "or a checkpoint",
                     where, path);
  if (path_is_directory(file.path.text)) {
    r->folder = file.path;
    if (model_folder_read(r->folder.text, false, read_in_folder, &file, r->err) != 0)
      return error_prefix(r->err, "%s: model", where);
    r->folder_has_tokenizer = file.has_tokenizer;
  } else if (model_folder_check(file.path.text, r->err) != 0 ||
             !(file.tree = json_read(file.path.text, CONFIG_MAX_BYTES, r->err))) {
    return error_prefix(r->err, "%s: model", where);
  }
  r->where = file.path.text;
  r->hugging_face = true;
  const int failed = model_read_tree(r, file.tree);
  r->where = where;
  r->hugging_face = false;
  return failed;
}

// Replaces every earlier value of the model.
static int read_model(KeyReader *r, const char *config_name, const cJSON *value) {
  keys_forget(r, "model");
  r->folder.text[0] = '\0';
  if (cJSON_IsString(value)) return read_model_file(r, config_name, value->valuestring);
  if (cJSON_IsObject(value)) return model_read(r, value);
  return error_set(r->err,
                   "%s: model is %s, but it must be an object or the path of a Hugging Face folder "
                   "or config.json",
                   r->where, json_shown(value).text);
}

static int set_path(KeyReader *r, const char *name, const char *path) {
  if (key_given(r, name)) return 0;
  cJSON *value = cJSON_CreateString(path);
  const int failed = key_set(r, key_find(name), value);
  cJSON_Delete(value);
  return failed;
}

// The keys that a model's folder sets besides its config.json.
static int use_folder(KeyReader *r) {
  const char *folder = r->folder.text;
  if (!folder[0]) return 0;
  if (set_path(r, "train.init_from", folder)) return -1;
  return r->folder_has_tokenizer ? set_path(r, "data.tokenizer", folder) : 0;
}

// ---- The file

static bool is_section(const char *name) {
  for (int i = 0; i < SECTION_COUNT; i++)
    if (strcmp(config_sections[i], name) == 0) return true;
  return false;
}

static int read_section(KeyReader *r, const cJSON *section) {
  if (!cJSON_IsObject(section))
    return error_set(r->err, "%s: %s must be an object with keys, like {\"%s\": {...}}", r->where,
                     section->string, section->string);
  for (const cJSON *item = section->child; item; item = item->next) {
    const PathText name = path_text("%s.%s", section->string, item->string);
    const Key *key = key_find(name.text);
    if (!key && r->of_checkpoint) continue;
    if (key ? key_set(r, key, item) : key_unknown(r, name.text)) return -1;
  }
  return 0;
}

static int read_tree(KeyReader *r, const cJSON *tree, bool skip_model) {
  if (!cJSON_IsObject(tree))
    return error_set(
        r->err, "%s: a configuration must be a JSON object with the sections " SECTIONS, r->where);
  for (const cJSON *section = tree->child; section; section = section->next) {
    const char *name = section->string;
    const bool model = strcmp(name, "model") == 0;
    if (!is_section(name))
      return error_set(r->err, "%s: %.80s is not a section; the sections are " SECTIONS, r->where,
                       name);
    if (model && skip_model) continue;
    if (model ? read_model(r, r->where, section) : read_section(r, section)) return -1;
  }
  return 0;
}

// ---- Overrides

// The value as JSON where it is JSON of a type that the key takes, else as a bare string. A
// value that begins with a brace is meant as JSON.
static cJSON *override_value(KeyReader *r, const char *text, const Key *key) {
  const bool string = key && (key->type == KEY_TEXT || key->type == KEY_CHOICE),
             sources = key && key->type == KEY_SOURCES;
  cJSON *value = json_parse(r->where, text, strlen(text), r->err);
  if (sources ? cJSON_IsString(value) || mixture_is_list(text)
      : value ? !string || cJSON_IsString(value)
              : !string && text[0] == '{')
    return value;
  cJSON_Delete(value);
  value = cJSON_CreateString(text);
  if (!value) error_set(r->err, "%s: out of memory", r->where);
  return value;
}

static int set_override(KeyReader *r, const char *config_name, const char *name, const char *text) {
  const bool model = strcmp(name, "model") == 0, rope = strcmp(name, ROPE) == 0;
  const Key *key = key_find(name);
  if (!key && is_section(name) && !model)
    return error_set(r->err, "%s: %s is a section; write %s.KEY=VALUE", r->where, name, name);
  if (!key && !model && !rope) return key_unknown(r, name);
  cJSON *value = override_value(r, text, key);
  if (!value) return -1;
  if (rope) keys_forget(r, ROPE);
  const int failed = model  ? read_model(r, config_name, value)
                     : rope ? model_read_rope(r, value)
                            : key_set(r, key, value);
  cJSON_Delete(value);
  return failed;
}

// "train.steps", "--train.steps=5", "--lr": what was meant is a key.
static int no_override(KeyReader *r, const char *override) {
  const char *name = override + strspn(override, "-");
  const Key *near = key_nearest(path_text("%.*s", (int)strcspn(name, "="), name).text);
  error_set(r->err, "'%.200s' is not section.key=value", override);
  if (near) return error_append(r->err, "; did you mean %s=VALUE?", near->name);
  return error_append(r->err, "; see ./train --help-config");
}

static int apply_override(KeyReader *r, const char *config_name, const char *override) {
  const char *equals = strchr(override, '=');
  if (!equals || override[0] == '-') return no_override(r, override);
  const PathText name = path_text("%.*s", (int)(equals - override), override),
                 where = path_text("override '%.200s'", override);
  r->where = where.text;
  const int failed = set_override(r, config_name, name.text, equals + 1);
  r->where = config_name;
  return failed;
}

// ---- Keys that follow from others, and keys that contradict each other

static int check_shape(KeyReader *r) {
  const Config *c = r->config;
  const int64_t B = c->train.batch_size, T = c->train.sequence_length;
  const int64_t positions = c->model.max_position_embeddings, chunks = c->train.loss_chunks;
  if (T > positions) {
    key_conflict(r, "train.sequence_length", (double)T, "be at most",
                 "model.max_position_embeddings", (double)positions);
    return error_append(r->err, "; set train.sequence_length=%lld", (long long)positions);
  }
  if (B > MAX_TOKENS / T)
    return error_set(r->err,
                     "%s: train.batch_size %lld x train.sequence_length %lld is more than %d "
                     "tokens; use a smaller batch and train.gradient_accumulation",
                     r->where, (long long)B, (long long)T, MAX_TOKENS);
  if (chunks > 0 && B * T % chunks != 0)
    return key_conflict(r, "train.loss_chunks", (double)chunks, "divide",
                        "train.batch_size x train.sequence_length", (double)(B * T));
  const double tokens =
      (double)c->train.steps * (double)c->train.gradient_accumulation * (double)B * (double)T;
  if (tokens <= (double)JSON_MAX_INTEGER) return 0;
  return error_set(r->err,
                   "%s: train.steps x train.gradient_accumulation x train.batch_size x "
                   "train.sequence_length is %g tokens, but the most is %g",
                   r->where, tokens, (double)JSON_MAX_INTEGER);
}

static int check_context(KeyReader *r) {
  const TrainConfig *t = &r->config->train;
  if (t->first_context == 0 || t->context_warmup > 0) return 0;
  return error_set(r->err,
                   "%s: train.context_warmup is 0, but train.first_context needs it: the first "
                   "steps, in which sequences are read in pieces",
                   r->where);
}

// The sizes that FP8 products sum over: a weight gradient's are the tokens of a call.
static int check_precision(KeyReader *r) {
  const Config *c = r->config;
  const ModelConfig *m = &c->model;
  const int64_t M = c->train.batch_size * c->train.sequence_length, chunks = c->train.loss_chunks;
  const int64_t H = m->num_attention_heads, KV = m->num_key_value_heads, d = m->head_dim;
  const struct {
    const char *name;
    int64_t value;
  } sizes[] = {{"model.hidden_size", m->hidden_size},
               {"model.intermediate_size", m->intermediate_size},
               {"model.num_attention_heads x model.head_dim", H * d},
               {"(model.num_attention_heads + 2 x model.num_key_value_heads) x model.head_dim",
                (H + 2 * KV) * d},
               {"train.batch_size x train.sequence_length", M},
               {"train.batch_size x train.sequence_length / train.loss_chunks",
                chunks > 0 ? M / chunks : M}};
  const Precision precision = c->backend.precision;
  for (size_t i = 0; precision != PRECISION_BF16 && i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i].value % FP8_GROUP != 0)
      return error_set(r->err,
                       "%s: %s is %lld, but with backend.precision \"%s\" it must be a multiple "
                       "of %d; change it, or take \"bf16\"",
                       r->where, sizes[i].name, (long long)sizes[i].value,
                       precision_name(precision), FP8_GROUP);
  return 0;
}

static int check_steps(KeyReader *r) {
  const Config *c = r->config;
  const OptimizerConfig *o = &c->optimizer;
  const int64_t steps = c->train.steps;
  const int64_t profile_end = PROFILE_START + c->output.profile_steps - 1;
  const char *at_most = "be at most";
  if (o->min_learning_rate > o->learning_rate)
    return key_conflict(r, "optimizer.min_learning_rate", o->min_learning_rate, at_most,
                        "optimizer.learning_rate", o->learning_rate);
  if (o->schedule == SCHEDULE_WSD && o->decay_steps == 0)
    return error_set(r->err,
                     "%s: optimizer.decay_steps is 0, but optimizer.schedule \"wsd\" needs it: the "
                     "last steps, in which the rate falls",
                     r->where);
  if (c->output.profile_steps > 0 && profile_end > steps)
    return key_conflict(r, "the last profiled step (9 + output.profile_steps)", (double)profile_end,
                        at_most, "train.steps", (double)steps);
  return 0;
}

static void resolve_length(Config *c) {
  enum { MOST = 4096 };
  const int64_t positions = c->model.max_position_embeddings;
  if (c->train.sequence_length == 0) c->train.sequence_length = positions < MOST ? positions : MOST;
}

// The number of layers in a key: all by default, and no more than there are.
static int resolve_layers(KeyReader *r, const char *key, int64_t *layers) {
  const int64_t L = r->config->model.num_hidden_layers;
  if (*layers == 0) *layers = L;
  if (*layers <= L) return 0;
  return key_conflict(r, key, (double)*layers, "be at most", "model.num_hidden_layers", (double)L);
}

static int config_resolve(KeyReader *r) {
  Config *c = r->config;
  if (model_resolve(r)) return -1;
  resolve_length(c);
  if (resolve_layers(r, "train.recompute_layers", &c->train.recompute_layers) ||
      resolve_layers(r, "backend.offload_layers", &c->backend.offload_layers))
    return -1;
  return check_shape(r) || check_context(r) || check_precision(r) || check_steps(r) ? -1 : 0;
}

// ---- The interface

// Takes the tree over; NULL fails: its maker said why.
static int read_config(Config *config, const char *name, cJSON *tree, bool of_checkpoint,
                       int override_count, char *const *overrides, Error *err) {
  if (!tree) return -1;
  memset(config, 0, sizeof *config); // padding too: configurations are compared as bytes
  KeyReader r = {.config = config, .where = name, .of_checkpoint = of_checkpoint, .err = err};
  const PathText whole = path_text("%s%s", name, override_count ? " with the overrides" : "");
  bool model_replaced = false;
  for (int i = 0; i < override_count; i++)
    if (strncmp(overrides[i], "model=", 6) == 0) model_replaced = true;
  int failed = read_tree(&r, tree, model_replaced);
  cJSON_Delete(tree);
  for (int i = 0; i < override_count && !failed; i++)
    failed = apply_override(&r, name, overrides[i]);
  r.where = whole.text;
  if (failed || use_folder(&r) || keys_fill_defaults(&r, false)) return -1;
  return config_resolve(&r);
}

int config_parse(Config *config, const char *name, const char *json, int override_count,
                 char *const *overrides, Error *err) {
  return read_config(config, name, json_parse(name, json, strlen(json), err), false, override_count,
                     overrides, err);
}

int config_load(Config *config, const char *path, int override_count, char *const *overrides,
                Error *err) {
  if (config_check_path(path, err) != 0) return -1;
  return read_config(config, path, json_read(path, CONFIG_MAX_BYTES, err), false, override_count,
                     overrides, err);
}

int config_load_saved(Config *config, const char *path, Error *err) {
  return read_config(config, path, json_read(path, CONFIG_MAX_BYTES, err), true, 0, NULL, err);
}

void config_write(JsonWriter *w, const char *name, const Config *config) {
  json_open(w, name, '{');
  for (int i = 0; i < SECTION_COUNT; i++) {
    json_open(w, config_sections[i], '{');
    keys_write_section(w, config_sections[i], config);
    json_close(w, '}');
  }
  json_close(w, '}');
}

char *config_json(const Config *config) {
  JsonWriter w = {.indent = 2};
  config_write(&w, NULL, config);
  return w.text;
}

// The keys that are set, those that have no default, and where `but` is not NULL all that differ
// from it.
static char *chosen_json(const Config *config, const Config *but) {
  JsonWriter w = {.indent = 2};
  const char *section = "";
  json_open(&w, NULL, '{');
  for (const Key *key = config_keys; key->name; key++) {
    if (key->fallback && !key_is_set(key, config) && !(but && !key_equal(key, but, config)))
      continue;
    const size_t length = strcspn(key->name, ".");
    if (strncmp(section, key->name, length + 1) != 0) {
      if (section[0]) json_close(&w, '}');
      json_open(&w, path_text("%.*s", (int)length, key->name).text, '{');
    }
    section = key->name;
    char *value = key_text(key, config);
    json_raw(&w, key->name + length + 1, value);
    free(value);
  }
  if (section[0]) json_close(&w, '}');
  json_close(&w, '}');
  return w.text;
}

// A key without a default of its own is needed where others give it another value.
char *config_json_short(const Config *config) {
  Config derived;
  Error ignored;
  char *text = chosen_json(config, NULL);
  if (config_parse(&derived, "a config", text, 0, NULL, &ignored) == 0) {
    free(text);
    text = chosen_json(config, &derived);
  }
  return text;
}

// "train.steps 40 -> 80, optimizer.eps 1e-08 -> 1e-06", or "", in fresh memory: of the keys that
// have one of `flags`, or (without) do not have it.
static char *differences(const Config *saved, const Config *now, unsigned flags, bool without) {
  char *all = xstrdup("");
  for (const Key *key = config_keys; key->name; key++) {
    if (!(key->flags & flags) != without || key_equal(key, saved, now)) continue;
    char *was = key_text(key, saved), *is = key_text(key, now), *before = all;
    all = xasprintf("%s%s%s %s -> %s", before, *before ? ", " : "", key->name, was, is);
    free(before);
    free(was);
    free(is);
  }
  return all;
}

// -1 where keys that shape the run differ: the problem, then both values of each key.
static int refuse_differences(const Config *saved, const Config *now, const char *problem,
                              Error *err) {
  char *shaping = differences(saved, now, KEY_SHAPES_RUN, false);
  const bool differ = shaping[0] != '\0';
  if (differ) error_set(err, "%s: %s", problem, shaping);
  free(shaping);
  return differ ? -1 : 0;
}

char *config_changes(const Config *saved, const Config *now) {
  return differences(saved, now, KEY_OF_PROCESS, true);
}

static bool same_tensors(const ModelConfig *a, const ModelConfig *b) {
  return a->hidden_size == b->hidden_size && a->intermediate_size == b->intermediate_size &&
         a->num_hidden_layers == b->num_hidden_layers && a->vocab_size == b->vocab_size &&
         a->num_attention_heads * a->head_dim == b->num_attention_heads * b->head_dim &&
         a->num_key_value_heads * a->head_dim == b->num_key_value_heads * b->head_dim &&
         a->tie_word_embeddings == b->tie_word_embeddings;
}

// The advice comes first, because a long list is cut.
int config_compare(const Config *saved, const Config *now, Error *err) {
  const bool fits = same_tensors(&saved->model, &now->model);
  if (fits && now->train.resume_allow_changes) return 0;
  return refuse_differences(
      saved, now,
      fits ? "the configuration is not the one of the saved run (restore it, or set "
             "train.resume_allow_changes=true)"
           : "its weights do not fit this model (restore its keys, or begin a new run in another "
             "output.dir)",
      err);
}

int model_config_check(const ModelConfig *model, const char *folder, Error *err) {
  const PathText path = path_text("%s/" MODEL_CONFIG_FILE, folder);
  Config theirs = {0}, ours = {0};
  if (!path_exists(path.text))
    return error_set(err, "'%s' has no " MODEL_CONFIG_FILE ", which says what its weights are for",
                     folder);
  if (model_config_read(&theirs.model, path.text, err)) return -1;
  ours.model = *model;
  theirs.model.initializer_range = ours.model.initializer_range;
  if (ours.model.max_position_embeddings > theirs.model.max_position_embeddings)
    theirs.model.max_position_embeddings = ours.model.max_position_embeddings;
  const PathText problem = path_text("the weights in '%.1000s' belong to another model (\"model\": "
                                     "\"FOLDER\" takes it from there)",
                                     folder);
  return refuse_differences(&theirs, &ours, problem.text, err);
}
