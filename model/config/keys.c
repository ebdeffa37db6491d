#include "model/config/keys.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

static const char *const rope_types[] = {"default", "llama3", NULL};
static const char *const schedules[] = {"constant", "cosine", "wsd", NULL};
static const char *const recomputes[] = {"none", "mlp", "layer", NULL};
static const char *const devices[] = {"auto", "cuda", "cpu", NULL};
static const char *const kernel_kinds[] = {"auto", "fused", "unfused", NULL};

_Static_assert(sizeof(Schedule) == sizeof(int) && sizeof(RopeType) == sizeof(int) &&
                   sizeof(Device) == sizeof(int) && sizeof(KernelChoice) == sizeof(int),
               "choices are stored as int");

#define REQUIRED NULL
#define DERIVED "null"
#define SHAPES KEY_SHAPES_RUN
#define FIELD(field) offsetof(Config, field), sizeof(((Config *)0)->field)
#define INTEGER(s, n, fallback, min, max, flags, meaning)                                          \
  { #s, #n, KEY_INTEGER, FIELD(s.n), min, max, NULL, fallback, flags, meaning }
#define NUMBER(s, n, fallback, min, max, flags, meaning)                                           \
  { #s, #n, KEY_NUMBER, FIELD(s.n), min, max, NULL, fallback, flags, meaning }
#define BOOL(s, n, fallback, flags, meaning)                                                       \
  { #s, #n, KEY_BOOL, FIELD(s.n), 0, 1, NULL, fallback, flags, meaning }
#define TEXT(s, n, fallback, min, flags, meaning)                                                  \
  {                                                                                                \
#s, #n, KEY_TEXT, FIELD(s.n), min, sizeof(((Config *)0)->s.n) - 1, NULL, fallback, flags,      \
        meaning                                                                                    \
  }
#define CHOICE(s, n, names, fallback, flags, meaning)                                              \
  { #s, #n, KEY_CHOICE, FIELD(s.n), 0, 0, names, fallback, flags, meaning }

// Upper limits keep every product of counts (parameters, activations, tokens) inside 63 bits.
const Key config_keys[] = {
    INTEGER(model, hidden_size, REQUIRED, 1, 131072, SHAPES, "width of the residual stream"),
    INTEGER(model, intermediate_size, REQUIRED, 1, 1048576, SHAPES, "width of the SwiGLU layer"),
    INTEGER(model, num_hidden_layers, REQUIRED, 1, 4096, SHAPES, "layers"),
    INTEGER(model, num_attention_heads, REQUIRED, 1, 4096, SHAPES, "query heads"),
    INTEGER(model, num_key_value_heads, DERIVED, 1, 4096, SHAPES,
            "key and value heads; divides num_attention_heads, which is the default"),
    INTEGER(model, head_dim, DERIVED, 2, 1024, SHAPES,
            "width of a head, even; hidden_size / num_attention_heads by default"),
    INTEGER(model, vocab_size, REQUIRED, 2, 16777216, SHAPES,
            "tokens in the vocabulary; 258 for the built-in byte tokenizer"),
    INTEGER(model, max_position_embeddings, "2048", 1, 2147483647, SHAPES,
            "longest sequence the model is meant for"),
    NUMBER(model, rms_norm_eps, "1e-05", 0, 1, SHAPES | KEY_ABOVE_MIN,
           "added to the mean square in RMSNorm"),
    NUMBER(model, rope_theta, "500000", 0, DBL_MAX, SHAPES | KEY_ABOVE_MIN,
           "base of the rotary wavelengths"),
    BOOL(model, tie_word_embeddings, "false", SHAPES, "lm_head shares the embedding's weights"),
    NUMBER(model, initializer_range, "0.02", 0, 1, SHAPES | KEY_ABOVE_MIN,
           "standard deviation of the initial weights"),
    {"model.rope_scaling", "rope_type", KEY_CHOICE, FIELD(model.rope_scaling.type), 0, 0,
     rope_types, "\"default\"", SHAPES,
     "llama3 stretches the long wavelengths; it needs the four keys below"},
    NUMBER(model.rope_scaling, factor, DERIVED, 0, DBL_MAX, SHAPES | KEY_ABOVE_MIN,
           "how much the long wavelengths are stretched"),
    NUMBER(model.rope_scaling, low_freq_factor, DERIVED, 0, DBL_MAX, SHAPES | KEY_ABOVE_MIN,
           "wavelengths above original length / this are stretched in full"),
    NUMBER(model.rope_scaling, high_freq_factor, DERIVED, 0, DBL_MAX, SHAPES | KEY_ABOVE_MIN,
           "wavelengths below original length / this are kept"),
    INTEGER(model.rope_scaling, original_max_position_embeddings, DERIVED, 1, 2147483647, SHAPES,
            "sequence length before the stretch"),

    TEXT(data, train, REQUIRED, 1, SHAPES, "token files to train on: a path or a glob"),
    TEXT(data, val, "\"\"", 0, SHAPES, "token files to validate on; empty: no validation"),
    BOOL(data, shuffle, "true", SHAPES, "windows in a new random order each epoch"),

    INTEGER(train, steps, REQUIRED, 1, 99999999, SHAPES, "optimizer steps in all"),
    INTEGER(train, batch_size, "8", 1, 16777216, SHAPES, "sequences in a micro-batch"),
    INTEGER(train, sequence_length, REQUIRED, 1, 16777216, SHAPES, "tokens in a sequence"),
    INTEGER(train, gradient_accumulation, "1", 1, 65536, SHAPES, "micro-batches a step"),
    INTEGER(train, loss_chunks, "0", 0, 16777216, 0,
            "the logits are made in this many pieces, which saves memory; divides batch_size x "
            "sequence_length; 0: as few as fit the memory"),
    CHOICE(train, recompute, recomputes, "\"none\"", 0,
           "what the backward makes again to save memory: mlp, z and y (about 10 % slower); layer, "
           "all but a layer's input "
           "(about 30 % slower)"),
    INTEGER(train, seed, "1337", 0, JSON_MAX_INTEGER, SHAPES,
            "of the initial weights and the order of the data"),
    INTEGER(train, eval_interval, "500", 0, 99999999, 0,
            "steps between validations; 0: only at the start and the end"),
    INTEGER(train, eval_batches, "20", 0, 2147483647, 0,
            "micro-batches a validation reads; 0: the whole split"),
    INTEGER(train, save_interval, "500", -1, 99999999, 0,
            "steps between checkpoints; 0: only at the end, -1: never, to time a run"),
    INTEGER(train, keep_checkpoints, "3", 1, 99999999, 0, "newest checkpoints that are kept"),
    INTEGER(train, sample_interval, "0", -1, 99999999, 0,
            "steps between samples; 0: only at the end, -1: never"),
    INTEGER(train, sample_tokens, "200", 1, 16777216, 0, "longest sample"),
    TEXT(train, sample_prompt, "\"\"", 0, 0, "what a sample begins with"),
    NUMBER(train, sample_temperature, "0.8", 0, 100, 0, "0: always the likeliest token"),
    INTEGER(train, max_nonfinite, "10", 1, 99999999, 0,
            "refused updates (loss or gradient not finite) in a row before the run stops"),
    TEXT(train, resume, "\"\"", 0, 0,
         "empty: start anew; \"auto\": go on from the newest checkpoint in output.dir, if any; "
         "or a checkpoint's folder"),
    BOOL(train, resume_allow_changes, "false", 0,
         "resume although keys that shape the run have changed"),
    TEXT(train, init_from, "\"\"", 0, 0,
         "folder with a model.safetensors to start from; empty: random weights"),

    CHOICE(optimizer, schedule, schedules, "\"cosine\"", SHAPES, "of the learning rate"),
    NUMBER(optimizer, learning_rate, "0.0003", 0, 100, SHAPES, "at its peak"),
    NUMBER(optimizer, min_learning_rate, "0", 0, 100, SHAPES, "at the end of cosine and wsd"),
    INTEGER(optimizer, warmup_steps, "0", 0, 99999999, SHAPES,
            "first steps, in which the rate rises linearly"),
    INTEGER(optimizer, decay_steps, "0", 0, 99999999, SHAPES,
            "wsd: last steps, in which the rate falls linearly"),
    NUMBER(optimizer, beta1, "0.9", 0, 1, SHAPES | KEY_BELOW_MAX, "AdamW: decay of the mean"),
    NUMBER(optimizer, beta2, "0.95", 0, 1, SHAPES | KEY_BELOW_MAX,
           "AdamW: decay of the mean square"),
    NUMBER(optimizer, eps, "1e-08", 0, 1, SHAPES | KEY_ABOVE_MIN,
           "AdamW: added to the root mean square"),
    NUMBER(optimizer, weight_decay, "0.1", 0, 100, SHAPES, "AdamW: of matrices, not of norms"),
    NUMBER(optimizer, clip_norm, "1", 0, DBL_MAX, SHAPES,
           "largest norm of the whole gradient; 0: no clipping"),

    CHOICE(backend, device, devices, "\"auto\"", 0, "auto: the GPU if there is one"),
    CHOICE(backend, kernels, kernel_kinds, "\"auto\"", SHAPES,
           "which GPU kernels; auto: fused where the GPU and the model allow"),
    BOOL(backend, deterministic, "false", SHAPES,
         "on the GPU: the same bits in every run, at a cost"),
    BOOL(backend, graphs, "true", 0,
         "on the GPU: a step is recorded once and replayed; false for profilers"),
    INTEGER(backend, threads, "0", 0, 4096, 0, "CPU threads; 0: all"),

    TEXT(output, dir, REQUIRED, 1, 0, "the run's folder: log, configuration, checkpoints"),
    INTEGER(output, log_interval, "1", 1, 99999999, 0, "steps between progress lines"),
    INTEGER(output, profile_start, "10", 1, 99999999, 0,
            "first step that a profiler records, counted from where the process starts or resumes; "
            "those before it warm up"),
    INTEGER(output, profile_steps, "0", 0, 99999999, 0,
            "steps that a profiler records, between cudaProfilerStart and cudaProfilerStop; 0: "
            "none"),
    BOOL(output, profile_graphs, "false", 0,
         "on the GPU, with profile_steps: false: no step is recorded and replayed, so that NVTX "
         "ranges hold their kernels; true: as backend.graphs says"),
    BOOL(output, breakdown, "false", 0,
         "on the GPU: traces a step now and then, by CUPTI, and prints where its time went"),
    INTEGER(
        output, breakdown_interval, "100", 1, 99999999, 0,
        "with breakdown: steps between those that are traced, besides the last; a process' first "
        "three never are"),
};
const int config_key_count = (int)(sizeof config_keys / sizeof *config_keys);
_Static_assert(sizeof config_keys / sizeof *config_keys <= MAX_KEYS, "raise MAX_KEYS");

const char *const config_sections[] = {"model", "data", "train", "optimizer", "backend", "output"};
const int config_section_count = (int)(sizeof config_sections / sizeof *config_sections);

const Key *key_find(const char *section, const char *name) {
  for (int i = 0; i < config_key_count; i++)
    if (strcmp(config_keys[i].section, section) == 0 && strcmp(config_keys[i].name, name) == 0)
      return &config_keys[i];
  return NULL;
}

bool key_in_model(const Key *key) {
  return strncmp(key->section, "model", 5) == 0;
}

// A config.json has no section "model", so its sentences leave it out.
static const char *shown_section(const KeyReader *r, const char *section) {
  if (!r->hugging_face || strncmp(section, "model", 5) != 0) return section;
  return section[5] == '.' ? section + 6 : section + 5;
}

// ---- Allowed values, in words

static void append_range(JsonText *out, const Key *key) {
  const bool no_max = key->max >= (double)JSON_MAX_INTEGER;
  if (key->type == KEY_INTEGER && !no_max) {
    json_append(out, "a whole number from ");
    json_append_number(out, key->min);
    json_append(out, " to ");
    json_append_number(out, key->max);
    return;
  }
  json_append(out, key->type == KEY_INTEGER ? "a whole number, " : "a number, ");
  json_append(out, key->flags & KEY_ABOVE_MIN ? "above " : "at least ");
  json_append_number(out, key->min);
  if (no_max) return;
  json_append(out, key->flags & KEY_BELOW_MAX ? " and below " : " and at most ");
  json_append_number(out, key->max);
}

static void append_choices(JsonText *out, const Key *key) {
  for (int i = 0; key->choices[i]; i++) {
    if (i > 0) json_append(out, key->choices[i + 1] ? ", " : " or ");
    json_append(out, "\"%s\"", key->choices[i]);
  }
}

void key_append_allowed(JsonText *out, const Key *key) {
  switch (key->type) {
  case KEY_BOOL:
    json_append(out, "true or false");
    break;
  case KEY_INTEGER:
  case KEY_NUMBER:
    append_range(out, key);
    break;
  case KEY_TEXT:
    json_append(out, "a string of %s%.0f bytes", key->min > 0 ? "1 to " : "at most ", key->max);
    break;
  case KEY_CHOICE:
    append_choices(out, key);
    break;
  }
}

// ---- JSON -> field

static int store_number(const Key *key, void *field, const cJSON *value) {
  int64_t whole = 0;
  if (!cJSON_IsNumber(value)) return -1;
  if (key->type == KEY_INTEGER && json_integer(value, &whole)) return -1;
  const double d = value->valuedouble;
  // Written so that a NaN fails.
  if (!(key->flags & KEY_ABOVE_MIN ? d > key->min : d >= key->min)) return -1;
  if (!(key->flags & KEY_BELOW_MAX ? d < key->max : d <= key->max)) return -1;
  if (key->type == KEY_INTEGER)
    memcpy(field, &whole, key->size);
  else
    memcpy(field, &d, key->size);
  return 0;
}

static int store_text(const Key *key, void *field, const cJSON *value) {
  if (!cJSON_IsString(value)) return -1;
  const size_t length = strlen(value->valuestring);
  if ((double)length < key->min || (double)length > key->max) return -1;
  memset(field, 0, key->size); // configurations are compared as bytes
  memcpy(field, value->valuestring, length);
  return 0;
}

static int store_choice(const Key *key, void *field, const cJSON *value) {
  if (!cJSON_IsString(value)) return -1;
  for (int i = 0; key->choices[i]; i++) {
    if (strcmp(key->choices[i], value->valuestring) != 0) continue;
    memcpy(field, &i, key->size);
    return 0;
  }
  return -1;
}

static int store(const Key *key, Config *config, const cJSON *value) {
  void *field = (char *)config + key->offset;
  if (cJSON_IsNull(value) && key->fallback && strcmp(key->fallback, DERIVED) == 0) {
    memset(field, 0, key->size); // to be derived
    return 0;
  }
  switch (key->type) {
  case KEY_BOOL:
    if (!cJSON_IsBool(value)) return -1;
    *(bool *)field = cJSON_IsTrue(value);
    return 0;
  case KEY_INTEGER:
  case KEY_NUMBER:
    return store_number(key, field, value);
  case KEY_TEXT:
    return store_text(key, field, value);
  case KEY_CHOICE:
    return store_choice(key, field, value);
  }
  return -1;
}

static int wrong_value(KeyReader *r, const Key *key, const cJSON *value) {
  JsonText shown = {0}, allowed = {0};
  json_append_value(&shown, value);
  key_append_allowed(&allowed, key);
  const char *section = shown_section(r, key->section);
  error_set(r->err, "%s: %s%s%s is %s, but it must be %s", r->where, section, *section ? "." : "",
            key->name, shown.text, allowed.text);
  free(shown.text);
  free(allowed.text);
  return -1;
}

int key_set(KeyReader *r, const Key *key, const cJSON *value) {
  if (store(key, r->config, value)) return wrong_value(r, key, value);
  r->given[key - config_keys] = true;
  return 0;
}

int key_set_json(KeyReader *r, const Key *key, const char *json) {
  cJSON *value = json_parse(key->name, json, strlen(json), r->err);
  const int failed = value ? key_set(r, key, value) : -1;
  cJSON_Delete(value);
  return failed;
}

static int missing(KeyReader *r, const Key *key) {
  JsonText allowed = {0};
  key_append_allowed(&allowed, key);
  const char *section = shown_section(r, key->section);
  error_set(r->err, "%s: %s%s%s is missing: %s; it must be %s", r->where, section,
            *section ? "." : "", key->name, key->meaning, allowed.text);
  free(allowed.text);
  return -1;
}

int keys_fill_defaults(KeyReader *r, bool model_only) {
  for (int i = 0; i < config_key_count; i++) {
    const Key *key = &config_keys[i];
    if (r->given[i] || (model_only && !key_in_model(key))) continue;
    if (!key->fallback) return missing(r, key);
    if (key_set_json(r, key, key->fallback)) return -1;
  }
  return 0;
}

// ---- Unknown and duplicate keys

// A key of this very name in another section, or the name in this section that looks most like it.
static const Key *suggest(const char *section, const char *name) {
  const char *names[MAX_KEYS];
  int count = 0;
  for (int i = 0; i < config_key_count; i++) {
    if (strcmp(config_keys[i].section, section) == 0)
      names[count++] = config_keys[i].name;
    else if (strcmp(config_keys[i].name, name) == 0)
      return &config_keys[i];
  }
  const char *nearest = nearest_name(name, names, count);
  return nearest ? key_find(section, nearest) : NULL;
}

// The section of the table that `name` is or seems to mean, or NULL.
static const char *known_section(const char *name) {
  for (int i = 0; i < config_key_count; i++)
    if (strcmp(config_keys[i].section, name) == 0) return config_keys[i].section;
  return nearest_name(name, config_sections, config_section_count);
}

int key_unknown(KeyReader *r, const char *section, const char *name) {
  const char *known = known_section(section), *shown = shown_section(r, section);
  const Key *near = suggest(known ? known : section, name);
  if (near) {
    const char *near_section = shown_section(r, near->section);
    return error_set(r->err, "%s: %.80s.%.80s is not a key; did you mean %s%s%s?", r->where, shown,
                     name, near_section, *near_section ? "." : "", near->name);
  }
  JsonText all = {0};
  for (int i = 0; known && i < config_key_count; i++)
    if (strcmp(config_keys[i].section, known) == 0)
      json_append(&all, "%s%s", all.used ? ", " : "", config_keys[i].name);
  for (int i = 0; !known && i < config_section_count; i++)
    json_append(&all, "%s%s", all.used ? ", " : "", config_sections[i]);
  error_set(r->err, "%s: %.80s.%.80s is not a key; the %s%s are %s", r->where, shown, name,
            known ? "keys of " : "sections", known ? known : "", all.text);
  free(all.text);
  return -1;
}

int keys_unique(KeyReader *r, const cJSON *object, const char *name) {
  const char *twice = json_duplicate_key(object);
  if (!twice) return 0;
  return error_set(r->err, "%s: %s%s%.80s is there twice; keep one of them", r->where, name,
                   *name ? "." : "", twice);
}

// ---- Field -> JSON

bool key_equal(const Key *key, const Config *a, const Config *b) {
  return memcmp((const char *)a + key->offset, (const char *)b + key->offset, key->size) == 0;
}

void key_append_value(JsonText *out, const Key *key, const Config *config) {
  const void *field = (const char *)config + key->offset;
  const size_t start = out->used;
  int64_t whole;
  double number;
  int choice;
  switch (key->type) {
  case KEY_BOOL:
    json_append(out, *(const bool *)field ? "true" : "false");
    break;
  case KEY_INTEGER:
    memcpy(&whole, field, sizeof whole);
    json_append(out, "%lld", (long long)whole);
    break;
  case KEY_NUMBER:
    memcpy(&number, field, sizeof number);
    json_append_number(out, number);
    // transformers 4 warns about a factor that is written as an integer
    if (!strpbrk(out->text + start, ".e")) json_append(out, ".0");
    break;
  case KEY_TEXT:
    json_append_string(out, field);
    break;
  case KEY_CHOICE:
    memcpy(&choice, field, sizeof choice);
    json_append_string(out, key->choices[choice]);
    break;
  }
}

static void append_rope(JsonText *out, const Config *config, int indent) {
  json_append(out, ",\n%*s\"rope_scaling\": ", indent, "");
  if (config->model.rope_scaling.type == ROPE_DEFAULT) {
    json_append(out, "null");
    return;
  }
  json_append(out, "{\n");
  keys_append_section(out, "model.rope_scaling", config, indent + 2);
  json_append(out, "\n%*s}", indent, "");
}

void keys_append_section(JsonText *out, const char *section, const Config *config, int indent) {
  const char *separator = "";
  for (int i = 0; i < config_key_count; i++) {
    const Key *key = &config_keys[i];
    if (strcmp(key->section, section) != 0) continue;
    json_append(out, "%s%*s\"%s\": ", separator, indent, "", key->name);
    key_append_value(out, key, config);
    separator = ",\n";
  }
  if (strcmp(section, "model") == 0) append_rope(out, config, indent);
}
