// What follows from other keys, and keys that contradict each other.
#include <string.h>
#include "kernels/fp8.h"
#include "model/config/keys.h"

// "KEY is VALUE, but it must be at most OTHER, which is LIMIT."
static int refuse(const char *where, const char *key, double value, const char *must,
                  const char *other, double limit, Error *err) {
  return error_set(err, "%s: %s is %s, but it must %s %s, which is %s", where, key,
                   number_text(value).text, must, other, number_text(limit).text);
}

// ---- The model

static int check_llama3(const Config *config, const char *where, Error *err) {
  static const Config none; // no valid value of these keys is 0
  for (const Key *key = config_keys; key->name; key++)
    if (strcmp(key->section, "model.rope_scaling") == 0 && key_equal(key, config, &none))
      return error_set(err, "%s: rope_scaling.%s is missing; llama3 scaling needs it", where,
                       key->name);
  const double low = config->model.rope_scaling.low_freq_factor;
  const double high = config->model.rope_scaling.high_freq_factor;
  if (high > low) return 0;
  return refuse(where, "rope_scaling.high_freq_factor", high, "be above", "low_freq_factor", low,
                err);
}

static int resolve_heads(ModelConfig *model, const char *where, Error *err) {
  const int64_t D = model->hidden_size, H = model->num_attention_heads;
  int64_t *KV = &model->num_key_value_heads, *d = &model->head_dim;
  if (*KV == 0) *KV = H;
  if (H % *KV != 0)
    return refuse(where, "num_key_value_heads", *KV, "divide", "num_attention_heads", H, err);
  if (*d == 0 && D % H != 0) {
    refuse(where, "hidden_size", D, "be a multiple of", "num_attention_heads", H, err);
    return error_append(err, ", unless head_dim is given");
  }
  if (*d == 0) *d = D / H;
  if (*d % 2 == 0 && *d <= 1024) return 0;
  return error_set(err,
                   "%s: head_dim is %lld, but it must be even and at most 1024, because RoPE "
                   "turns pairs (hidden_size %lld, num_attention_heads %lld)",
                   where, (long long)*d, (long long)D, (long long)H);
}

int model_resolve(Config *config, const char *where, Error *err) {
  ModelConfig *model = &config->model;
  if (resolve_heads(model, where, err)) return -1;
  if (model->rope_scaling.type == ROPE_LLAMA3) return check_llama3(config, where, err);
  memset(&model->rope_scaling, 0, sizeof model->rope_scaling);
  return 0;
}

// ---- The run

static int check_shape(const Config *c, const char *where, Error *err) {
  const int64_t B = c->train.batch_size, T = c->train.sequence_length;
  const int64_t positions = c->model.max_position_embeddings, chunks = c->train.loss_chunks;
  enum { MAX_TOKENS = 1 << 24 }; // keeps every activation's size inside 63 bits
  if (T > positions)
    return refuse(where, "train.sequence_length", T, "be at most", "model.max_position_embeddings",
                  positions, err);
  if (B > MAX_TOKENS / T)
    return error_set(err,
                     "%s: train.batch_size %lld x train.sequence_length %lld is more than %d "
                     "tokens; use a smaller batch and train.gradient_accumulation",
                     where, (long long)B, (long long)T, MAX_TOKENS);
  if (chunks > 0 && B * T % chunks != 0)
    return refuse(where, "train.loss_chunks", chunks, "divide",
                  "train.batch_size x train.sequence_length", B * T, err);
  const double tokens =
      (double)c->train.steps * (double)c->train.gradient_accumulation * (double)B * (double)T;
  if (tokens <= (double)JSON_MAX_INTEGER) return 0;
  return error_set(err,
                   "%s: train.steps x gradient_accumulation x batch_size x sequence_length is %g "
                   "tokens, but the most is %g",
                   where, tokens, (double)JSON_MAX_INTEGER);
}

// The sizes that FP8 products sum over: a weight gradient's are the tokens of a call.
static int check_precision(const Config *c, const char *where, Error *err) {
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
      return error_set(err,
                       "%s: %s is %lld, but with backend.precision \"%s\" it must be a multiple of "
                       "%d; change it, or take \"bf16\"",
                       where, sizes[i].name, (long long)sizes[i].value, precision_name(precision),
                       FP8_GROUP);
  return 0;
}

static int check_steps(const Config *c, const char *where, Error *err) {
  const OptimizerConfig *o = &c->optimizer;
  const int64_t steps = c->train.steps;
  const int64_t profile_end = PROFILE_START + c->output.profile_steps - 1;
  const char *at_most = "be at most";
  if (o->min_learning_rate > o->learning_rate)
    return refuse(where, "optimizer.min_learning_rate", o->min_learning_rate, at_most,
                  "optimizer.learning_rate", o->learning_rate, err);
  if (o->schedule == SCHEDULE_WSD && o->decay_steps == 0)
    return error_set(err,
                     "%s: optimizer.decay_steps is 0, but the schedule wsd needs it: the last "
                     "steps, in which the rate falls",
                     where);
  if (c->output.profile_steps > 0 && profile_end > steps)
    return refuse(where, "the last profiled step (9 + output.profile_steps)", profile_end, at_most,
                  "train.steps", steps, err);
  return 0;
}

static void resolve_length(Config *c) {
  enum { MOST = 4096 };
  const int64_t positions = c->model.max_position_embeddings;
  if (c->train.sequence_length == 0) c->train.sequence_length = positions < MOST ? positions : MOST;
}

int config_resolve(Config *config, const char *where, Error *err) {
  if (model_resolve(config, where, err)) return -1;
  resolve_length(config);
  if (check_shape(config, where, err) || check_precision(config, where, err)) return -1;
  return check_steps(config, where, err);
}
