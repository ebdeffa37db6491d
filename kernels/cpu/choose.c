#include <stdlib.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "kernels/choose.h"
#include "kernels/cpu/cpu.h"

// The first token of the largest logit; -1 where a logit is NaN or the largest is not finite.
VECTORS static int32_t likeliest(const float *logits, int64_t V) {
  float largest = -INFINITY;
  int finite = 1;
#pragma omp simd reduction(max : largest) reduction(& : finite)
  for (int64_t i = 0; i < V; i++) {
    largest = logits[i] > largest ? logits[i] : largest;
    finite &= logits[i] < INFINITY; // NaN is not
  }
  if (!finite || largest == -INFINITY) return -1;
  int32_t id = 0;
  while (logits[id] != largest) id++;
  return id;
}

// The tokens that may still be drawn, in the order of their ids.
typedef struct Tokens {
  int64_t count;
  float *logits;
  uint64_t *weights;
  int32_t *ids;
} Tokens;

VECTORS static void weigh(const Tokens *t, float largest, float scale, int bits) {
  for (int64_t i = 0; i < t->count; i++)
    t->weights[i] = token_weight((t->logits[i] - largest) * scale, bits);
}

static uint64_t sum_of(const Tokens *t) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < t->count; i++) sum += t->weights[i];
  return sum;
}

// The next functions return the index at which the sum of the weights, taken in some order, first
// exceeds `target`, which is below the sum of all.

// In the order of ids, over the logits that have the bits `key`, or over all.
static int64_t exceeds_by_id(const Tokens *t, bool all, uint32_t key, uint64_t target) {
  int64_t i = 0;
  for (; i < t->count; i++) {
    if (!all && logit_order(t->logits[i]) != key) continue;
    if (t->weights[i] > target) break;
    target -= t->weights[i];
  }
  return i;
}

// In the order of falling logits, of equal ones the lower id first. Instead of a sort, histograms
// of the weights narrow the logit down by 11, 11 and 10 bits.
static int64_t exceeds_by_logit(const Tokens *t, uint64_t target) {
  uint64_t bins[1 << 11];
  uint32_t key = 0; // its lowest `above` bits are not known yet
  for (int above = 32, below; above > 0; above = below) {
    below = above > 11 ? above - 11 : 0;
    const uint32_t count = UINT32_C(1) << (above - below), first = key >> below;
    memset(bins, 0, sizeof bins);
    for (int64_t i = 0; i < t->count; i++) {
      const uint32_t bin = (logit_order(t->logits[i]) >> below) - first;
      if (bin < count) bins[bin] += t->weights[i];
    }
    uint32_t bin = count - 1;
    while (bins[bin] <= target) target -= bins[bin--];
    key |= bin << below;
  }
  return exceeds_by_id(t, false, key, target);
}

// Drops the tokens after index `last` in that order.
static void keep_until(Tokens *t, int64_t last) {
  const float least = t->logits[last];
  int64_t kept = 0;
  for (int64_t i = 0; i < t->count; i++) {
    if (!(t->logits[i] > least || (t->logits[i] == least && i <= last))) continue;
    t->logits[kept] = t->logits[i];
    t->weights[kept] = t->weights[i];
    t->ids[kept++] = t->ids[i];
  }
  t->count = kept;
}

static int64_t draw(Tokens *t, const Draw *d, float largest, double u) {
  const int bits = weight_bits(t->count);
  const bool few = d->top_k > 0 && d->top_k < t->count, likely = d->top_p < 1;
  if (few) {
    for (int64_t i = 0; i < t->count; i++) t->weights[i] = t->logits[i] > -INFINITY;
    keep_until(t, exceeds_by_logit(t, min_i64(d->top_k, (int64_t)sum_of(t)) - 1));
  }
  weigh(t, largest, d->scale, bits);
  if (likely) keep_until(t, exceeds_by_logit(t, top_p_target(sum_of(t), d->top_p)));
  const uint64_t target = draw_target(sum_of(t), u);
  return few || likely ? exceeds_by_logit(t, target) : exceeds_by_id(t, true, 0, target);
}

int32_t choose_token(float *logits, int64_t V, const Draw *d, double u) {
  const int32_t id = likeliest(logits, V);
  if (id < 0 || d->scale == 0) return id;
  Tokens t = {V, logits, xmalloc((size_t)V * sizeof(uint64_t)),
              xmalloc((size_t)V * sizeof(int32_t))};
  for (int64_t i = 0; i < V; i++) t.ids[i] = (int32_t)i;
  const int32_t drawn = t.ids[draw(&t, d, logits[id], u)];
  free(t.weights);
  free(t.ids);
  return drawn;
}

void cpu_choose(Backend *be, const act_t *logits, Draw *d, int32_t *next) {
  const int64_t V = be->spec.V;
  float *values = xmalloc((size_t)V * sizeof *values);
  be->services.read_act(be, values, logits, V);
  const int32_t token = choose_token(values, V, d, rng_uniform(d->seed, d->index));
  free(values);
  cpu_of(be)->tokens[d->index % MAX_RESULTS] = token;
  *next = token < 0 ? 0 : token;
  d->position += d->rows;
  d->rows = 1;
  d->index++;
}
