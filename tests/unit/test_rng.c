// Random numbers: their bits, which every machine and GPU must find, and how normal they are.
#include "base/rng.h"
#include "tests/support/test.h"

enum { DRAWS = 1 << 20 };

// Of the difference to the exact value, in units of the last place.
static double units(double value, long double exact) {
  const double near = fabs((double)exact), unit = nextafter(near, INFINITY) - near;
  return (double)(fabsl((long double)value - exact) / unit);
}

// Long double has 11 bits more. The bounds are what was found (0.846 and 1.407), rounded up.
TEST(logarithm_and_cosine_are_those_of_libm) {
  double worst_log = 0, worst_cos = 0;
  for (uint64_t i = 0; i < DRAWS; i++) {
    double x = rng_uniform(5, i) + 0x1p-54;
    if (i % 3 == 0) x = 1 - x * 1e-3;
    if (i % 3 == 1) x *= 0x1p-30;
    worst_log = fmax(worst_log, units(rng_log(x), logl((long double)x)));
    double angle = 6.283185307179586 * rng_uniform(6, i);
    if (i % 3 == 0) angle = fabs(1.5707963267948966 * (double)(i % 4) + (angle - 3) * 1e-6);
    worst_cos = fmax(worst_cos, units(rng_cos(angle), cosl((long double)angle)));
  }
  printf("# log is off by %.3f units of the last place at most, cos by %.3f\n", worst_log,
         worst_cos);
  assert_true(worst_log > 0 && worst_log < 0.9);
  assert_true(worst_cos > 0 && worst_cos < 1.5);
  assert_true(rng_log(1) == 0 && rng_cos(0) == 1 && rng_cos(6.283185307179586) == 1);
}

TEST(normals_are_normal) {
  double sum = 0, squares = 0, fourth = 0;
  for (uint64_t i = 0; i < DRAWS; i++) {
    const double x = rng_normal(77, i);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  printf("# mean %.5f, variance %.5f, fourth moment %.5f\n", sum / DRAWS, squares / DRAWS,
         fourth / DRAWS);
  assert_true(fabs(sum / DRAWS) < 4e-3); // four standard errors: 1, sqrt 2 and sqrt 96 / 1024
  assert_true(fabs(squares / DRAWS - 1) < 5.6e-3);
  assert_true(fabs(fourth / DRAWS - 3) < 3.9e-2);
}

// FNV-1a of the doubles' bytes. A fused multiply-add, or another library's cosine, changes it.
TEST(normals_have_the_same_bits_everywhere) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (uint64_t i = 0; i < DRAWS; i++) {
    const double x = rng_normal(rng_key(1337, "model.embed_tokens.weight"), i);
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    for (int byte = 0; byte < 8; byte++, bits >>= 8) hash = (hash ^ (bits & 255)) * 0x100000001b3u;
  }
  printf("# %016llx\n", (unsigned long long)hash);
  assert_true(hash == 0x218f1edc623b1a72);
}
