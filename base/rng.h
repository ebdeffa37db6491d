// Stateless random numbers: every draw is a hash of (key, index), so a stream needs no state in a
// checkpoint and gives the same values in any order, with any number of threads.
// The mixer is splitmix64's finalizer (Steele, Lea, Flood, OOPSLA 2014).
//
// Every draw has the same bits on every machine and on a GPU: it has nothing but integers and
// operations that IEEE 754 rounds in one way, + - * / and sqrt. A compiler must not fuse a product
// and a sum (gcc -std=c11 does not; nvcc needs -fmad=false).
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "base/host_device.h"

static inline HOST_DEVICE uint64_t rng_mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The index-th draw of stream `key`, uniform over 64 bits.
static inline HOST_DEVICE uint64_t rng_u64(uint64_t key, uint64_t index) {
  return rng_mix(rng_mix(key) ^ index);
}

// Uniform in [0, 1), 53 bits.
static inline HOST_DEVICE double rng_uniform(uint64_t key, uint64_t index) {
  return (double)(rng_u64(key, index) >> 11) * 0x1p-53;
}

// The natural logarithm of a normal number, to about one unit in the last place. x = 2^e m with m
// in [sqrt(1/2), sqrt(2)), and with f = m - 1 and s = f / (2 + f), log m = 2 atanh(s), whose series
// over odd powers is 2 s + 2 s (s^2 / 3 + s^4 / 5 + ...); 2 s is f - s f.
static inline HOST_DEVICE double rng_log(double x) {
  const double ln2 = 0x1.62e42fefa3000p-1, rest = 0x1.3de6af278ece6p-42; // ln 2 is their sum
  int64_t bits;
  memcpy(&bits, &x, sizeof bits);
  const int64_t e = (bits - 0x3fe6a09e667f3bcd) >> 52, mantissa = bits - e * ((int64_t)1 << 52);
  double m;
  memcpy(&m, &mantissa, sizeof m);
  const double f = m - 1, s = f / (2 + f), z = s * s, n = (double)(int)e;
  double sum = 1.0 / 21;
  sum = sum * z + 1.0 / 19;
  sum = sum * z + 1.0 / 17;
  sum = sum * z + 1.0 / 15;
  sum = sum * z + 1.0 / 13;
  sum = sum * z + 1.0 / 11;
  sum = sum * z + 1.0 / 9;
  sum = sum * z + 1.0 / 7;
  sum = sum * z + 1.0 / 5;
  sum = sum * z + 1.0 / 3;
  return n * ln2 + (f + (n * rest - s * (f - 2 * z * sum)));
}

// The cosine of an angle in [0, 2 pi], to about one unit in the last place. q quarter turns leave
// an angle r in [-pi/4, pi/4], for which the series of cosine and sine are short.
static inline HOST_DEVICE double rng_cos(double angle) {
  const double quarter = 0x1.921fb54442000p+0, rest = 0x1.a308d313198a3p-41; // pi/2 is their sum
  const int q = (int)(angle * 0.6366197723675814 + 0.5);
  const double r = (angle - q * quarter) - q * rest, z = r * r;
  double c = 1.0 / 20922789888000; // 1 / 16!
  c = c * z - 1.0 / 87178291200;
  c = c * z + 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  double s = 1.0 / 355687428096000; // 1 / 17!
  s = s * z - 1.0 / 1307674368000;
  s = s * z + 1.0 / 6227020800;
  s = s * z - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  const double cosine = 1 - (0.5 * z - z * z * c), sine = r + r * z * s;
  const double value = q & 1 ? sine : cosine;
  return ((q + 1) & 2) ? -value : value; // cos, -sin, -cos, sin, cos
}

// Standard normal (Box-Muller; one of the pair is used, so that draw i needs draw i only).
static inline HOST_DEVICE double rng_normal(uint64_t key, uint64_t index) {
  const double u = ((double)(rng_u64(key, 2 * index) >> 11) + 0.5) * 0x1p-53; // never 0
  const double v = rng_uniform(key, 2 * index + 1);
  return sqrt(-2 * rng_log(u)) * rng_cos(6.283185307179586 * v);
}

// Key of a named stream: FNV-1a of the name, mixed with the seed.
static inline uint64_t rng_key(uint64_t seed, const char *name) {
  uint64_t h = 0xcbf29ce484222325u;
  for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
  return rng_mix(seed) ^ h;
}
