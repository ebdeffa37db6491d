#include "model/config/keys.h"

#include <assert.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/mixture.h"

static const char *const rope_types[] = {"default", "linear", "llama3", NULL};
static const char *const documents[] = {"mask", "join", NULL};
static const char *const optimizers[] = {"adamw", "muon", NULL};
static const char *const schedules[] = {"constant", "cosine", "linear", "wsd", NULL};
static const char *const recomputes[] = {"none", "mlp", "layer", NULL};
static const char *const devices[] = {"auto", "cuda", "cpu", NULL};
static const char *const kernel_kinds[] = {"auto", "fused", "unfused", NULL};
static const char *const mainloops[] = {"auto", "wgmma", "mma_sync", NULL};
static const char *const document_attentions[] = {"auto", "bias", NULL};
static const char *const products[] = {"fp32", "bf16", "auto", NULL};
static const char *const precisions[] = {"bf16", "fp8", NULL};
static const char *const dtypes[] = {"fp32", "bf16", NULL};
static const char *const gradients[] = {"auto", "bf16", NULL};
static const char *const offloads[] = {"none", "moments", "masters", "gradients", NULL};

#define REQUIRED NULL
#define DERIVED "null"
#define SHAPES KEY_SHAPES_RUN
#define FIELD(field) offsetof(Config, field), sizeof(((Config *)0)->field)
#define INTEGER(s, n, fallback, min, max, flags, meaning)                                          \
  { #s "." #n, KEY_INTEGER, FIELD(s.n), min, max, NULL, fallback, flags, meaning }
#define NUMBER(s, n, fallback, min, max, flags, meaning)                                           \
  { #s "." #n, KEY_NUMBER, FIELD(s.n), min, max, NULL, fallback, flags, meaning }
#define BOOL(s, n, fallback, flags, meaning)                                                       \
  { #s "." #n, KEY_BOOL, FIELD(s.n), 0, 1, NULL, fallback, flags, meaning }
#define TEXT(s, n, fallback, min, flags, meaning)                                                  \
  { #s "." #n, KEY_TEXT, FIELD(s.n), min, 0, NULL, fallback, flags, meaning }
#define SOURCES(s, n, fallback, min, flags, meaning)                                               \
  { #s "." #n, KEY_SOURCES, FIELD(s.n), min, 0, NULL, fallback, flags, meaning }
#define CHOICE(s, n, names, fallback, flags, meaning)                                              \
  { #s "." #n, KEY_CHOICE, FIELD(s.n), 0, 0, names, fallback, flags, meaning }

// Upper limits keep every product of counts (parameters, activations, tokens) inside 63 bits.
const Key config_keys[] = {
    INTEGER(model, hidden_size, REQUIRED, 1, 131072, SHAPES, "width of the residual stream"),
    INTEGER(model, intermediate_size, REQUIRED, 1, 1048576, SHAPES, "width of the SwiGLU layer"),
    INTEGER(model, num_hidden_layers, REQUIRED, 1, 4096, SHAPES, "number of layers"),
    INTEGER(model, num_attention_heads, REQUIRED, 1, 4096, SHAPES, "number of query heads"),
    INTEGER(model, num_key_value_heads, DERIVED, 1, 4096, SHAPES,
            "number of key and value heads; divides num_attention_heads, the default"),
    INTEGER(model, head_dim, DERIVED, 2, 1024, SHAPES,
            "width of a head, even; by default hidden_size / num_attention_heads"),
    INTEGER(model, vocab_size, REQUIRED, 2, 16777216, SHAPES,
            "tokens in the vocabulary; 258 for the built-in byte tokenizer"),
    INTEGER(model, max_position_embeddings, "2048", 1, 2147483647, SHAPES,
            "longest sequence the model is meant for: its context"),
    NUMBER(model, rms_norm_eps, "1e-05", 0, 1, SHAPES | KEY_ABOVE_MIN,
           "added to the mean square in RMSNorm"),
    NUMBER(model, rope_theta, "500000", 0, DBL_MAX, SHAPES | KEY_ABOVE_MIN,
           "base of the rotary wavelengths"),
    BOOL(model, tie_word_embeddings, "false", SHAPES, "lm_head shares the embedding's weights"),
    NUMBER(model, initializer_range, "0.02", 0, 1, SHAPES | KEY_ABOVE_MIN,
           "standard deviation of the initial weights"),
    {"model.rope_scaling.rope_type", KEY_CHOICE, FIELD(model.rope_scaling.type), 0, 0, rope_types,
     "\"default\"", SHAPES,
     "linear: all wavelengths are longer by the factor; llama3: only the long ones, which needs "
     "the four keys below"},
    NUMBER(model.rope_scaling, factor, DERIVED, 0, DBL_MAX, SHAPES | KEY_ABOVE_MIN,
           "how many times longer the wavelengths become"),
    NUMBER(model.rope_scaling, low_freq_factor, DERIVED, 0, DBL_MAX, SHAPES | KEY_ABOVE_MIN,
           "wavelengths above the original length / this are stretched in full"),
    NUMBER(model.rope_scaling, high_freq_factor, DERIVED, 0, DBL_MAX, SHAPES | KEY_ABOVE_MIN,
           "wavelengths below the original length / this stay as they are"),
    INTEGER(model.rope_scaling, original_max_position_embeddings, DERIVED, 1, 2147483647, SHAPES,
            "sequence length that the model had before the stretch"),

    SOURCES(data, train, REQUIRED, 1, 0,
            "token files to train on: a path, a glob, or a folder with train-*.bin; a list of "
            "these; or a list of {\"path\", \"weight\"}, whose weights are shares of the tokens "
            "that count; a resumed run needs the same tokens and shares, wherever they are"),
    SOURCES(data, val, "\"\"", 0, 0,
            "token files to validate on, a folder with val-*.bin, or a list without weights; "
            "empty: no validation"),
    CHOICE(data, documents, documents, "\"join\"", SHAPES,
           "mask: windows are packed with whole documents, and attention stops at their ends, "
           "if the files have .docs; join: windows run across documents"),
    TEXT(
        data, tokenizer, "\"\"", 0, 0,
        "\"bytes\", a tokenizer.json, or a folder with one, such as a run's; empty: the one in the "
        "token files' folder"),
    BOOL(data, shuffle, "true", SHAPES, "each epoch takes the windows in a new random order"),

    INTEGER(train, steps, REQUIRED, 1, 99999999, 0,
            "optimizer steps in all; the start says how many epochs of the data they are"),
    INTEGER(train, batch_size, "8", 1, 16777216, SHAPES, "sequences in a micro-batch"),
    INTEGER(
        train, sequence_length, DERIVED, 1, 16777216, SHAPES,
        "tokens in a sequence, the context in training; by default model.max_position_embeddings, "
        "at most 4096"),
    INTEGER(train, gradient_accumulation, "1", 1, 65536, SHAPES, "micro-batches in a step"),
    INTEGER(train, first_context, "0", 0, 16777216, SHAPES,
            "in the first context_warmup steps batches have pieces of sequences, each of another "
            "sequence, and attention sees a piece alone. The first pieces have sequence_length "
            "halved, up to six times, to no fewer tokens than this; then they double, up to whole "
            "sequences. 0: whole sequences from the start"),
    INTEGER(train, context_warmup, "0", 0, 99999999, SHAPES,
            "with first_context: the steps before sequences are whole; three quarters of "
            "train.steps at most"),
    INTEGER(train, loss_chunks, "0", 0, 16777216, 0,
            "pieces in which the logits are made, to save memory; divides batch_size x "
            "sequence_length; 0: as few as fit"),
    CHOICE(
        train, recompute, recomputes, "\"none\"", 0,
        "activations that the backward pass recomputes, to save memory; mlp: z and y (about 10 % "
        "slower); layer: all but a layer's input (about 30 % slower)"),
    INTEGER(train, recompute_layers, DERIVED, 1, 4096, 0,
            "how many layers recompute, from the first one; the others keep their activations; by "
            "default all"),
    INTEGER(train, seed, "1337", 0, JSON_MAX_INTEGER, SHAPES,
            "seed of the initial weights and of the data's order"),
    {"train.zero_init", KEY_BOOL, FIELD(model.zero_init), 0, 1, NULL, "false", 0,
     "o_proj and down_proj begin as zeros: each layer begins as the identity"},
    INTEGER(train, eval_interval, "500", 0, 99999999, 0,
            "steps between validations; 0: only at the start and the end"),
    INTEGER(train, eval_batches, "20", 0, 2147483647, 0,
            "micro-batches that a validation reads, always the same ones, spread evenly over the "
            "split; 0: the whole split"),
    INTEGER(train, save_interval, "500", -1, 99999999, 0,
            "steps between checkpoints; 0: only at the end; -1: never, to time a run, or if the "
            "disk has no room for a checkpoint"),
    INTEGER(train, keep_checkpoints, "3", 1, 99999999, 0,
            "how many of the newest checkpoints are kept, and at least one that was followed by a "
            "finite step"),
    BOOL(train, keep_best, "false", 0,
         "a validation that is the best so far is saved, and kept until a better one: "
         "output.dir/best"),
    TEXT(train, score, "\"\"", 0, 0,
         "tasks to score with each validation, as --score takes them, with spaces between: "
         "hellaswag=FILE piqa=FILE; empty: none"),
    INTEGER(train, score_limit, "500", 0, 99999999, 0,
            "questions of each of their files, always the same ones, spread evenly; 0: all"),
    INTEGER(train, sample_interval, "0", -1, 99999999, 0,
            "steps between samples; 0: only at the end; -1: never"),
    INTEGER(train, sample_tokens, "200", 1, 16777216, 0, "tokens in a sample at most"),
    INTEGER(train, max_nonfinite, "10", 1, 99999999, 0,
            "the run stops after this many skipped updates in a row; an update is skipped if the "
            "loss or the gradient norm is not finite"),
    NUMBER(train, max_minutes, "0", 0, 1e8, KEY_OF_PROCESS,
           "for a batch system: the process saves and ends within this many minutes; 0: no limit"),
    TEXT(train, resume, "\"\"", 0, KEY_OF_PROCESS,
         "empty: a new run; \"auto\": resume from the newest checkpoint in output.dir, if any; "
         "else the folder of a checkpoint"),
    BOOL(train, resume_allow_changes, "false", KEY_OF_PROCESS,
         "resume even if keys that shape the run have changed"),
    TEXT(train, init_from, "\"\"", 0, KEY_OF_PROCESS,
         "run, checkpoint or Hugging Face folder whose weights the run starts from; empty: random "
         "weights"),

    CHOICE(optimizer, kind, optimizers, "\"adamw\"", 0,
           "muon: the matrices of layers are updated by Muon, all else by AdamW; adamw: all by "
           "AdamW; a run keeps its kind"),
    CHOICE(optimizer, schedule, schedules, "\"cosine\"", 0,
           "learning-rate schedule; linear falls after the warm-up, wsd in the last decay_steps"),
    NUMBER(optimizer, learning_rate, "0.0003", 0, 100, 0, "peak learning rate"),
    NUMBER(optimizer, min_learning_rate, "0", 0, 100, 0,
           "learning rate at the end of cosine, linear and wsd"),
    INTEGER(optimizer, warmup_steps, "0", 0, 99999999, 0,
            "first steps, in which the learning rate rises linearly; if they and wsd's decay_steps "
            "are more than train.steps, at most train.steps / 10 + 1"),
    INTEGER(
        optimizer, decay_steps, "0", 0, 99999999, 0,
        "wsd: last steps, in which the learning rate falls linearly; if they and warmup_steps are "
        "more than train.steps, at most train.steps / 5 + 1"),
    NUMBER(optimizer, norm_rate, "1", 0, 1000, 0,
           "learning rate of norm weights, over that of the schedule"),
    NUMBER(optimizer, momentum, "0.95", 0, 1, KEY_BELOW_MAX,
           "Muon: decay of the gradient's running mean"),
    INTEGER(optimizer, momentum_warmup, "300", 0, 99999999, 0,
            "Muon: first steps, in which momentum rises linearly from 0.85, if it is above that; "
            "at most train.steps / 3; 0: none"),
    NUMBER(optimizer, beta1, "0.9", 0, 1, KEY_BELOW_MAX,
           "AdamW: decay of the gradient's running mean"),
    NUMBER(optimizer, beta2, "0.95", 0, 1, KEY_BELOW_MAX,
           "AdamW: decay of the gradient's running mean square"),
    NUMBER(optimizer, eps, "1e-08", 0, 1, KEY_ABOVE_MIN, "AdamW: added to the root mean square"),
    NUMBER(optimizer, weight_decay, "0.1", 0, 100, 0,
           "weight decay of matrices; norms have none; there is no dropout"),
    NUMBER(optimizer, clip_norm, "1", 0, DBL_MAX, 0,
           "largest norm that the whole gradient may have; 0: no clipping"),

    CHOICE(backend, device, devices, "\"auto\"", 0,
           "where to train; auto: the GPU if there is one"),
    CHOICE(backend, kernels, kernel_kinds, "\"auto\"", SHAPES,
           "GPU kernels; auto: fused ones where they are faster, and right: the first start tries "
           "each; fused: every program that can run, at any width; unfused: a separate kernel for "
           "everything around a GEMM"),
    CHOICE(backend, mainloop, mainloops, "\"auto\"", SHAPES,
           "the GEMM of fused kernels; wgmma: Hopper's; mma_sync: for any GPU from compute "
           "capability 8.0 on, in FP8 from 8.9; auto: the faster one"),
    CHOICE(
        backend, document_attention, document_attentions, "\"auto\"", SHAPES,
        "GPU: how attention stops at documents' ends; bias: a number is added to each score of "
        "whole windows, which takes 2 batch_size sequence_length^2 bytes; auto: by the "
        "documents' lengths, where cuDNN can: compute capability 9, and 10 if not deterministic"),
    CHOICE(backend, precision, precisions, "\"bf16\"", 0,
           "number format of GEMMs; fp8: all except attention's; --generate and --eval use bf16"),
    BOOL(backend, deterministic, "false", SHAPES,
         "GPU: every run gives the same bits, at a cost in speed and memory"),
    BOOL(backend, graphs, "true", 0,
         "GPU: a step is recorded once and replayed; false for profilers"),
    CHOICE(backend, moments, dtypes, "\"fp32\"", SHAPES,
           "number format of the optimizer's moments; bf16: half of the memory, stochastically "
           "rounded"),
    CHOICE(backend, masters, dtypes, "\"fp32\"", SHAPES,
           "number format of the weights that the optimizer updates; bf16: matrices take half of "
           "the memory, stochastically rounded, and GEMMs read them as they are"),
    CHOICE(backend, gradients, gradients, "\"auto\"", SHAPES,
           "GPU: number format of the gradients; auto: fp32 where micro-batches add up, else bf16; "
           "bf16: always, and each sum is rounded"),
    CHOICE(backend, offload, offloads, "\"none\"", 0,
           "GPU: what is kept in the host's memory, where the update reads and writes it; moments: "
           "the optimizer's moments; masters: also the weights of matrices; gradients: also the "
           "gradients of layers, which every micro-batch writes; more tokens in a step hide the "
           "time"),
    INTEGER(backend, offload_layers, DERIVED, 1, 4096, 0,
            "how many layers are offloaded, from the first one; by default all, with the embedding "
            "and lm_head"),
    INTEGER(backend, threads, "0", 0, 4096, 0,
            "CPU threads; 0: OMP_NUM_THREADS, else all that the process may use"),
    CHOICE(backend, cpu_products, products, "\"fp32\"", 0,
           "CPU: number format of GEMMs; bf16: oneDNN rounds the operands; auto: bf16 if the CPU "
           "has AMX, which makes it faster"),

    TEXT(output, dir, REQUIRED, 1, KEY_OF_PROCESS,
         "the run's folder: log, configuration, checkpoints"),
    CHOICE(output, save_dtype, dtypes, "\"fp32\"", 0,
           "number format of a checkpoint's model.safetensors; with bf16, fp32 weights are in "
           "optimizer.safetensors"),
    BOOL(output, save_optimizer, "true", 0,
         "checkpoints have the optimizer's moments, so that a run can resume; false: only the "
         "model, for --generate, --eval, train.init_from and Hugging Face"),
    BOOL(output, background_save, "true", 0,
         "a checkpoint is written while training continues, from a copy in the host's memory; "
         "false: training waits"),
    INTEGER(output, profile_steps, "0", 0, 99999999, 0,
            "how many steps a profiler records, between cudaProfilerStart and cudaProfilerStop, "
            "from the process' tenth step on; on a GPU steps are then launched kernel by kernel, "
            "so that NVTX ranges hold their kernels; 0: none"),
    {.name = NULL},
};

_Static_assert(sizeof config_keys / sizeof *config_keys <= MAX_KEYS, "raise MAX_KEYS");

const char *const config_sections[SECTION_COUNT] = {"model",     "data",    "train",
                                                    "optimizer", "backend", "output"};

const char *precision_name(Precision precision) {
  return precisions[precision];
}

const char *optimizer_name(OptimizerKind kind) {
  return optimizers[kind];
}

// ---- Finding keys

static bool key_inside(const Key *key, const char *section) {
  const size_t length = strlen(section);
  return strncmp(key->name, section, length) == 0 && key->name[length] == '.';
}

const Key *key_find(const char *name) {
  for (const Key *key = config_keys; key->name; key++)
    if (strcmp(key->name, name) == 0) return key;
  return NULL;
}

const Key *key_nearest(const char *name) {
  const char *names[MAX_KEYS], *dot = strrchr(name, '.');
  int count = 0, nearest = 0;
  for (const Key *key = config_keys; key->name; key++) names[count++] = strrchr(key->name, '.') + 1;
  const char *found = nearest_name(dot ? dot + 1 : name, names, count);
  while (nearest < count && names[nearest] != found) nearest++;
  return nearest < count ? &config_keys[nearest] : NULL;
}

bool key_given(const KeyReader *r, const char *name) {
  return r->given[key_find(name) - config_keys];
}

void keys_forget(KeyReader *r, const char *section) {
  for (const Key *key = config_keys; key->name; key++) {
    if (!key_inside(key, section)) continue;
    r->given[key - config_keys] = false;
    memset((char *)r->config + key->offset, 0, key->size);
  }
}

// ---- Sentences

const char *key_shown(const KeyReader *r, const char *name) {
  return name + (r->hugging_face && strncmp(name, "model.", 6) == 0 ? 6 : 0);
}

// "a whole number from 1 to 8", "a number, above 0 and at most 1"
static ShortText range_text(const Key *key) {
  const char *kind = key->type == KEY_INTEGER ? "a whole number" : "a number";
  const char *least = key->flags & KEY_ABOVE_MIN ? ", above " : ", at least ";
  const char *most = key->flags & KEY_BELOW_MAX ? " and below " : " and at most ";
  const bool no_max = key->max > (double)JSON_MAX_INTEGER;
  if (key->type == KEY_INTEGER && !no_max) least = " from ", most = " to ";
  return short_text("%s%s%s%s%s", kind, least, number_text(key->min).text, no_max ? "" : most,
                    no_max ? "" : number_text(key->max).text);
}

ShortText key_allowed(const Key *key) {
  if (key->type == KEY_INTEGER || key->type == KEY_NUMBER) return range_text(key);
  if (key->type == KEY_TEXT || key->type == KEY_SOURCES)
    return short_text("a string%s of %s%zu bytes", key->type == KEY_SOURCES ? " or a list" : "",
                      key->min > 0 ? "1 to " : "at most ", key->size - 1);
  if (!key->choices) return short_text("true or false");
  ShortText t = {""};
  for (int i = 0; key->choices[i]; i++) {
    const char *separator = i == 0 ? "" : key->choices[i + 1] ? ", " : " or ";
    short_append(&t, "%s\"%s\"", separator, key->choices[i]);
  }
  return t;
}

int key_unknown(KeyReader *r, const char *name) {
  const Key *near = key_nearest(name);
  error_set(r->err, "%s: %.200s is not a key", r->where, key_shown(r, name));
  if (near) return error_append(r->err, "; did you mean %s?", key_shown(r, near->name));
  return error_append(r->err, "; ./train --help-config lists them");
}

// ---- JSON -> field

static int store_number(const Key *key, void *field, const cJSON *value) {
  int64_t whole;
  if (!cJSON_IsNumber(value)) return -1;
  if (key->type == KEY_INTEGER && json_integer(value, &whole)) return -1;
  const double d = value->valuedouble;
  // Written so that a NaN fails.
  if (!(key->flags & KEY_ABOVE_MIN ? d > key->min : d >= key->min)) return -1;
  if (!(key->flags & KEY_BELOW_MAX ? d < key->max : d <= key->max)) return -1;
  memcpy(field, key->type == KEY_INTEGER ? (const void *)&whole : &d, key->size);
  return 0;
}

static int store_text(const Key *key, void *field, const char *text) {
  const size_t length = strlen(text);
  if ((double)length < key->min || length >= key->size) return -1;
  memset(field, 0, key->size); // configurations are compared as bytes
  memcpy(field, text, length);
  return 0;
}

// A list is kept as its JSON.
static int store_sources(const Key *key, void *field, const cJSON *value) {
  char *list = cJSON_IsArray(value) ? cJSON_PrintUnformatted(value) : NULL;
  const char *text = list ? list : cJSON_GetStringValue(value);
  const int status = text ? store_text(key, field, text) : -1;
  cJSON_free(list);
  return status;
}

static int store(const Key *key, Config *config, const cJSON *value) {
  void *field = (char *)config + key->offset;
  const char *text = cJSON_GetStringValue(value);
  if (cJSON_IsNull(value) && key->fallback && strcmp(key->fallback, DERIVED) == 0) {
    memset(field, 0, key->size); // to be derived
    return 0;
  }
  if (key->type == KEY_INTEGER || key->type == KEY_NUMBER) return store_number(key, field, value);
  if (key->type == KEY_BOOL) {
    *(bool *)field = cJSON_IsTrue(value);
    return cJSON_IsBool(value) ? 0 : -1;
  }
  if (key->type == KEY_SOURCES) return store_sources(key, field, value);
  if (!text) return -1;
  if (key->type == KEY_TEXT) return store_text(key, field, text);
  assert(key->size == sizeof(int)); // an enum's
  int choice = 0;
  while (key->choices[choice] && strcmp(key->choices[choice], text) != 0) choice++;
  *(int *)field = choice;
  return key->choices[choice] ? 0 : -1;
}

static int check_sources(KeyReader *r, const Key *key) {
  Mixture mixture;
  if (mixture_parse(&mixture, (const char *)r->config + key->offset, r->err) != 0)
    return error_prefix(r->err, "%s: %s", r->where, key_shown(r, key->name));
  mixture_free(&mixture);
  return 0;
}

int key_set(KeyReader *r, const Key *key, const cJSON *value) {
  if (store(key, r->config, value))
    return error_set(r->err, "%s: %s is %s, but it must be %s", r->where, key_shown(r, key->name),
                     json_shown(value).text, key_allowed(key).text);
  r->given[key - config_keys] = true;
  return key->type == KEY_SOURCES ? check_sources(r, key) : 0;
}

int key_set_json(KeyReader *r, const Key *key, const char *json) {
  cJSON *value = json_parse(key->name, json, strlen(json), r->err);
  const int failed = value ? key_set(r, key, value) : -1;
  cJSON_Delete(value);
  return failed;
}

int keys_fill_defaults(KeyReader *r, bool model_only) {
  for (const Key *key = config_keys; key->name; key++) {
    if (r->given[key - config_keys] || (model_only && !key_inside(key, "model"))) continue;
    if (!key->fallback)
      return error_set(r->err, "%s: %s is missing: %s; it must be %s", r->where,
                       key_shown(r, key->name), key->meaning, key_allowed(key).text);
    if (key_set_json(r, key, key->fallback)) return -1;
  }
  return 0;
}

// ---- Field -> JSON

bool key_equal(const Key *key, const Config *a, const Config *b) {
  return memcmp((const char *)a + key->offset, (const char *)b + key->offset, key->size) == 0;
}

bool key_is_set(const Key *key, const Config *config) {
  Error ignored;
  Config defaults = {0};
  KeyReader r = {.config = &defaults, .where = "", .err = &ignored};
  return key->fallback && strcmp(key->fallback, "null") != 0 &&
         key_set_json(&r, key, key->fallback) == 0 && !key_equal(key, &defaults, config);
}

static void write_value(JsonWriter *w, const char *name, const Key *key, const Config *config) {
  const void *field = (const char *)config + key->offset;
  if (key->type == KEY_BOOL) json_bool(w, name, *(const bool *)field);
  if (key->type == KEY_INTEGER) json_whole(w, name, *(const int64_t *)field);
  const bool list = key->type == KEY_SOURCES && mixture_is_list(field);
  if (list) json_raw(w, name, field);
  if (key->type == KEY_TEXT || (key->type == KEY_SOURCES && !list)) json_string(w, name, field);
  if (key->type == KEY_CHOICE) json_string(w, name, key->choices[*(const int *)field]);
  if (key->type != KEY_NUMBER) return;
  ShortText number = number_text(*(const double *)field);
  // transformers 4 warns about a factor that is written as an integer.
  if (!strpbrk(number.text, ".e")) strcat(number.text, ".0");
  json_raw(w, name, number.text);
}

char *key_text(const Key *key, const Config *config) {
  JsonWriter w = {0};
  write_value(&w, NULL, key, config);
  return w.text;
}

// Whether a key of rope_scaling means something for this type.
static bool rope_uses(RopeType type, const Key *key) {
  return key->type == KEY_CHOICE || type == ROPE_LLAMA3 ||
         (type == ROPE_LINEAR && strcmp(key->name, ROPE ".factor") == 0);
}

void keys_write_section(JsonWriter *w, const char *section, const Config *config) {
  const RopeType type = config->model.rope_scaling.type;
  for (const Key *key = config_keys; key->name; key++)
    if (key_inside(key, section) && !key_inside(key, ROPE))
      write_value(w, strrchr(key->name, '.') + 1, key, config);
  if (strcmp(section, "model") != 0) return;
  if (type == ROPE_DEFAULT) {
    json_raw(w, "rope_scaling", "null");
    return;
  }
  json_open(w, "rope_scaling", '{');
  for (const Key *key = config_keys; key->name; key++)
    if (key_inside(key, ROPE) && rope_uses(type, key))
      write_value(w, strrchr(key->name, '.') + 1, key, config);
  json_close(w, '}');
}

// ---- The model's keys: which follow from others, and which contradict each other

int key_conflict(const KeyReader *r, const char *name, double value, const char *must,
                 const char *other, double limit) {
  return error_set(r->err, "%s: %s is %s, but it must %s %s, which is %s", r->where,
                   key_shown(r, name), number_text(value).text, must, key_shown(r, other),
                   number_text(limit).text);
}

// Keys that the type does not use are forgotten: equal models are equal bytes.
static int resolve_rope(KeyReader *r) {
  static const Config none; // no valid value of a key that is used is 0
  Config *config = r->config;
  const RopeType type = config->model.rope_scaling.type;
  for (const Key *key = config_keys; key->name; key++) {
    if (!key_inside(key, ROPE) || key->type == KEY_CHOICE) continue;
    if (!rope_uses(type, key))
      memset((char *)config + key->offset, 0, key->size);
    else if (key_equal(key, config, &none))
      return error_set(r->err, "%s: %s is missing; %s \"%s\" needs it", r->where,
                       key_shown(r, key->name), key_shown(r, ROPE ".rope_type"), rope_types[type]);
  }
  const double low = config->model.rope_scaling.low_freq_factor;
  const double high = config->model.rope_scaling.high_freq_factor;
  if (type != ROPE_LLAMA3 || high > low) return 0;
  return key_conflict(r, ROPE ".high_freq_factor", high, "be above", ROPE ".low_freq_factor", low);
}

static int resolve_heads(KeyReader *r) {
  ModelConfig *model = &r->config->model;
  const char *heads = "model.num_attention_heads";
  const int64_t D = model->hidden_size, H = model->num_attention_heads;
  int64_t *KV = &model->num_key_value_heads, *d = &model->head_dim;
  if (*KV == 0) *KV = H;
  if (H % *KV != 0)
    return key_conflict(r, "model.num_key_value_heads", (double)*KV, "divide", heads, (double)H);
  if (*d == 0 && D % H != 0) {
    key_conflict(r, "model.hidden_size", (double)D, "be a multiple of", heads, (double)H);
    return error_append(r->err, ", unless %s is given", key_shown(r, "model.head_dim"));
  }
  if (*d == 0) *d = D / H;
  if (*d % 2 == 0 && *d <= 1024) return 0;
  return error_set(r->err,
                   "%s: %s is %lld, but it must be even and at most 1024, because RoPE turns pairs "
                   "(%s %lld, %s %lld)",
                   r->where, key_shown(r, "model.head_dim"), (long long)*d,
                   key_shown(r, "model.hidden_size"), (long long)D, key_shown(r, heads),
                   (long long)H);
}

int model_resolve(KeyReader *r) {
  return resolve_heads(r) || resolve_rope(r) ? -1 : 0;
}
