// The run's configuration: a JSON file and "section.key=value" overrides become checked structs.
// One table in keys.c names every key with its type, range and default; parsing, overrides, the
// resolved configuration, the resume check and `train --help-config` all derive from it.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "base/json.h"
#include "data/batch.h"
#include "kernels/operations.h"

typedef enum RopeType { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3 } RopeType;

// Hugging Face LlamaConfig's names and meanings.
typedef struct ModelConfig {
  int64_t hidden_size;         // D
  int64_t intermediate_size;   // F
  int64_t num_hidden_layers;   // L
  int64_t num_attention_heads; // H
  int64_t num_key_value_heads; // KV, divides H; default H
  int64_t head_dim;            // d, even; default hidden_size / num_attention_heads
  int64_t vocab_size;          // V
  int64_t max_position_embeddings;
  double rms_norm_eps;
  double rope_theta;
  bool tie_word_embeddings;
  double initializer_range; // standard deviation of the initial weights
  bool zero_init;           // but o_proj's and down_proj's are 0 (train.zero_init)
  struct {
    RopeType type;
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_max_position_embeddings;
  } rope_scaling; // ROPE_LINEAR has the factor alone, ROPE_DEFAULT nothing; the others are 0
} ModelConfig;

#define MODEL_CONFIG_FILE "config.json" // Hugging Face's

enum { PATH_CHARS = 1024, SOURCES_CHARS = 8192 };
enum { MAX_TOKENS = 1 << 24 }; // of a micro-batch: keeps every activation's size inside 63 bits

typedef struct DataConfig {
  char train[SOURCES_CHARS];  // token files: a path, a glob, or a folder of ./prepare; or a list of
                              // these as JSON, perhaps with weights (data/mixture.h)
  char val[SOURCES_CHARS];    // the same; empty = no validation
  DocumentsMode documents;    // mask or join
  char tokenizer[PATH_CHARS]; // as tokenizer_open takes it; empty = the token files'
  bool shuffle;               // windows in a new random order each epoch
} DataConfig;

typedef struct TrainConfig {
  int64_t steps;                 // optimizer steps in all
  int64_t batch_size;            // sequences in a micro-batch, B
  int64_t sequence_length;       // T; default max_position_embeddings, at most 4096
  int64_t gradient_accumulation; // micro-batches a step
  int64_t first_context;         // least tokens that attention sees together (spec.h); 0: T
  int64_t context_warmup;        // the steps in which it sees fewer than T
  int64_t loss_chunks;           // pieces of a micro-batch's logits; 0 = as few as fit
  Recompute recompute;
  int64_t recompute_layers; // how many layers recompute, from the first; default all
  uint64_t seed;
  int64_t eval_interval; // steps between validations; 0 = only at the start and the end
  int64_t eval_batches;  // micro-batches a validation reads; 0 = the whole split
  int64_t save_interval; // steps between checkpoints; 0 = only at the end, -1 = never
  int64_t keep_checkpoints;
  bool keep_best;
  char score[4 * PATH_CHARS]; // tasks that each validation scores, as scorer_add takes them, with
                              // spaces between; "" = none
  int64_t score_limit;        // questions of each of their files; 0 = all
  int64_t sample_interval;    // steps between samples; 0 = only at the end, -1 = never
  int64_t sample_tokens;
  int64_t max_nonfinite;      // skipped updates in a row before the run stops
  double max_minutes;         // the process saves and ends before they are over; 0 = no limit
  char resume[PATH_CHARS];    // "" = a new run, "auto" = latest of output.dir if any, or a folder
  bool resume_allow_changes;  // resume although keys that shape the run differ
  char init_from[PATH_CHARS]; // folder with weights and config.json to start from; "" = random
} TrainConfig;

typedef enum Schedule {
  SCHEDULE_CONSTANT,
  SCHEDULE_COSINE,
  SCHEDULE_LINEAR,
  SCHEDULE_WSD
} Schedule;

// Muon updates the matrices of layers, AdamW the rest.
typedef enum OptimizerKind { OPTIMIZER_ADAMW, OPTIMIZER_MUON } OptimizerKind;

typedef struct OptimizerConfig {
  OptimizerKind kind;
  Schedule schedule;
  double learning_rate;     // peak
  double min_learning_rate; // at the end of cosine, linear and WSD
  int64_t warmup_steps;     // linear from learning_rate / warmup_steps
  int64_t decay_steps;      // WSD: the last steps, in which the rate falls linearly to the minimum
  double norm_rate;         // of norm weights, over the learning rate
  double momentum;          // Muon's
  int64_t momentum_warmup;  // the first steps, in which Muon's momentum rises to it
  double beta1, beta2, eps, weight_decay;
  double clip_norm; // 0 = no clipping
} OptimizerConfig;

typedef enum Device { DEVICE_AUTO, DEVICE_CUDA, DEVICE_CPU } Device;

// The precision of products: bf16 (real on the CPU), or FP8.
typedef enum Precision { PRECISION_BF16, PRECISION_FP8 } Precision;

typedef enum DocumentAttention {
  DOCUMENT_ATTENTION_AUTO,
  DOCUMENT_ATTENTION_BIAS
} DocumentAttention;

typedef struct BackendConfig {
  Device device;
  KernelChoice kernels; // GPU only, as the next
  Mainloop mainloop;
  DocumentAttention document_attention;
  Precision precision;
  bool deterministic;     // GPU: equal bits in every run
  bool graphs;            // GPU: a step is recorded once and replayed
  MomentType moments;     // of the optimizer
  MasterType masters;     // of matrices
  GradientType gradients; // GPU
  Offload offload;        // GPU: what is kept in the host's memory
  int64_t offload_layers; // for how many layers, from the first; default all matrices
  int64_t threads;        // CPU threads; 0 = all
  CpuProducts cpu_products;
} BackendConfig;

typedef enum SaveDtype { SAVE_FP32, SAVE_BF16 } SaveDtype;

enum { PROFILE_START = 10 }; // the steps before it warm up

typedef struct OutputConfig {
  char dir[PATH_CHARS];  // the run's folder: log.jsonl, run.json, checkpoints
  SaveDtype save_dtype;  // of the weights in a checkpoint's model.safetensors
  bool save_optimizer;   // moments in checkpoints, to resume from; false = the model alone
  bool background_save;  // checkpoints are written while training continues
  int64_t profile_steps; // that profilers record, from step PROFILE_START of a process; 0 = none
} OutputConfig;

typedef struct Config {
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  BackendConfig backend;
  OutputConfig output;
} Config;

// Reads the file, applies the overrides ("section.key=value", in order), checks everything. Nothing
// is opened but the file itself and, where "model" is a path, that config.json, or the one of the
// folder that it stands for (data/model_folder.h; relative to the config file's folder
// first, then to the working directory). A folder is also train.init_from and, where it has a
// tokenizer.json, data.tokenizer, unless they are given.
int config_load(Config *config, const char *path, int override_count, char *const *overrides,
                Error *err);

// 0 where a file is there. Else a message, which says of a folder how to resume its run or to train
// from its model.
int config_check_path(const char *path, Error *err);

// A checkpoint's run.json, as this or another version wrote it: unknown keys are ignored.
int config_load_saved(Config *config, const char *path, Error *err);

// config_load from memory; `name` stands for the path in sentences.
int config_parse(Config *config, const char *name, const char *json, int override_count,
                 char *const *overrides, Error *err);

// The resolved configuration as JSON, every key present; the caller frees it.
// config_parse(config_json(c)) == c.
char *config_json(const Config *config);

// The same as a value of an object.
void config_write(JsonWriter *w, const char *name, const Config *config);

// config_json without the keys that have their defaults; of a model without RoPE's scaling.
char *config_json_short(const Config *config);

// For the start of a run, on four lines at most: the keys that have a default and another value.
void config_print(const Config *config);

// As backend.precision and optimizer.kind have them: "fp8", "muon".
const char *precision_name(Precision precision);
const char *optimizer_name(OptimizerKind kind);

// Whether a run of `saved` may resume as `now`. -1 and a message with the keys that shape the
// run (marked in the table: model, data, batch) and both values, where they differ and
// now->train.resume_allow_changes is not set, or where the weights would not fit.
int config_compare(const Config *saved, const Config *now, Error *err);
// All differences, in fresh memory: "train.steps 40 -> 80, optimizer.eps 1e-08 -> 1e-06", or "".
// Keys of a process, such as train.resume, are left out.
char *config_changes(const Config *saved, const Config *now);

// For --help-config, prints keys with their defaults, values and meanings, in lines of at most 80
// columns: the keys whose name begins with `words` ("train.s", or "" for all), else the keys with
// these words in name or meaning ("warm"), else the key of the nearest name ("lr": learning_rate).
// -1 and a message if there is none.
int config_print_keys(const char *words, Error *err);

// A Hugging Face config.json (LlamaForCausalLM, or a MistralForCausalLM whose window no sequence
// exceeds) -> ModelConfig.
int model_config_parse(ModelConfig *model, const char *name, const char *json, Error *err);

int model_config_read(ModelConfig *model, const char *path, Error *err); // likewise, from a file

// Whether weights that belong to FOLDER/config.json fit `model`. The sentence names every field
// that differs. initializer_range may, and max_position_embeddings may be longer.
int model_config_check(const ModelConfig *model, const char *folder, Error *err);

// And back. The text is the caller's to free.
typedef struct ConfigExtras {
  int bos, eos;    // the tokens around a document, -1 where the tokenizer is not known
  SaveDtype dtype; // of the weights in the same folder
  const char
      *carried;   // NULL, or a valid config.json: its fields that say nothing of the above stay
  bool carry_ids; // its bos_token_id and eos_token_id win over bos and eos
} ConfigExtras;
char *model_config_json(const ModelConfig *model, const ConfigExtras *extras);
