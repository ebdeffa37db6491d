#include "model/generate.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"

struct Generator {
  Llama llama;    // the model's parameters, with activations of its own: one sequence
  int64_t rows;   // most tokens fed at once
  int64_t length; // positions filled
  SampleOptions options;
  int64_t written;    // tokens since the prompt
  int32_t newest;     // the last token of these: not fed yet
  char *block;        // backend memory of the activations and the cache
  int32_t *history;   // [context + 1] token ids in the cache, host, and their number
  float *logits_host; // [V]
};

Generator *generator_create(Llama *llama, int64_t max_positions, Error *err) {
  Generator *g = xcalloc(1, sizeof *g);
  Backend *be = llama->be;
  const ModelConfig *c = &llama->config;
  Llama *own = &g->llama;
  *own = *llama;
  own->spec = sampler_spec(&llama->spec, max_positions);
  own->acts = (Acts){.layers = xcalloc((size_t)c->num_hidden_layers + 1, sizeof *own->acts.layers)};
  g->rows = own->spec.seq;
  g->history = xcalloc((size_t)max_positions + 1, sizeof *g->history);
  g->logits_host = xcalloc((size_t)c->vocab_size, sizeof *g->logits_host);
  const size_t bytes = acts_layout(&own->acts, c, &own->spec, NULL, NULL);
  g->block = be->services.alloc(be, bytes);
  if (!g->block) {
    error_set(err, "not enough memory for a context of %lld tokens (%s); use a shorter one",
              (long long)max_positions, size_text(bytes).text);
    generator_destroy(g);
    return NULL;
  }
  acts_layout(&own->acts, c, &own->spec, g->block, NULL);
  return g;
}

void generator_destroy(Generator *g) {
  if (!g) return;
  if (g->block) g->llama.be->services.release(g->llama.be, g->block);
  free(g->llama.acts.layers);
  free(g->history);
  free(g->logits_host);
  free(g);
}

// Runs `count` <= rows tokens at positions length .. through the layers; their keys and values stay
// in the cache. Writes the last token's logits to g->logits_host. A single token makes the same
// calls every time, which a backend may record.
static void feed_rows(Generator *g, const int32_t *ids, int64_t count) {
  Llama *llama = &g->llama;
  Backend *be = llama->be;
  Acts *acts = &llama->acts;
  int32_t *const fed = g->history + g->length, position = (int32_t)g->length;
  const bool alone = count == 1, room = count < g->rows; // for the position behind the tokens
  llama->first = g->length;
  llama->position = room ? acts->tokens + count : acts->targets; // which a generator has no use for
  llama->spec.seq = llama->spec.loss_chunks = count;
  assert(g->length + count <= llama->spec.context);
  memcpy(fed, ids, (size_t)count * sizeof *ids);
  fed[count] = position;
  be->services.write(be, acts->tokens, fed, (size_t)(count + room) * sizeof *fed);
  if (!room) be->services.write(be, acts->targets, &position, sizeof position);
  if (!alone || be->services.replay_begin(be, REPLAY_TOKEN)) {
    embed_forward(llama);
    for (int64_t l = 0; l < llama->config.num_hidden_layers; l++) layer_forward(llama, l);
    row_logits(llama, count - 1);
    if (alone) be->services.replay_end(be, REPLAY_TOKEN);
  }
  g->length += count;
  be->services.read_act(be, g->logits_host, acts->logits, llama->config.vocab_size);
}

// A full cache is emptied and its newer half fed again from position 0, so that text has no limit.
static void feed(Generator *g, const int32_t *ids, int64_t count) {
  while (count > 0) {
    if (g->length == g->llama.spec.context) {
      const int64_t kept = g->length / 2;
      const int32_t *newer = g->history + g->length - kept;
      g->length = 0;
      feed(g, newer, kept); // overwrites tokens before `newer` alone
    }
    int64_t now = count < g->rows ? count : g->rows;
    if (now > g->llama.spec.context - g->length) now = g->llama.spec.context - g->length;
    feed_rows(g, ids, now);
    ids += now;
    count -= now;
  }
}

int generator_start(Generator *g, const int32_t *prompt, int64_t count,
                    const SampleOptions *options, Error *err) {
  const int64_t V = g->llama.config.vocab_size;
  if (count < 1) return error_set(err, "the prompt has no token; give at least one character");
  for (int64_t i = 0; i < count; i++)
    if (prompt[i] < 0 || prompt[i] >= V)
      return error_set(err,
                       "prompt token %d at position %lld is outside the model's vocab_size of %lld",
                       prompt[i], (long long)i, (long long)V);
  g->options = *options;
  g->length = g->written = 0;
  feed(g, prompt, count);
  return 0;
}

int generator_next(Generator *g, int32_t *id, Error *err) {
  if (g->written >= g->options.max_tokens) return 0;
  if (g->written > 0) feed(g, &g->newest, 1);
  const double u = rng_uniform(g->options.seed, (uint64_t)g->written);
  *id = g->newest = sample_token(g->logits_host, g->llama.config.vocab_size, &g->options, u);
  if (*id < 0)
    return error_set(err, "the model's logits are not finite: its weights are damaged, or it has "
                          "diverged in training; take an earlier checkpoint");
  for (int i = 0; i < g->options.end_count; i++)
    if (*id == g->options.ends[i]) return 0;
  g->written++;
  return 1;
}

int64_t generator_written(const Generator *g) {
  return g->written;
}
