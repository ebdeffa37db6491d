#include "model/generate.h"

#include <assert.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

struct Generator {
  Llama llama;    // the model's parameters, with activations of its own: one sequence
  int64_t rows;   // most tokens fed at once
  int64_t length; // positions filled
  SampleOptions options;
  int64_t asked, taken; // tokens that the backend was asked for, and that it gave
  int64_t written;      // tokens since the prompt
  int32_t newest;       // the last token that was taken
  char *block;          // backend memory of the activations and the cache
  int32_t *history;     // [context] token ids in the cache, host
};

void sample_options_end(SampleOptions *options, int32_t id) {
  assert(id < 0 || options->end_count < MAX_ENDS);
  if (id >= 0) options->ends[options->end_count++] = id;
}

Draw sample_draw(const SampleOptions *o) {
  const double scale = o->temperature > 0 ? 1 / o->temperature : 0;
  return (Draw){.scale = scale <= FLT_MAX ? (float)scale : 0,
                .top_p = o->top_p,
                .top_k = o->top_k,
                .seed = o->seed};
}

Generator *generator_create(Llama *llama, int64_t max_positions, Error *err) {
  Generator *g = xcalloc(1, sizeof *g);
  Backend *be = llama->be;
  const ModelConfig *c = &llama->config;
  Llama *own = &g->llama;
  *own = *llama;
  own->spec = sampler_spec(&llama->spec, max_positions);
  own->acts = (Acts){.layers = xcalloc((size_t)c->num_hidden_layers + 1, sizeof *own->acts.layers)};
  g->rows = own->spec.seq;
  g->history = xcalloc((size_t)max_positions, sizeof *g->history);
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

static int32_t take_token(Generator *g) {
  return g->llama.be->services.token_take(g->llama.be, (uint64_t)g->taken++);
}

// Of a text that was left before its end.
static void take_the_rest(Generator *g) {
  while (g->taken < g->asked) take_token(g);
}

void generator_destroy(Generator *g) {
  if (!g) return;
  take_the_rest(g);
  if (g->block) g->llama.be->services.release(g->llama.be, g->block);
  free(g->llama.acts.layers);
  free(g->history);
  free(g);
}

// Runs `count` <= rows tokens at positions length .. through the layers, where their keys and
// values stay in the cache, and chooses the next. A single token makes the same calls every time,
// which a backend may record.
static void run_rows(Generator *g, int64_t count) {
  Llama *llama = &g->llama;
  Backend *be = llama->be;
  Acts *acts = &llama->acts;
  const bool alone = count == 1;
  llama->first = g->length;
  llama->position = &acts->draw->position;
  llama->spec.seq = llama->spec.loss_chunks = count;
  assert(g->length + count <= llama->spec.context);
  if (!alone || be->services.replay_begin(be, REPLAY_TOKEN)) {
    embed_forward(llama);
    for (int64_t l = 0; l < llama->config.num_hidden_layers; l++) layer_forward(llama, l);
    row_logits(llama, count - 1);
    be->choose(be, acts->logits, acts->draw, acts->tokens);
    if (alone) be->services.replay_end(be, REPLAY_TOKEN);
  }
  g->length += count;
}

static void feed_rows(Generator *g, const int32_t *ids, int64_t count) {
  const Backend *be = g->llama.be;
  const Acts *acts = &g->llama.acts;
  Draw draw = sample_draw(&g->options);
  draw.index = (uint64_t)g->asked;
  draw.position = (int32_t)g->length;
  draw.rows = (int32_t)count;
  memcpy(g->history + g->length, ids, (size_t)count * sizeof *ids);
  be->services.write(g->llama.be, acts->tokens, ids, (size_t)count * sizeof *ids);
  be->services.write(g->llama.be, acts->draw, &draw, sizeof draw);
  run_rows(g, count);
}

static void send_choice(Generator *g) {
  g->llama.be->services.token_send(g->llama.be, (uint64_t)g->asked++);
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
  take_the_rest(g);
  g->options = *options;
  g->length = g->asked = g->taken = g->written = 0;
  feed(g, prompt, count);
  send_choice(g);
  return 0;
}

int generator_next(Generator *g, int32_t *id, Error *err) {
  const Llama *llama = &g->llama;
  if (g->written >= g->options.max_tokens) return 0;
  if (g->asked == g->taken) {
    feed(g, &g->newest, 1);
    send_choice(g);
  }
  // While the host takes this token, a GPU works on the next: it has this one.
  const bool ahead = llama->be->steps_ahead > 0 && g->asked < g->options.max_tokens &&
                     g->length < llama->spec.context;
  if (ahead) {
    run_rows(g, 1);
    send_choice(g);
  }
  *id = g->newest = take_token(g);
  if (ahead) g->history[g->length - 1] = *id;
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
