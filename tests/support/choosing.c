#include "tests/support/choosing.h"

#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "tests/support/bf16.h"
#include "tests/support/test.h"

typedef enum LogitKind {
  FLAT,
  WIDE,
  PEAKED,
  MASKED,
  ZEROS,
  EQUAL,
  WITH_NAN,
  NONE,
  KINDS
} LogitKind;

static float logit(LogitKind kind, int64_t V, int64_t v) {
  const double x = rng_normal(31 + (uint64_t)kind, (uint64_t)v);
  switch (kind) {
  case FLAT:
    return (float)(0.9 * x);
  case WIDE:
    return (float)(30 * x);
  case PEAKED:
    return (float)(v % 299 == 7 ? 20 + x : x);
  case MASKED:
    return v % 20 == 3 ? (float)x : -INFINITY;
  case ZEROS:
    return v % 3 == 0 ? -0.0f : 0;
  case EQUAL:
    return -2.5f;
  case WITH_NAN:
    return v == V / 2 ? NAN : (float)x;
  default:
    return -INFINITY;
  }
}

static const struct {
  double temperature, top_p;
  int64_t top_k;
} options[] = {{0, 1, 0},     {0.8, 1, 0},  {1e-3, 1, 0},     {1, 0.95, 0},
               {0.7, 0.3, 0}, {1, 0, 0},    {1, 0.999999, 0}, {1, 1, 1},
               {0.8, 1, 50},  {2, 0.9, 40}, {1, 1, 100000},   {5, 0.5, 400}};
enum { OPTIONS = sizeof options / sizeof *options, DRAWS = 3, BEHIND = 16 };

static void check_choice(Backend *be, const float *values, int option, uint64_t index,
                         act_t *logits, Draw *draw, int32_t *next) {
  const int64_t V = be->spec.V;
  const double temperature = options[option].temperature;
  const Draw asked = {.scale = temperature > 0 ? (float)(1 / temperature) : 0,
                      .top_p = options[option].top_p,
                      .top_k = options[option].top_k,
                      .seed = 5,
                      .index = index,
                      .position = 70,
                      .rows = 4};
  float *copy = xmalloc((size_t)V * sizeof *copy);
  memcpy(copy, values, (size_t)V * sizeof *copy);
  const int32_t want = choose_token(copy, V, &asked, rng_uniform(5, index));
  free(copy);
  Draw got;
  int32_t got_next = -77;
  be->services.write(be, draw, &asked, sizeof asked);
  be->services.write(be, next, &got_next, sizeof got_next);
  be->choose(be, logits, draw, next);
  be->services.token_send(be, index);
  const int32_t token = be->services.token_take(be, index);
  be->services.read(be, &got, draw, sizeof got);
  be->services.read(be, &got_next, next, sizeof got_next);
  if (token != want)
    fail_msg("V %lld, option %d, draw %d: token %d, not %d", (long long)V, option, (int)index,
             token, want);
  assert_int_equal(got_next, want < 0 ? 0 : want);
  assert_int_equal(got.position, 74);
  assert_int_equal(got.rows, 1);
  assert_int_equal(got.index, index + 1);
}

void check_choosing(Backend *be, act_t *logits, Draw *draw, int32_t *next) {
  const int64_t V = be->spec.V, all = padded_vocab(&be->spec) + BEHIND;
  float *values = xmalloc((size_t)V * sizeof *values);
  uint16_t *bits = xmalloc((size_t)all * sizeof *bits);
  for (LogitKind kind = 0; kind < KINDS; kind++) {
    for (int64_t v = 0; v < all; v++) {
      bits[v] = to_bf16(v < V ? logit(kind, V, v) : NAN);
      if (v < V) values[v] = from_bf16(bits[v]);
    }
    be->services.write(be, logits, bits, (size_t)all * sizeof *bits);
    for (int option = 0; option < OPTIONS; option++)
      for (uint64_t index = 0; index < DRAWS; index++)
        for (int time = 0; time < 2; time++)
          check_choice(be, values, option, index, logits, draw, next);
  }
  free(values);
  free(bits);
}
