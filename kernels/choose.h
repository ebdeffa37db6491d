// How a token is chosen, on a CPU and on a GPU, with the same result: a token's weight is a whole
// number, so that sums of weights have no rounding and any order.
#pragma once
#include "kernels/formats.h"

// Bits in the order of the floats: x < y gives logit_order(x) < logit_order(y). NaN is outside the
// infinities.
static inline HOST_DEVICE uint32_t logit_order(float x) {
  uint32_t bits;
  x += 0.0f; // -0 becomes 0
  memcpy(&bits, &x, sizeof bits);
  return bits ^ (bits >> 31 ? UINT32_MAX : UINT32_C(1) << 31);
}

// The weight of the likeliest of V <= 2^24 tokens is 2^bits, and the sum of all below 2^63.
static inline HOST_DEVICE int weight_bits(int64_t V) {
  int bits = 52;
  while (V >> (62 - bits) > 0) bits--;
  return bits;
}

// 2^bits exp(x), rounded down, x <= 0; exp(x) is 2^n 2^f with |f| <= 1/2, and its error 1e-7 of it.
// Coefficients: Taylor's. A compiler must not fuse a product and a sum.
static inline HOST_DEVICE uint64_t token_weight(float x, int bits) {
  const float least = -40; // whose weight is 0
  x = x > least ? x : least;
  const float y = x * 1.44269504f;
  const int32_t n = (int32_t)(y - 0.5f);
  const float f = (y - (float)n) * 0.693147181f;
  const float high = 1 / 24.f + f * (1 / 120.f + f * (1 / 720.f));
  const float p = 1 + f * (1 + f * (1 / 2.f + f * (1 / 6.f + f * high)));
  return (uint64_t)(uint32_t)(int32_t)(p * 0x1p23f) << (bits - 23) >> -n;
}

// Of tokens whose weights add up to `sum`, taken in some order: the one at which the sum first
// exceeds this is the last of the fewest that reach top_p of it; and of the uniform draw u.
static inline HOST_DEVICE uint64_t top_p_target(uint64_t sum, double top_p) {
  const double reached = ceil(top_p * (double)sum);
  const uint64_t target = reached >= 1 ? (uint64_t)reached - 1 : 0;
  return target < sum ? target : sum - 1;
}
static inline HOST_DEVICE uint64_t draw_target(uint64_t sum, double u) {
  const uint64_t target = (uint64_t)(u * (double)sum);
  return target < sum ? target : sum - 1;
}
