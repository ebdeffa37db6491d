// FP8's formats, the places of its copies and its scales: kernels/formats.h.
#include "base/rng.h"
#include "kernels/formats.h"
#include "tests/support/test.h"

enum { E4M3_CODES = 127, E5M2_CODES = 124 }; // finite and not negative

// The finite values that are not negative, in the order of their codes: from one to the next it is
// a step, which doubles where an exponent begins, but not after the subnormals.
static int table_of(Fp8Format format, float *values) {
  const int codes = format == FP8_E4M3 ? E4M3_CODES : E5M2_CODES,
            per_exponent = format == FP8_E4M3 ? 8 : 4;
  float step = format == FP8_E4M3 ? 0x1p-9f : 0x1p-16f;
  values[0] = 0;
  for (int code = 1; code < codes; code++) {
    values[code] = values[code - 1] + step;
    if (code % per_exponent == 0 && code > per_exponent) step *= 2;
  }
  return codes;
}

static void check(Fp8Format format, float value, float expected) {
  const float got = fp8_round(format, value), negative = fp8_round(format, -value);
  if (got != expected || signbit(got) != signbit(expected))
    fail_msg("format %d: %a became %a, not %a", format, (double)value, (double)got,
             (double)expected);
  if (negative != -expected || !signbit(negative))
    fail_msg("format %d: %a became %a", format, (double)-value, (double)negative);
}

TEST(the_formats_are_theirs) {
  float e4m3[128], e5m2[128];
  assert_int_equal(table_of(FP8_E4M3, e4m3), E4M3_CODES);
  assert_int_equal(table_of(FP8_E5M2, e5m2), E5M2_CODES);
  // arXiv 2209.05433, table 1
  assert_true(e4m3[1] == 0x1p-9f && e4m3[8] == 0x1p-6f && e4m3[0x7e] == 448);
  assert_true(e5m2[1] == 0x1p-16f && e5m2[4] == 0x1p-14f && e5m2[0x7b] == 57344);
  assert_true(fp8_largest(FP8_E4M3) == 448 && fp8_largest(FP8_E5M2) == 57344);
}

TEST(all_codes_have_their_values) {
  for (Fp8Format format = FP8_E4M3; format <= FP8_E5M2; format++) {
    float values[128];
    const int codes = table_of(format, values);
    for (int code = 0; code < codes; code++) {
      const float v = values[code];
      assert_true(fp8_value(format, (uint8_t)code) == v);
      assert_true(fp8_value(format, (uint8_t)(code | 0x80)) == -v);
      assert_int_equal(fp8_bits(format, v), code);
      assert_int_equal(fp8_bits(format, -v), code | 0x80);
      check(format, v, v);
    }
    for (int code = codes; code < 128; code++) // the rest is not finite
      assert_false(isfinite(fp8_value(format, (uint8_t)code)));
    assert_int_equal(fp8_bits(format, NAN), 0x7f);
    assert_true(isnan(fp8_value(format, 0x7f)) && isnan(fp8_round(format, NAN)));
  }
  assert_true(isinf(fp8_value(FP8_E5M2, 0x7c)) && fp8_value(FP8_E5M2, 0xfc) < 0);
}

TEST(ties_go_to_the_even_code) {
  for (Fp8Format format = FP8_E4M3; format <= FP8_E5M2; format++) {
    float values[128];
    const int codes = table_of(format, values);
    for (int code = 0; code + 1 < codes; code++) {
      const float low = values[code], high = values[code + 1], middle = (low + high) / 2;
      check(format, middle, code % 2 == 0 ? low : high);
      check(format, nextafterf(middle, 0), low);
      check(format, nextafterf(middle, INFINITY), high);
    }
  }
}

TEST(what_is_beyond_saturates) {
  for (Fp8Format format = FP8_E4M3; format <= FP8_E5M2; format++) {
    const float largest = fp8_largest(format);
    const float beyond[] = {nextafterf(largest, INFINITY), largest * 1.0625f, largest * 2,
                            0x1.fffffep127f, INFINITY};
    for (size_t i = 0; i < sizeof beyond / sizeof beyond[0]; i++) check(format, beyond[i], largest);
    check(format, 0x1p-149f, 0);
  }
}

TEST(every_value_goes_to_the_nearest) {
  for (Fp8Format format = FP8_E4M3; format <= FP8_E5M2; format++) {
    float values[128];
    const int codes = table_of(format, values);
    for (uint64_t i = 0; i < 20000; i++) {
      const float v = (float)ldexp(fabs(rng_normal(5, i)), (int)(rng_u64(6, i) % 36) - 20);
      float nearest = values[0];
      for (int code = 1; code < codes; code++)
        if (fabsf(values[code] - v) < fabsf(nearest - v)) nearest = values[code];
      check(format, v, nearest);
    }
  }
}

// Over many rows the mean is the value, of any size; every result is one of its two neighbours, and
// exact values and what is beyond stay.
TEST(stochastic_rounding_is_right_in_the_mean) {
  enum { ROWS = 1 << 16 };
  double worst = 0;
  float values[128];
  table_of(FP8_E4M3, values);
  // fp16 holds those above 2^-5.
  const float sizes[] = {0x1p-19f,    0x1.8p-17f, 0x1.1p-13f, 0x1.9p-10f, 0x1.fp-9f, 0.017f,
                         0x1.fccp-4f, 0x1.08p0f,  0x1.1ecp4f, 0x1.f44p7f, 447.5f};
  for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
    const float size = sizes[i / 2], value = i % 2 ? -size : size;
    int above = 1;
    while (values[above] < size) above++;
    const double low = (double)values[above - 1], high = (double)values[above];
    for (uint32_t column = 4; column < 8; column++) {
      double sum = 0;
      for (uint32_t m = 0; m < ROWS; m++) {
        const float got = fp8_round_stochastic(value, noise_mix(m), column);
        const double away = (double)fabsf(got);
        assert_true((away == low || away == high) && (got == 0 || (got > 0) == (value > 0)));
        sum += (double)got;
      }
      // In standard deviations of the mean.
      const double p = ((double)size - low) / (high - low);
      const double deviation = (high - low) * sqrt(p * (1 - p) / ROWS);
      const double off = fabs(sum / ROWS - (double)value) / deviation;
      if (off > worst) worst = off;
    }
  }
  printf("# the means are off by up to %.2f standard deviations, bound 4.5\n", worst);
  assert_true(worst < 4.5); // of 88
}

// Rounding errors of neighbours do not add up: four columns share a hash, but no bits of it.
TEST(columns_have_noise_of_their_own) {
  enum { ROWS = 1 << 16, COLUMNS = 8 };
  const double variance = (128.0 * 128 - 1) / 12;
  double worst = 0;
  for (uint32_t a = 0; a < COLUMNS; a++)
    for (uint32_t b = 0; b < a; b++) {
      double sum = 0;
      for (uint32_t m = 0; m < ROWS; m++) {
        const uint32_t key = noise_mix(m);
        sum += (fp8_noise(key, a) - 63.5) * (fp8_noise(key, b) - 63.5);
      }
      const double off = fabs(sum) / variance / sqrt(ROWS); // in standard deviations
      if (off > worst) worst = off;
    }
  printf("# columns are correlated by up to %.2f standard deviations, bound 4.5\n", worst);
  assert_true(worst < 4.5); // of 28 pairs
}

TEST(stochastic_rounding_leaves_exact_values) {
  float values[128];
  const int codes = table_of(FP8_E4M3, values);
  for (uint32_t m = 0; m < 1000; m++) {
    const uint32_t key = noise_mix(m);
    for (int code = 0; code < codes; code++) {
      assert_true(fp8_round_stochastic(values[code], key, m + 1) == values[code]);
      assert_true(fp8_round_stochastic(-values[code], key, m) == -values[code]);
    }
    assert_true(fp8_round_stochastic(449, key, m) == 448);
    assert_true(fp8_round_stochastic(-INFINITY, key, m) == -448);
    assert_true(isnan(fp8_round_stochastic(NAN, key, m)));
  }
}

TEST(places_are_those_of_the_registers) {
  for (int64_t group = 0; group < 48; group += 16) {
    for (int b = 0; b < 2; b++)
      for (int q = 0; q < 4; q++)
        for (int e = 0; e < 2; e++)
          assert_int_equal(fp8_column_place(group + 8 * b + 2 * q + e), group + 4 * q + 2 * b + e);
    for (int h = 0; h < 2; h++)
      for (int r = 0; r < 8; r++)
        assert_int_equal(fp8_row_place(group + r + 8 * h), group + 2 * r + h);
  }
}

TEST(a_scale_is_the_largest_power_that_fits) {
  for (Fp8Format format = FP8_E4M3; format <= FP8_E5M2; format++) {
    const float largest = fp8_largest(format);
    for (uint64_t i = 0; i < 20000; i++) {
      const float v = (float)ldexp(fabs(rng_normal(7, i)) + 1e-3, (int)(rng_u64(8, i) % 160) - 80);
      const float scale = fp8_scale(format, v);
      assert_true(scale == power_of_two_below(scale));
      assert_true(v * scale <= largest && 2 * v * scale > largest);
    }
    for (int k = -80; k <= 80; k++) { // where it just fits
      const float fits = ldexpf(largest, k);
      assert_true(fp8_scale(format, fits) == ldexpf(1, -k));
      assert_true(fp8_scale(format, nextafterf(fits, INFINITY)) == ldexpf(1, -k - 1));
    }
    const float none[] = {0, -1, INFINITY, NAN, 0x1p-101f, 0x1p101f};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
      assert_true(fp8_scale(format, none[i]) == 1);
  }
  assert_true(power_of_two_below(1) == 1 && power_of_two_below(1.999f) == 1);
  assert_true(power_of_two_below(0.999f) == 0.5f && power_of_two_below(0x1.8p-70f) == 0x1p-70f);
  assert_true(fp8_dlogits_scale(FP8_E5M2, 1.0 / 32768) == 0x1p26f); // 16 / 32768 at most
  assert_true(fp8_dlogits_scale(FP8_E4M3, 1.0 / 32768) == 0x1p19f);
  assert_true(fp8_dlogits_scale(FP8_E4M3, (double)NAN) == 1);
}
