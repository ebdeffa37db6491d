#include "model/config/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/memory.h"
#include "model/config/keys.h"

enum { MAX_FILE_BYTES = 1 << 20 };

// ---- The model: an object, or the path of a config.json

// `path` in the folder of the config file if it is there, else as it stands; the caller frees it.
static char *find_model_file(const char *config_name, const char *path) {
  const char *slash = strrchr(config_name, '/');
  if (path[0] == '/' || !slash) return xstrdup(path);
  char *beside = xasprintf("%.*s/%s", (int)(slash - config_name), config_name, path);
  if (path_exists(beside)) return beside;
  free(beside);
  return xstrdup(path);
}

static int read_model_text(KeyReader *r, const char *json, size_t bytes) {
  cJSON *tree = json_parse(r->where, json, bytes, r->err);
  if (!tree) return -1;
  int failed = -1;
  if (!cJSON_IsObject(tree))
    error_set(r->err, "%s: a Hugging Face config.json must be a JSON object", r->where);
  else
    failed = model_read(r, tree);
  cJSON_Delete(tree);
  return failed;
}

static int read_model_file(KeyReader *r, const char *config_name, const char *path) {
  char *found = find_model_file(config_name, path);
  char *json;
  size_t bytes;
  if (file_read(found, MAX_FILE_BYTES, &json, &bytes, r->err)) {
    free(found);
    return error_prefix(r->err, "%s: model", r->where);
  }
  const char *where = r->where;
  r->where = found;
  r->hugging_face = true;
  const int failed = read_model_text(r, json, bytes);
  r->where = where;
  r->hugging_face = false;
  free(json);
  free(found);
  return failed;
}

// Replaces whatever was said about the model before.
static int read_model(KeyReader *r, const char *config_name, const cJSON *value) {
  for (int i = 0; i < config_key_count; i++)
    if (key_in_model(&config_keys[i])) r->given[i] = false;
  memset(&r->config->model, 0, sizeof r->config->model);
  if (cJSON_IsString(value)) return read_model_file(r, config_name, value->valuestring);
  if (cJSON_IsObject(value)) return model_read(r, value);
  JsonText shown = {0};
  json_append_value(&shown, value);
  error_set(r->err,
            "%s: model is %s, but it must be an object or the path of a Hugging Face config.json",
            r->where, shown.text);
  free(shown.text);
  return -1;
}

// ---- The file

static bool is_section(const char *name) {
  for (int i = 0; i < config_section_count; i++)
    if (strcmp(config_sections[i], name) == 0) return true;
  return false;
}

static int unknown_section(KeyReader *r, const char *name) {
  const char *near = nearest_name(name, config_sections, config_section_count);
  return error_set(r->err, "%s: %.80s is not a section; %s%s%s", r->where, name,
                   near ? "did you mean "
                        : "there are model, data, train, optimizer, backend, output",
                   near ? near : "", near ? "?" : "");
}

static int read_section(KeyReader *r, const cJSON *section) {
  const char *name = section->string;
  if (!cJSON_IsObject(section))
    return error_set(r->err, "%s: %s must be an object with keys, like {\"%s\": {...}}", r->where,
                     name, name);
  if (keys_unique(r, section, name)) return -1;
  for (const cJSON *item = section->child; item; item = item->next) {
    const Key *key = key_find(name, item->string);
    if (!key) return key_unknown(r, name, item->string);
    if (key_set(r, key, item)) return -1;
  }
  return 0;
}

static int read_tree(KeyReader *r, const cJSON *tree, bool skip_model) {
  if (!cJSON_IsObject(tree))
    return error_set(r->err,
                     "%s: a configuration must be a JSON object with the sections model, "
                     "data, train, optimizer, backend, output",
                     r->where);
  if (keys_unique(r, tree, "")) return -1;
  for (const cJSON *section = tree->child; section; section = section->next) {
    if (!is_section(section->string)) return unknown_section(r, section->string);
    const bool model = strcmp(section->string, "model") == 0;
    if (model && skip_model) continue;
    if (model ? read_model(r, r->where, section) : read_section(r, section)) return -1;
  }
  return 0;
}

// ---- Overrides

// The value as JSON where it is JSON of a type that the key takes, else as a bare string.
static cJSON *override_value(const char *text, bool want_string) {
  Error not_json;
  cJSON *value = json_parse("value", text, strlen(text), &not_json);
  if (value && (!want_string || cJSON_IsString(value))) return value;
  cJSON_Delete(value);
  return cJSON_CreateString(text);
}

static int set_override(KeyReader *r, const char *config_name, char *name, const char *text) {
  char *dot = strrchr(name, '.');
  const bool model = strcmp(name, "model") == 0, rope = strcmp(name, "model.rope_scaling") == 0;
  const Key *key = NULL;
  if (dot) {
    *dot = '\0';
    key = key_find(name, dot + 1);
  }
  if (!key && !model && !rope) {
    if (dot) return key_unknown(r, name, dot + 1);
    if (!is_section(name)) return unknown_section(r, name);
    return error_set(r->err, "%s: %s is a section; write %s.KEY=VALUE", r->where, name, name);
  }
  cJSON *value = override_value(text, key && (key->type == KEY_TEXT || key->type == KEY_CHOICE));
  if (!value) return error_set(r->err, "%s: out of memory", r->where);
  int failed;
  if (model)
    failed = read_model(r, config_name, value);
  else if (rope)
    failed = model_read_rope(r, value, "model.rope_scaling");
  else
    failed = key_set(r, key, value);
  cJSON_Delete(value);
  return failed;
}

static int apply_override(KeyReader *r, const char *config_name, const char *override) {
  const char *equals = strchr(override, '=');
  if (!equals)
    return error_set(r->err, "override '%.200s' has no '='; write section.key=value", override);
  char *name = xasprintf("%.*s", (int)(equals - override), override);
  char *where = xasprintf("override '%.200s'", override);
  r->where = where;
  const int failed = set_override(r, config_name, name, equals + 1);
  r->where = config_name;
  free(where);
  free(name);
  return failed;
}

// ---- Keys against each other

static int check_shape(const Config *c, const char *where, Error *err) {
  const long long B = c->train.batch_size, T = c->train.sequence_length;
  const long long positions = c->model.max_position_embeddings, chunks = c->train.loss_chunks;
  enum { MAX_TOKENS = 1 << 24 }; // keeps every activation's size inside 63 bits
  if (T > positions)
    return error_set(err,
                     "%s: train.sequence_length is %lld, but it must be at most "
                     "model.max_position_embeddings, which is %lld",
                     where, T, positions);
  if (B > MAX_TOKENS / T)
    return error_set(err,
                     "%s: train.batch_size %lld x train.sequence_length %lld is more than %d "
                     "tokens; use a smaller batch and train.gradient_accumulation",
                     where, B, T, MAX_TOKENS);
  if (chunks > 0 && B * T % chunks != 0)
    return error_set(err,
                     "%s: train.loss_chunks is %lld, but it must divide train.batch_size x "
                     "train.sequence_length, which is %lld",
                     where, chunks, B * T);
  const double tokens =
      (double)c->train.steps * (double)c->train.gradient_accumulation * (double)B * (double)T;
  if (tokens > (double)JSON_MAX_INTEGER)
    return error_set(err,
                     "%s: train.steps x gradient_accumulation x batch_size x sequence_length is "
                     "%g tokens, but the most is %g",
                     where, tokens, (double)JSON_MAX_INTEGER);
  return 0;
}

static int check_schedule(const Config *c, const char *where, Error *err) {
  const OptimizerConfig *o = &c->optimizer;
  const long long steps = c->train.steps, warmup = o->warmup_steps, decay = o->decay_steps;
  if (o->min_learning_rate > o->learning_rate)
    return error_set(err,
                     "%s: optimizer.min_learning_rate is %g, but it must be at most "
                     "optimizer.learning_rate, which is %g",
                     where, o->min_learning_rate, o->learning_rate);
  if (warmup > steps)
    return error_set(err,
                     "%s: optimizer.warmup_steps is %lld, but it must be at most train.steps, "
                     "which is %lld",
                     where, warmup, steps);
  if (o->schedule != SCHEDULE_WSD) return 0;
  if (decay == 0)
    return error_set(err,
                     "%s: optimizer.decay_steps is 0, but the schedule wsd needs it: the last "
                     "steps, in which the rate falls",
                     where);
  if (warmup + decay > steps)
    return error_set(err,
                     "%s: optimizer.warmup_steps %lld + optimizer.decay_steps %lld must be at "
                     "most train.steps, which is %lld",
                     where, warmup, decay, steps);
  return 0;
}

static int check_profile(const Config *c, const char *where, Error *err) {
  const long long start = c->output.profile_start, steps = c->output.profile_steps;
  if (steps == 0 || start + steps - 1 <= c->train.steps) return 0;
  return error_set(err,
                   "%s: output.profile_start %lld and output.profile_steps %lld end with step "
                   "%lld, but it must be at most train.steps, which is %lld",
                   where, start, steps, start + steps - 1, (long long)c->train.steps);
}

// ---- The interface

static int parse_bytes(Config *config, const char *name, const char *json, size_t bytes,
                       int override_count, char *const *overrides, Error *err) {
  memset(config, 0, sizeof *config); // padding too: configurations are compared as bytes
  KeyReader r = {.config = config, .where = name, .err = err};
  cJSON *tree = json_parse(name, json, bytes, err);
  if (!tree) return -1;
  bool model_replaced = false;
  for (int i = 0; i < override_count; i++)
    if (strncmp(overrides[i], "model=", 6) == 0) model_replaced = true;
  const int failed = read_tree(&r, tree, model_replaced);
  cJSON_Delete(tree);
  if (failed) return -1;
  for (int i = 0; i < override_count; i++)
    if (apply_override(&r, name, overrides[i])) return -1;
  if (keys_fill_defaults(&r, false) || model_resolve(&config->model, name, err)) return -1;
  return check_shape(config, name, err) || check_schedule(config, name, err) ||
                 check_profile(config, name, err)
             ? -1
             : 0;
}

int config_parse(Config *config, const char *name, const char *json, int override_count,
                 char *const *overrides, Error *err) {
  return parse_bytes(config, name, json, strlen(json), override_count, overrides, err);
}

int config_load(Config *config, const char *path, int override_count, char *const *overrides,
                Error *err) {
  char *json;
  size_t bytes;
  if (file_read(path, MAX_FILE_BYTES, &json, &bytes, err)) return -1;
  const int failed = parse_bytes(config, path, json, bytes, override_count, overrides, err);
  free(json);
  return failed;
}

char *config_json(const Config *config) {
  JsonText out = {0};
  json_append(&out, "{\n");
  for (int i = 0; i < config_section_count; i++) {
    json_append(&out, "  \"%s\": {\n", config_sections[i]);
    keys_append_section(&out, config_sections[i], config, 4);
    json_append(&out, "\n  }%s\n", i + 1 < config_section_count ? "," : "");
  }
  json_append(&out, "}\n");
  return out.text;
}

int config_compare(const Config *saved, const Config *now, Error *err) {
  JsonText differences = {0};
  for (int i = 0; i < config_key_count; i++) {
    const Key *key = &config_keys[i];
    if (!(key->flags & KEY_SHAPES_RUN) || key_equal(key, saved, now)) continue;
    json_append(&differences, "%s%s.%s was ", differences.used ? "; " : "", key->section,
                key->name);
    key_append_value(&differences, key, saved);
    json_append(&differences, " and is ");
    key_append_value(&differences, key, now);
  }
  if (!differences.used) return 0;
  // What to do comes first, because a long list is cut.
  error_set(err,
            "the configuration is not the one of the saved run (restore it, or set "
            "train.resume_allow_changes=true): %s",
            differences.text);
  free(differences.text);
  return -1;
}

void config_print(const Config *config) {
  enum { INDENT = 4, WIDTH = 110 };
  const char *section = "";
  size_t column = 0;
  printf("config");
  for (int i = 0; i < config_key_count; i++) {
    const Key *key = &config_keys[i];
    if (strcmp(key->section, "model.rope_scaling") == 0 &&
        config->model.rope_scaling.type == ROPE_DEFAULT)
      continue;
    JsonText value = {0};
    key_append_value(&value, key, config);
    const size_t length = strlen(key->name) + value.used + 2;
    if (strcmp(section, key->section) != 0)
      column = (size_t)printf("\n  %s:", key->section);
    else if (column + length > WIDTH)
      column = (size_t)printf("\n%*s", INDENT, "");
    column += (size_t)printf(" %s=%s", key->name, value.text);
    section = key->section;
    free(value.text);
  }
  printf("\n");
}

void config_print_keys(void) {
  printf("| key | default | allowed | meaning |\n|---|---|---|---|\n");
  for (int i = 0; i < config_key_count; i++) {
    const Key *key = &config_keys[i];
    JsonText allowed = {0};
    key_append_allowed(&allowed, key);
    printf("| `%s.%s`%s | ", key->section, key->name, key->flags & KEY_SHAPES_RUN ? " *" : "");
    if (!key->fallback)
      printf("required");
    else if (strcmp(key->fallback, "null") != 0)
      printf("`%s`", key->fallback);
    printf(" | %s | %s |\n", allowed.text, key->meaning);
    free(allowed.text);
  }
  printf("\nA run can be resumed only with the same value of a key marked *, unless "
         "train.resume_allow_changes is true.\n");
}
