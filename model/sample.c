#include "model/sample.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "base/vectors.h"

void sample_options_end(SampleOptions *options, int32_t id) {
  assert(id < 0 || options->end_count < MAX_ENDS);
  if (id >= 0) options->ends[options->end_count++] = id;
}

// Bits in the order of the floats: x < y gives order(x) < order(y). NaN is outside the infinities.
static uint32_t order(float x) {
  uint32_t bits;
  x += 0.0f; // -0 becomes 0
  memcpy(&bits, &x, sizeof bits);
  return bits ^ (bits >> 31 ? UINT32_MAX : UINT32_C(1) << 31);
}

enum { BLOCK = 64 };

// Returns the first token of the largest logit; -1 where a logit is NaN or the largest is not
// finite. Fills maxima[V / BLOCK, rounded up].
VECTORS static int32_t likeliest(const float *logits, int64_t V, float *maxima) {
  float most = -INFINITY;
  int finite = 1;
  for (int64_t first = 0; first < V; first += BLOCK) {
    const int64_t end = min_i64(V, first + BLOCK);
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest) reduction(& : finite)
    for (int64_t i = first; i < end; i++) {
      largest = logits[i] > largest ? logits[i] : largest;
      finite &= logits[i] < INFINITY; // NaN is not
    }
    maxima[first / BLOCK] = largest;
    most = largest > most ? largest : most;
  }
  if (!finite || most == -INFINITY) return -1;
  int32_t id = 0;
  while (maxima[id / BLOCK] != most) id += BLOCK;
  while (logits[id] != most) id++;
  return id;
}

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

// The tokens that may still be drawn, in the order of their ids.
typedef struct Tokens {
  int64_t count;
  float *logits, *weights; // [count]
  int32_t *ids;            // [count]
} Tokens;

VECTORS static double sum_of(const float *weights, int64_t count) {
  enum { LANES = 8 }; // so that the sum is vectorized
  double sums[LANES] = {0};
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int j = 0; j < LANES; j++) sums[j] += weights[i + j];
  for (; i < count; i++) sums[0] += weights[i];
  for (int j = 1; j < LANES; j++) sums[0] += sums[j];
  return sums[0];
}

// t->weights = exp(scale * (logits - largest)), and 0 below exp(-80), which no sum notices. Returns
// their sum.
VECTORS static double weigh(Tokens *t, float largest, float scale) {
  const float low = -80, of_low = fast_exp(low);
  for (int64_t i = 0; i < t->count; i++) { // in a loop with the next, this would be a branch
    const float x = (t->logits[i] - largest) * scale;
    t->weights[i] = x > low ? x : low;
  }
  for (int64_t i = 0; i < t->count; i++) t->weights[i] = fast_exp(t->weights[i]) - of_low;
  return sum_of(t->weights, t->count);
}

// The next functions return the index at which the sum of the weights, taken in some order, first
// exceeds `target` >= 0. If rounding put the target too high, it is the last index of any weight.

// In the order of ids, over the logits that have the bits `key`, or over all.
static int64_t exceeds_by_id(const Tokens *t, bool all, uint32_t key, double target) {
  int64_t last = 0;
  for (int64_t i = 0; i < t->count; i++) {
    if (t->weights[i] == 0 || (!all && order(t->logits[i]) != key)) continue;
    last = i;
    if (t->weights[i] > target) break;
    target -= t->weights[i];
  }
  return last;
}

// In the order of falling logits, of equal ones the lower id first. Instead of a sort, histograms
// of the weights narrow the logit down by 11, 11 and 10 bits.
static int64_t exceeds_by_logit(const Tokens *t, double target) {
  double bins[1 << 11];
  uint32_t key = 0; // its lowest `above` bits are not known yet
  for (int above = 32, below; above > 0; above = below) {
    below = above > 11 ? above - 11 : 0;
    const uint32_t count = UINT32_C(1) << (above - below), first = key >> below;
    memset(bins, 0, sizeof bins);
    for (int64_t i = 0; i < t->count; i++) {
      const uint32_t bin = (order(t->logits[i]) >> below) - first;
      if (bin < count) bins[bin] += t->weights[i];
    }
    uint32_t least = 0, bin = count - 1;
    while (bins[least] == 0) least++;
    while (bin > least && bins[bin] <= target) target -= bins[bin--];
    key |= bin << below;
  }
  return exceeds_by_id(t, false, key, target);
}

// Drops the tokens whose logit is below `least`, by whole blocks where it can, and fills t->ids.
// t: all tokens. Their weights are lost.
static void collect(Tokens *t, const float *maxima, float least) {
  const int64_t V = t->count;
  t->count = 0;
  for (int64_t first = 0; first < V; first += BLOCK)
    for (int64_t i = first; maxima[first / BLOCK] >= least && i < V && i < first + BLOCK; i++)
      if (t->logits[i] >= least) {
        t->logits[t->count] = t->logits[i];
        t->ids[t->count++] = (int32_t)i;
      }
}

// The index of the kth in the order of falling logits; drops most of the tokens after it.
static int64_t find_kth(Tokens *t, int64_t k, float *maxima, float largest) {
  // k blocks that reach a limit have k tokens that do. A scale of 0 counts all above -infinity.
  Tokens blocks = {(t->count + BLOCK - 1) / BLOCK, maxima, t->weights, NULL};
  const bool enough = (double)k <= weigh(&blocks, largest, 0);
  collect(t, maxima, enough ? maxima[exceeds_by_logit(&blocks, (double)k - 1)] : -INFINITY);
  weigh(t, largest, 0);
  return exceeds_by_logit(t, (double)k - 1);
}

// Sets the weights of the tokens after index `last`, in the order of falling logits, to 0. Returns
// the sum of the other weights.
static double keep_until(Tokens *t, int64_t last) {
  const float least = t->logits[last];
  double sum = 0;
  for (int64_t i = 0; i < t->count; i++) {
    const bool kept = t->logits[i] > least || (t->logits[i] == least && i <= last);
    t->weights[i] = kept ? t->weights[i] : 0;
    sum += t->weights[i];
  }
  return sum;
}

enum { PART = 16 * BLOCK }; // tokens whose weights fit into the first-level cache

// Weighs part i of all tokens, and returns it and its sum: 0 where all its weights are.
static Tokens weigh_part(const Tokens *all, int64_t i, const float *maxima, float largest,
                         float scale, double *sum) {
  Tokens part = {min_i64(PART, all->count - i * PART), all->logits + i * PART, all->weights, NULL};
  float most = -INFINITY;
  for (int64_t b = 0; b * BLOCK < part.count; b++)
    most = fmaxf(most, maxima[i * (PART / BLOCK) + b]);
  *sum = (most - largest) * scale > -80 ? weigh(&part, largest, scale) : 0;
  return part;
}

// The token at `u` of the sum of all weights, in the order of ids.
static int32_t draw_by_id(const Tokens *all, const float *maxima, float largest, float scale,
                          double u) {
  const int64_t parts = (all->count + PART - 1) / PART;
  double *sums = xmalloc((size_t)parts * sizeof *sums), sum = 0, target = 0;
  for (int64_t i = 0; i < parts; i++) {
    weigh_part(all, i, maxima, largest, scale, &sums[i]);
    sum += sums[i];
  }
  int64_t last = 0; // part of any weight
  double left = u * sum;
  for (int64_t i = 0; i < parts && left >= 0; i++) {
    if (sums[i] == 0) continue;
    last = i;
    target = left;
    left -= sums[i];
  }
  const Tokens part = weigh_part(all, last, maxima, largest, scale, &sums[last]);
  free(sums);
  return (int32_t)(last * PART + exceeds_by_id(&part, true, 0, target));
}

static int32_t draw(Tokens *t, const SampleOptions *o, float *maxima, float largest, double u) {
  const float scale = (float)(1 / o->temperature);
  const bool few = o->top_k > 0 && o->top_k < t->count, likely = o->top_p < 1;
  const int64_t kth = few ? find_kth(t, o->top_k, maxima, largest) : 0;
  if (!few && !likely) return draw_by_id(t, maxima, largest, scale, u);
  double sum = weigh(t, largest, scale);
  if (few) sum = keep_until(t, kth);
  if (likely) { // the fewest that reach top_p of the sum, that is, exceed the number before it
    const double below = nextafter(o->top_p * sum, 0);
    if (!few) {
      // Weights below (1 - top_p) sum / V add up to less than what top_p leaves. Half for rounding.
      const double share = (1 - o->top_p) * sum / (double)t->count / 2;
      collect(t, maxima, (float)(largest + log(share) / scale));
      weigh(t, largest, scale);
    }
    sum = keep_until(t, exceeds_by_logit(t, below));
  }
  return t->ids[exceeds_by_logit(t, u * sum)];
}

int32_t sample_token(float *logits, int64_t V, const SampleOptions *options, double u) {
  float *maxima = xmalloc((size_t)(V / BLOCK + 1) * sizeof *maxima);
  int32_t id = likeliest(logits, V, maxima);
  // Below 1 / FLT_MAX a temperature acts as 0: the draw's float has no inverse of it.
  if (id >= 0 && 1 / options->temperature <= FLT_MAX) {
    float *weights = xmalloc((size_t)V * (sizeof *weights + sizeof(int32_t)));
    Tokens all = {V, logits, weights, (int32_t *)(weights + V)};
    id = draw(&all, options, maxima, logits[id], u);
    free(weights);
  }
  free(maxima);
  return id;
}
