// The rounding of AdamW's moments and of master weights to bf16: right in the mean, where rounding
// to nearest sticks.
#include "base/rng.h"
#include "kernels/formats.h"
#include "tests/support/bf16.h"
#include "tests/support/test.h"

TEST(what_bf16_holds_stays) {
  for (uint32_t half = 0; half <= 0xffff; half++)
    for (uint32_t noise = 0; noise <= 0xffff; noise += 0x1111) {
      const float value = from_bf16((uint16_t)half), rounded_value = moment_round(value, noise);
      assert_memory_equal(&rounded_value, &value, sizeof value);
    }
  const float nan = moment_round(from_bf16(0x7fc0), 0xffff);
  assert_true(isnan(nan));
}

TEST(the_mean_over_all_noise_is_the_value) {
  for (uint64_t i = 0; i < 100; i++) {
    const float value = (float)(rng_normal(1, i) * exp(8 * rng_normal(2, i)));
    double sum = 0; // exact: 65536 numbers of 8 bits
    for (uint32_t noise = 0; noise <= 0xffff; noise++) sum += (double)moment_round(value, noise);
    if (sum != 65536 * (double)value) fail_msg("%.9g becomes %.9g", (double)value, sum / 65536);
  }
}

TEST(nearest_is_the_nearest) {
  for (uint64_t i = 0; i < 10000; i++) {
    const float value = (float)rng_normal(3, i), near = moment_round(value, MOMENT_NEAREST);
    assert_true(fabsf(near - value) <= fabsf(rounded(value) - value)); // ties may differ
  }
}

// Chi squared of 64 buckets: 63 +- 11.
static void expect_uniform(const char *what, const int64_t counts[64], int64_t all) {
  double chi = 0;
  for (int b = 0; b < 64; b++) {
    const double off = (double)counts[b] - (double)all / 64;
    chi += off * off * 64 / (double)all;
  }
  printf("# %s: chi squared %.1f of 63 +- 11, bound 130\n", what, chi);
  assert_true(chi < 130); // 6 deviations; observed 50 to 101
}

TEST(noise_is_uniform_over_elements_updates_and_tensors) {
  enum { DRAWS = 1 << 18 };
  for (int along = 0; along < 3; along++) {
    int64_t counts[6][64] = {{0}};
    for (int i = 0; i < DRAWS; i++) {
      const int updates = along == 1 ? i : 5, tensor = along == 2 ? i : 3, at = along == 0 ? i : 7;
      const uint32_t noise = moment_noise(moment_key(updates, tensor), at),
                     of_weight = moment_noise(master_key(updates, tensor), at);
      counts[0][noise >> 10 & 63]++;                              // m
      counts[1][noise >> 26]++;                                   // v
      counts[2][(noise >> 13 & 7) * 8 + (noise >> 29)]++;         // which are independent
      counts[3][of_weight >> 10 & 63]++;                          // the weight
      counts[4][(of_weight >> 13 & 7) * 8 + (noise >> 13 & 7)]++; // which is independent of both
      counts[5][(of_weight >> 13 & 7) * 8 + (noise >> 29)]++;
    }
    static const char *const names[] = {"elements", "updates", "tensors"};
    for (int i = 0; i < 6; i++) expect_uniform(names[along], counts[i], DRAWS);
  }
}

// v of 1000 elements, from 1, where the gradient has become 0.01: after 3000 updates with beta2 =
// 0.999 it is 0.05. To nearest it does not move.
TEST(v_follows_where_nearest_would_stick) {
  enum { ELEMENTS = 1000, UPDATES = 3000 };
  const float beta2 = 0.999f, square = 1e-4f;
  double exact = 1, mean = 0, squares = 0;
  float nearest = 1;
  for (int t = 0; t < UPDATES; t++) {
    exact = (double)beta2 * exact + (1 - (double)beta2) * (double)square;
    nearest = rounded(beta2 * nearest + (1 - beta2) * square);
  }
  for (int i = 0; i < ELEMENTS; i++) {
    float v = 1;
    for (int t = 0; t < UPDATES; t++)
      v = moment_round(beta2 * v + (1 - beta2) * square, moment_noise(moment_key(t, 0), i) >> 16);
    mean += (double)v / ELEMENTS;
    squares += (double)v * (double)v / ELEMENTS;
  }
  const double deviation = sqrt(squares - mean * mean) / mean, off = mean / exact - 1;
  printf("# v is %.5f in the mean, %.5f exactly, %.5f to nearest; an element deviates by %.1f %%\n",
         mean, exact, (double)nearest, 100 * deviation);
  assert_true(nearest == 1);
  assert_true(fabs(off) < 5 * deviation / sqrt(ELEMENTS)); // observed: 0.5
  assert_true(deviation < 0.2);                            // observed: 0.117
}

// Weights that move by a hundredth of the distance to the next bf16, there and back to where they
// began. To nearest they do not move at all.
TEST(weights_follow_steps_that_nearest_would_lose) {
  enum { ELEMENTS = 2000, UPDATES = 1000 };
  const float begin = 0.75f, step = 0x1p-8f / 100;
  double exact[2] = {(double)begin, (double)begin}, mean[2] = {0}, squares[2] = {0};
  exact[0] += UPDATES * (double)step;
  assert_true(moment_round(begin + step, MOMENT_NEAREST) == begin);
  for (int i = 0; i < ELEMENTS; i++) {
    float w = begin;
    for (int t = 0; t < 2 * UPDATES; t++) {
      w = master_round(w + (t < UPDATES ? step : -step), master_key(t, 3), i);
      if (t % UPDATES < UPDATES - 1) continue;
      mean[t / UPDATES] += (double)w / ELEMENTS;
      squares[t / UPDATES] += (double)w * (double)w / ELEMENTS;
    }
  }
  for (int j = 0; j < 2; j++) {
    const double deviation = sqrt(squares[j] - mean[j] * mean[j]), off = mean[j] - exact[j];
    printf("# weights are %.6f in the mean, %.6f exactly; a weight deviates by %.5f\n", mean[j],
           exact[j], deviation);
    assert_true(fabs(off) < 5 * deviation / sqrt(ELEMENTS)); // observed: 1.2 and 1.0
    assert_true(deviation < 0x1p-5); // observed: 0.0123 and 0.0172, a random walk's
  }
}
