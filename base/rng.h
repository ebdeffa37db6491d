// Stateless random numbers: every draw is a hash of (key, index), so a stream needs no state in a
// checkpoint and gives the same values whatever the order or the number of threads.
// The mixer is splitmix64's finalizer (Steele, Lea, Flood, OOPSLA 2014).
#pragma once
#include <math.h>
#include <stdint.h>

static inline uint64_t rng_mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The index-th draw of stream `key`, uniform over 64 bits.
static inline uint64_t rng_u64(uint64_t key, uint64_t index) {
  return rng_mix(rng_mix(key) ^ index);
}

// Uniform in [0, 1), 53 bits.
static inline double rng_uniform(uint64_t key, uint64_t index) {
  return (double)(rng_u64(key, index) >> 11) * 0x1p-53;
}

// Standard normal (Box-Muller; one of the pair is used, so that draw i needs draw i only).
static inline double rng_normal(uint64_t key, uint64_t index) {
  const double u = ((double)(rng_u64(key, 2 * index) >> 11) + 0.5) * 0x1p-53; // never 0
  const double v = rng_uniform(key, 2 * index + 1);
  return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

// Key of a named stream: FNV-1a of the name, mixed with the seed.
static inline uint64_t rng_key(uint64_t seed, const char *name) {
  uint64_t h = 0xcbf29ce484222325u;
  for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
  return rng_mix(seed) ^ h;
}
