#include "model/sample.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

void sample_options_end(SampleOptions *options, int32_t id) {
  assert(id < 0 || options->end_count < MAX_ENDS);
  if (id >= 0) options->ends[options->end_count++] = id;
}

// ---- The tokens in the order of falling logits, as many as are needed: of 128256 mostly a few.
// A heap holds blocks of logits by their largest; a logit that was taken becomes -infinity.

enum { BLOCK = 64, LANES = 8 };

typedef struct Block {
  float largest;
  int32_t first; // id
} Block;

typedef struct Ranking {
  float *logits; // [V]
  int64_t V, count;
  Block *heap; // [count], the largest on top
} Ranking;

// The largest of x[n], n at most BLOCK; NaN if there is one. Lanes, so that it is vectorized.
static float largest_of(const float *x, int64_t n) {
  float largest[LANES];
  int nan[LANES] = {0};
  for (int j = 0; j < LANES; j++) largest[j] = -INFINITY;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int j = 0; j < LANES; j++) {
      largest[j] = x[i + j] > largest[j] ? x[i + j] : largest[j];
      nan[j] |= x[i + j] != x[i + j];
    }
  for (; i < n; i++) {
    if (x[i] > largest[0]) largest[0] = x[i];
    nan[0] |= x[i] != x[i];
  }
  for (int j = 1; j < LANES; j++) {
    if (largest[j] > largest[0]) largest[0] = largest[j];
    nan[0] |= nan[j];
  }
  return nan[0] ? NAN : largest[0];
}

static float block_largest(const Ranking *r, int32_t first) {
  return largest_of(r->logits + first, r->V - first < BLOCK ? r->V - first : BLOCK);
}

static bool above(Block a, Block b) {
  return a.largest != b.largest ? a.largest > b.largest : a.first < b.first;
}

static void sift_down(Ranking *r, int64_t at) {
  const Block moved = r->heap[at];
  for (int64_t child; (child = 2 * at + 1) < r->count; at = child) {
    if (child + 1 < r->count && above(r->heap[child + 1], r->heap[child])) child++;
    if (!above(r->heap[child], moved)) break;
    r->heap[at] = r->heap[child];
  }
  r->heap[at] = moved;
}

// False where a logit is NaN or the largest is not finite.
static bool ranking_open(Ranking *r, float *logits, int64_t V) {
  *r = (Ranking){.logits = logits, .V = V, .count = (V + BLOCK - 1) / BLOCK};
  r->heap = xmalloc((size_t)r->count * sizeof *r->heap);
  bool nan = false;
  for (int64_t b = 0; b < r->count; b++) {
    const int32_t first = (int32_t)(b * BLOCK);
    r->heap[b] = (Block){block_largest(r, first), first};
    nan |= isnan(r->heap[b].largest);
  }
  for (int64_t b = r->count / 2; b-- > 0;) sift_down(r, b);
  return !nan && isfinite(r->heap[0].largest);
}

// The next token; its logit is r->heap[0].largest until then.
static int32_t ranking_take(Ranking *r) {
  Block *top = &r->heap[0];
  int32_t id = top->first;
  while (r->logits[id] != top->largest) id++;
  r->logits[id] = -INFINITY;
  top->largest = block_largest(r, top->first);
  sift_down(r, 0);
  return id;
}

// ---- The draw

// exp(x) for -80 <= x <= 0 to 1e-7 of it, as 2^n 2^f with |f| <= 1/2: vectorized, and the same bits
// on every machine. Coefficients: Taylor's.
static float fast_exp(float x) {
  const float y = x * 1.44269504f;
  const int32_t n = (int32_t)(y - 0.5f);
  const float f = (y - (float)n) * 0.693147181f;
  const float high = 1 / 24.f + f * (1 / 120.f + f * (1 / 720.f));
  const float p = 1 + f * (1 + f * (1 / 2.f + f * (1 / 6.f + f * high)));
  const int32_t bits = (n + 127) * (1 << 23);
  float power;
  memcpy(&power, &bits, sizeof power);
  return p * power;
}

static float exponent(float logit, float largest, float scale) {
  const float x = (logit - largest) * scale;
  return x > -80 ? x : -80;
}

// The sum of exp(scale * (logit - largest)) over x[n], n at most BLOCK.
static double block_weight(const float *x, int64_t n, float largest, float scale) {
  float weights[BLOCK] = {0};
  double sums[LANES] = {0};
  for (int64_t i = 0; i < n; i++) weights[i] = exponent(x[i], largest, scale);
  for (int64_t i = 0; i < n; i++) weights[i] = fast_exp(weights[i]);
  for (int64_t i = 0; i < BLOCK; i += LANES)
    for (int j = 0; j < LANES; j++) sums[j] += weights[i + j];
  for (int j = 1; j < LANES; j++) sums[0] += sums[j];
  return sums[0];
}

// Fills weights[V / BLOCK, rounded up]; returns their sum.
static double all_weights(const Ranking *r, float largest, float scale, double *weights) {
  double total = 0;
  for (int64_t b = 0; b < r->count; b++) {
    const int64_t left = r->V - b * BLOCK;
    weights[b] = block_weight(r->logits + b * BLOCK, left < BLOCK ? left : BLOCK, largest, scale);
    total += weights[b];
  }
  return total;
}

// Of all tokens, in the order of ids.
static int32_t draw_from_all(const Ranking *r, float largest, float scale, const double *weights,
                             double left) {
  int64_t b = 0;
  while (b + 1 < r->count && left >= weights[b]) left -= weights[b++];
  int64_t v = b * BLOCK;
  const int64_t last = r->V - v < BLOCK ? r->V - 1 : v + BLOCK - 1;
  while (v < last && (left -= fast_exp(exponent(r->logits[v], largest, scale))) >= 0) v++;
  return (int32_t)v;
}

// The tokens that were taken so far, in their order.
typedef struct Taken {
  int32_t id;
  double weight; // exp((logit - largest) / temperature)
} Taken;

typedef struct Draw {
  Ranking ranking;
  double temperature;
  float largest;
  Taken *list; // [count]
  int64_t count, capacity;
} Draw;

static double weight_of(Draw *d, int64_t i) {
  while (d->count <= i) {
    if (d->count == d->capacity)
      d->list = xrealloc(d->list, (size_t)(d->capacity = 2 * d->capacity + 64) * sizeof *d->list);
    const double below = (double)d->ranking.heap[0].largest - d->largest;
    d->list[d->count++] = (Taken){ranking_take(&d->ranking), exp(below / d->temperature)};
  }
  return d->list[i].weight;
}

// Of the likeliest tokens, in the order of falling logits.
static int32_t draw_from_kept(Draw *d, const SampleOptions *options, double all, double u) {
  const int64_t V = d->ranking.V;
  int64_t kept = options->top_k > 0 && options->top_k < V ? options->top_k : V;
  double sum = kept < V ? 0 : all;
  for (int64_t i = 0; kept < V && i < kept; i++) sum += weight_of(d, i);
  if (options->top_p < 1) { // the fewest whose probabilities reach top_p
    const double wanted = options->top_p * sum;
    int64_t i = 0;
    for (sum = 0; i < kept && (i == 0 || sum < wanted); i++) sum += weight_of(d, i);
    kept = i;
  }
  double left = u * sum;
  for (int64_t i = 0; i < kept; i++)
    if ((left -= weight_of(d, i)) < 0) return d->list[i].id;
  return d->list[0].id; // rounding left something over
}

static int32_t draw(Draw *d, const SampleOptions *options, double u) {
  const Ranking *r = &d->ranking;
  const bool few = options->top_k > 0 && options->top_k < r->V;
  const float scale = (float)(1 / d->temperature);
  double *weights = xmalloc((size_t)r->count * sizeof *weights); // of the blocks
  const double all = few ? 0 : all_weights(r, d->largest, scale, weights);
  const int32_t id = few || options->top_p < 1
                         ? draw_from_kept(d, options, all, u)
                         : draw_from_all(r, d->largest, scale, weights, u * all);
  free(weights);
  return id;
}

int32_t sample_token(float *logits, int64_t V, const SampleOptions *options, double u) {
  Draw d = {.temperature = options->temperature};
  int32_t id = -1;
  if (ranking_open(&d.ranking, logits, V)) {
    d.largest = d.ranking.heap[0].largest;
    // Below 1 / FLT_MAX a temperature acts as 0: the draw's float has no inverse of it.
    id = 1 / d.temperature <= FLT_MAX ? draw(&d, options, u) : ranking_take(&d.ranking);
  }
  free(d.list);
  free(d.ranking.heap);
  return id;
}
