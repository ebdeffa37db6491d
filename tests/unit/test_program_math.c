// The CPU's exponential, against the C library's in fp64.
#include <float.h>

#include "kernels/math.h"
#include "tests/support/test.h"

// In ulp of fp32, of which denormals have one size.
static double ulps_away(float value, double exact) {
  const int exponent = exact < (double)FLT_MIN ? FLT_MIN_EXP - 1 : ilogb(exact);
  return fabs((double)value - exact) / ldexp(1, exponent - 23);
}

TEST(the_exponential_is_right_to_an_ulp) {
  double worst = 0;
  for (uint64_t i = 0; i <= UINT32_MAX; i += 503) { // floats of every size and sign
    const uint32_t bits = (uint32_t)i;
    float x;
    memcpy(&x, &bits, sizeof x);
    const float y = exp_inline(x);
    const double exact = exp((double)x);
    if (isnan(x))
      assert_true(isnan(y));
    else if (isinf((float)exact))
      assert_true(isinf(y));
    else if (ulps_away(y, exact) > worst)
      worst = ulps_away(y, exact);
  }
  print_message("# %.2f ulp away, bound 1 (observed 0.96)\n", worst);
  assert_true(worst < 1);
  assert_true(exp_inline(0) == 1 && exp_inline(-INFINITY) == 0 && isinf(exp_inline(INFINITY)));
}
