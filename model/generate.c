#include "model/generate.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "data/tokenizer.h"
#include "model/step.h"

enum { FEED_ROWS = 64 }; // tokens of a prompt that go through the layers together

struct Generator {
  Llama *llama;
  int64_t context;        // positions the cache holds
  int64_t rows;           // most tokens fed at once
  int64_t length;         // positions filled
  char *block;            // backend memory of everything below
  act_t **qkv;            // [L] each [context, R]: the cache
  act_t *x, *x1;          // [rows, D]
  act_t *o;               // [rows, H d]
  act_t *z, *y;           // [rows, 2F], [rows, F]
  stat_t *sumsq, *sumsq1; // [parts.sumsq, max_tokens]
  act_t *logits;          // [1, V]
  int32_t *ids_device;    // [rows]
  int32_t *history;       // [context] token ids in the cache, host
  float *logits_host;     // [V]
};

static void *take(const Generator *g, size_t *used, size_t bytes) {
  void *p = g->block ? g->block + *used : NULL;
  *used += (bytes + 255) / 256 * 256;
  return p;
}

// Lays the buffers out; with g->block NULL only counts.
static size_t generator_layout(Generator *g, const ModelConfig *c, const Backend *be) {
  const size_t act = be->act_bytes, rows = (size_t)g->rows, D = (size_t)c->hidden_size;
  const size_t F = (size_t)c->intermediate_size,
               Hd = (size_t)(c->num_attention_heads * c->head_dim);
  const size_t R = Hd + 2 * (size_t)(c->num_key_value_heads * c->head_dim);
  const size_t stat = (size_t)(be->parts.sumsq * be->max_tokens) * be->stat_bytes;
  size_t used = 0;
  for (int64_t l = 0; l < c->num_hidden_layers; l++)
    g->qkv[l] = take(g, &used, (size_t)g->context * R * act);
  g->x = take(g, &used, rows * D * act);
  g->x1 = take(g, &used, rows * D * act);
  g->o = take(g, &used, rows * Hd * act);
  g->z = take(g, &used, rows * 2 * F * act);
  g->y = take(g, &used, rows * F * act);
  g->sumsq = take(g, &used, stat);
  g->sumsq1 = take(g, &used, stat);
  g->logits = take(g, &used, (size_t)c->vocab_size * act);
  g->ids_device = take(g, &used, rows * sizeof(int32_t));
  return used;
}

static int64_t feed_size(const Backend *be) {
  return be->max_tokens < FEED_ROWS ? be->max_tokens : FEED_ROWS;
}

size_t generator_bytes(const ModelConfig *model, const Backend *be, int64_t max_positions) {
  Generator g = {.context = max_positions, .rows = feed_size(be)};
  g.qkv = xcalloc((size_t)model->num_hidden_layers, sizeof *g.qkv);
  const size_t bytes = generator_layout(&g, model, be);
  free(g.qkv);
  return bytes;
}

Generator *generator_create(Llama *llama, int64_t max_positions, Error *err) {
  Generator *g = xcalloc(1, sizeof *g);
  Backend *be = llama->be;
  g->llama = llama;
  g->context = max_positions;
  g->rows = feed_size(be);
  g->qkv = xcalloc((size_t)llama->config.num_hidden_layers, sizeof *g->qkv);
  g->history = xcalloc((size_t)max_positions, sizeof *g->history);
  g->logits_host = xcalloc((size_t)llama->config.vocab_size, sizeof *g->logits_host);
  const size_t bytes = generator_layout(g, &llama->config, be);
  g->block = be->alloc(be, bytes);
  if (!g->block) {
    error_set(err, "not enough memory for a context of %lld tokens (%s); use a shorter one",
              (long long)max_positions, size_text(bytes).text);
    generator_destroy(g);
    return NULL;
  }
  generator_layout(g, &llama->config, be);
  return g;
}

void generator_destroy(Generator *g) {
  if (!g) return;
  if (g->block) g->llama->be->release(g->llama->be, g->block);
  free(g->qkv);
  free(g->history);
  free(g->logits_host);
  free(g);
}

// Runs `count` <= rows tokens at positions length .. through the layers; their keys and values stay
// in the cache. The last token's logits are left in g->logits_host.
static void feed_rows(Generator *g, const int32_t *ids, int64_t count) {
  Llama *llama = g->llama;
  Backend *be = llama->be;
  const ModelConfig *c = &llama->config;
  const int64_t D = c->hidden_size, F = c->intermediate_size,
                Hd = c->num_attention_heads * c->head_dim;
  const int64_t R = Hd + 2 * c->num_key_value_heads * c->head_dim, T = g->length + count;
  const int64_t last = count - 1;
  assert(T <= g->context);
  memcpy(g->history + g->length, ids, (size_t)count * sizeof *ids);
  be->write(be, g->ids_device, ids, (size_t)count * sizeof *ids);
  be->embed(be, count, g->ids_device, llama->tensors[param_index(c, PARAM_EMBED, -1)].compute, g->x,
            g->sumsq);
  for (int l = 0; l < (int)c->num_hidden_layers; l++) {
    const LayerWeights w = layer_weights(llama, l);
    act_t *rows = (char *)g->qkv[l] + (size_t)(g->length * R) * be->act_bytes;
    be->qkv(be, count, count, g->length, g->x, g->sumsq, w.qkv->folded, rows);
    be->attention_decode(be, T, count, g->qkv[l], g->o);
    be->residual(be, count, Hd, g->o, w.out->compute, g->x, g->x1, g->sumsq1);
    be->gate_up(be, count, g->x1, g->sumsq1, w.gate_up->folded, g->z, g->y);
    be->residual(be, count, F, g->y, w.down->compute, g->x1, g->x, g->sumsq);
  }
  g->length = T;
  be->lm_head(be, 1, (char *)g->x + (size_t)(last * D) * be->act_bytes,
              (char *)g->sumsq + (size_t)last * be->stat_bytes,
              llama->tensors[param_index(c, PARAM_LM_HEAD, -1)].folded, g->logits);
  be->read_act(be, g->logits_host, g->logits, c->vocab_size);
}

// A full cache is emptied and its newer half fed again from position 0, so that text can go on for
// ever.
static void feed(Generator *g, const int32_t *ids, int64_t count) {
  while (count > 0) {
    if (g->length == g->context) {
      const int64_t kept = g->context / 2;
      int32_t *tail = xmalloc((size_t)(kept + 1) * sizeof *tail);
      memcpy(tail, g->history + g->context - kept, (size_t)kept * sizeof *tail);
      g->length = 0;
      feed(g, tail, kept);
      free(tail);
    }
    int64_t now = count < g->rows ? count : g->rows;
    if (now > g->context - g->length) now = g->context - g->length;
    feed_rows(g, ids, now);
    ids += now;
    count -= now;
  }
}

int64_t generate(Generator *g, const int32_t *prompt, int64_t count, const SampleOptions *options,
                 TokenSink *sink, void *context, Error *err) {
  const int64_t V = g->llama->config.vocab_size;
  if (count < 1) return error_set(err, "the prompt has no token; give at least one character");
  for (int64_t i = 0; i < count; i++)
    if (prompt[i] < 0 || prompt[i] >= V)
      return error_set(err,
                       "prompt token %d at position %lld is outside the model's vocab_size of %lld",
                       prompt[i], (long long)i, (long long)V);
  g->length = 0;
  feed(g, prompt, count);
  int64_t written = 0;
  while (written < options->max_tokens) {
    const double u = rng_uniform(options->seed, (uint64_t)written);
    const int32_t id = sample_token(g->logits_host, V, options, u);
    if (V == BYTE_VOCAB && id == TOKEN_END) break;
    written++;
    if (!sink(context, id)) break;
    if (written < options->max_tokens) feed(g, &id, 1);
  }
  return written;
}

typedef struct Candidate {
  float logit;
  int32_t id;
} Candidate;

static int by_falling_logit(const void *a_, const void *b_) {
  const Candidate *a = a_, *b = b_;
  if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
  return a->id < b->id ? -1 : 1;
}

int32_t sample_token(float *logits, int64_t V, const SampleOptions *options, double u) {
  int32_t best = 0;
  for (int64_t v = 1; v < V; v++)
    if (logits[v] > logits[best]) best = (int32_t)v;
  if (!(options->temperature > 0)) return best;

  Candidate *list = xmalloc((size_t)V * sizeof *list);
  for (int64_t v = 0; v < V; v++) list[v] = (Candidate){logits[v], (int32_t)v};
  qsort(list, (size_t)V, sizeof *list, by_falling_logit);
  int64_t kept = options->top_k > 0 && options->top_k < V ? options->top_k : V;
  const double largest = list[0].logit;
  double sum = 0;
  for (int64_t i = 0; i < kept; i++) sum += exp((list[i].logit - largest) / options->temperature);
  if (options->top_p < 1) { // the fewest likeliest tokens whose probabilities reach top_p
    double reached = 0;
    int64_t i = 0;
    while (i < kept && reached < options->top_p * sum)
      reached += exp((list[i++].logit - largest) / options->temperature);
    kept = i > 0 ? i : 1;
    sum = i > 0 ? reached : 1;
  }
  double left = u * sum;
  int64_t chosen = 0;
  for (; chosen < kept - 1; chosen++) {
    left -= exp((list[chosen].logit - largest) / options->temperature);
    if (left < 0) break;
  }
  const int32_t id = list[chosen].id;
  free(list);
  return id;
}
