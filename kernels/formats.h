// Formats narrower than fp32: FP8, and AdamW's moments and master weights as bf16 (bf16 itself is
// in base/bf16.h). For the host; kernels convert with the GPU's instructions, to the same bits.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "base/host_device.h"

// Noise for stochastic rounding: a hash of the value's position, so that the same run gives the
// same bits.

// The last mixing of murmur3 (Appleby). Its first step is apart, since that of a ^ b is that of a,
// ^ that of b.
static inline HOST_DEVICE uint32_t noise_fold(uint32_t x) {
  return x ^ (x >> 16);
}
static inline HOST_DEVICE uint32_t noise_spread(uint32_t folded) {
  uint32_t x = folded * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return noise_fold(x);
}
static inline HOST_DEVICE uint32_t noise_mix(uint32_t x) {
  return noise_spread(noise_fold(x));
}

// ---- FP8: its two formats, and the order in which copies of a matrix lie.
//
// e4m3 has 3 bits of mantissa and reaches 448, e5m2 has 2 and reaches 57344 ("FP8 Formats for Deep
// Learning", arXiv 2209.05433). Conversion rounds to nearest even and saturates; NaN stays NaN.
//
// The copies' order. A product does not mind in which order it sums over K, as long as both
// operands agree; so inside every 16 of K the copies lie as the registers of wgmma's result hold
// them, and epilogues store them without a shuffle:
//     by_row [M, N], for products that sum over N (forward, dgrad): column 8 b + 2 q + e of every
//         16 columns lies at 4 q + 2 b + e             b, e 0 .. 1, q 0 .. 3
//     by_col [N, M], for products that sum over M (wgrad): row r + 8 h of every 16 rows lies at
//         2 r + h                                      r 0 .. 7, h 0 .. 1
// Weights [N, K] are read by forward (by_row) and dgrad, which sums over N (by_col, its N in the
// order of by_row's columns, since the gradient's by_row copy meets it).

typedef enum Fp8Format { FP8_E4M3, FP8_E5M2 } Fp8Format;

enum { FP8_GROUP = 16 }; // sizes that FP8 products sum over are multiples of it

// n rounded up to whole groups.
static inline HOST_DEVICE int64_t fp8_padded(int64_t n) {
  return (n + FP8_GROUP - 1) / FP8_GROUP * FP8_GROUP;
}

static inline HOST_DEVICE float fp8_largest(Fp8Format format) {
  return format == FP8_E4M3 ? 448.0f : 57344.0f;
}

// The position of column c (0 .. N - 1) in a row of a by_row copy.
static inline HOST_DEVICE int64_t fp8_column_place(int64_t c) {
  const int64_t in = c % 16;
  return c - in + in % 8 / 2 * 4 + in / 8 * 2 + in % 2;
}
// The position of row m (0 .. M - 1) of the matrix in a row of its by_col copy.
static inline HOST_DEVICE int64_t fp8_row_place(int64_t m) {
  const int64_t in = m % 16;
  return m - in + in % 8 * 2 + in / 8;
}

// 2^floor(log2 value), of a normal value > 0.
static inline HOST_DEVICE float power_of_two_below(float value) {
  int exponent = 0; // gcc 11 does not know that frexpf sets it
  (void)frexpf(value, &exponent);
  return ldexpf(1.0f, exponent - 1);
}

// The largest power of two that takes `largest_value` to no more than the format's largest; 1 where
// the value is 0, not finite or absurd. Exact: it moves exponents only.
static inline HOST_DEVICE float fp8_scale(Fp8Format format, float largest_value) {
  if (!(largest_value > 0x1p-100f && largest_value < 0x1p100f)) return 1;
  return power_of_two_below(fp8_largest(format) / largest_value);
}

// The largest value from which the next scale follows. A value that is not finite says that the
// scale was too large, but not by how much: it counts as 16 times beyond the scale's reach.
static inline HOST_DEVICE float fp8_counted(Fp8Format format, float scale, float largest_value) {
  const float most = 0x1p99f, beyond = 16 * fp8_largest(format) / scale;
  if (isfinite(largest_value)) return largest_value;
  return beyond < most ? beyond : most;
}

// The largest value of a weight after an update, from the largest of the steps before. AdamW moves
// a weight by at most (1 - beta1) / sqrt(1 - beta2) = 3.2 learning rates, with the usual 0.9 and
// 0.999. Without this reach a weight that begins as 0 would have no scale for its first values.
static inline HOST_DEVICE float fp8_weight_reach(float largest_value, double learning_rate) {
  return largest_value + 3 * (float)learning_rate;
}

// The scale of dlogits = (r / q) loss_scale (p - onehot): |p - onehot| <= 1, and r / q is below 2,
// but larger where an addition made a row smaller: the scale allows for 16.
static inline HOST_DEVICE float fp8_dlogits_scale(Fp8Format format, double loss_scale) {
  return fp8_scale(format, 16 * (float)loss_scale);
}

// z, which the SwiGLU's backward reads again, is kept in FP8 as e4m3 of z / Z_DIVISOR, in the order
// of by_row. It has no scale that follows it: RMSNorm keeps z near 1, and between 0.06 and 1792 it
// has all bits of mantissa. Larger values become 1792.
enum { Z_DIVISOR = 4 };

static inline int fp8_mantissa(Fp8Format format) {
  return format == FP8_E4M3 ? 3 : 2;
}
// The least normal value; below it the exponent stays the same.
static inline float fp8_least_normal(Fp8Format format) {
  return format == FP8_E4M3 ? 0x1p-6f : 0x1p-14f;
}

// The nearest value with this many bits of mantissa, size >= 0.
static inline float fp8_round_at(float size, float least_normal, int mantissa) {
  // A sum with a number this much larger is rounded at the place of the last bit.
  uint32_t bits;
  const float normal = size < least_normal ? least_normal : size;
  memcpy(&bits, &normal, sizeof bits);
  bits = (bits & 0x7f800000) + (uint32_t)(23 - mantissa) * 0x800000; // the power below, times 2^..
  float anchor;
  memcpy(&anchor, &bits, sizeof anchor);
  return size + anchor - anchor;
}

// The format's value nearest to `value`.
static inline float fp8_round(Fp8Format format, float value) {
  const float largest = fp8_largest(format), size = fabsf(value);
  if (isnan(value)) return value;
  if (size >= largest) return copysignf(largest, value);
  return copysignf(fp8_round_at(size, fp8_least_normal(format), fp8_mantissa(format)), value);
}

// Stochastic rounding to e4m3, unbiased, for dlogits: early in training p is nearly the same in all
// rows, so the error of rounding to nearest does not average out over a column's tokens, and with a
// large vocabulary most p are below e4m3's least value. Exact values stay. First the value is
// rounded to nearest with fp16's 10 bits of mantissa, in steps of 2^-16 below 2^-6, after the row's
// dither is added, since even these steps would lose the least p; the dither has the other sign in
// odd columns. Then it is rounded up with a probability equal to the fraction that is cut off, from
// 7 bits of noise.

// The dither of a row of the call; below half a step.
static inline HOST_DEVICE float fp8_dither(uint32_t key) {
  return ((float)(key >> 16) - 32767.5f) * 0x1p-32f;
}
// The noise of a column, seven of the bits that four columns share: columns 4 i and 4 i + 1 have
// theirs 16 bits apart, the next two 8 bits above those.
static inline uint32_t fp8_noise(uint32_t key, uint32_t column) {
  return noise_mix(key ^ column / 4) >> (column % 2 * 16 + column % 4 / 2 * 8) & 0x7f;
}
// key: noise_mix of the row.
static inline float fp8_round_stochastic(float value, uint32_t key, uint32_t column) {
  const float largest = fp8_largest(FP8_E4M3), least = fp8_least_normal(FP8_E4M3),
              dithered = value + (column % 2 ? -fp8_dither(key) : fp8_dither(key)),
              size = fabsf(dithered);
  if (isnan(value)) return value;
  if (size >= largest) return copysignf(largest, value);
  const float fine = fp8_round_at(size, least, 10),
              unit = power_of_two_below(fmaxf(fine, least)) / 8;
  return copysignf(floorf(fine / unit + (float)fp8_noise(key, column) / 128) * unit, dithered);
}

// The bits of the rounded value: sign, exponent, mantissa. NaN is 0x7f in both formats.
static inline uint8_t fp8_bits(Fp8Format format, float value) {
  const int mantissa = fp8_mantissa(format), bias = format == FP8_E4M3 ? 7 : 15;
  if (isnan(value)) return 0x7f;
  const float rounded = fabsf(fp8_round(format, value));
  const uint8_t sign = signbit(value) ? 0x80 : 0;
  if (rounded == 0) return sign;
  int exponent;
  (void)frexpf(rounded, &exponent);
  exponent -= 1;
  if (exponent < 1 - bias) // a subnormal counts units of the least exponent
    return (uint8_t)(sign | (int)ldexpf(rounded, bias - 1 + mantissa));
  const int fraction = (int)ldexpf(rounded, mantissa - exponent) - (1 << mantissa);
  return (uint8_t)(sign | (exponent + bias) << mantissa | fraction);
}

static inline float fp8_value(Fp8Format format, uint8_t bits) {
  const int mantissa = fp8_mantissa(format), bias = format == FP8_E4M3 ? 7 : 15;
  const int exponent = (bits & 0x7f) >> mantissa, fraction = bits & ((1 << mantissa) - 1);
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  if (format == FP8_E4M3 ? (bits & 0x7f) == 0x7f : exponent == 31)
    return format == FP8_E5M2 && fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * ldexpf((float)fraction, 1 - bias - mantissa);
  return sign * ldexpf((float)(fraction + (1 << mantissa)), exponent - bias - mantissa);
}

// ---- AdamW's moments as bf16. A step moves v by (1 - beta2) of its difference from the squared
// gradient. With beta2 = 0.999 that is often less than half of the distance from one bf16 to the
// next, and with rounding to nearest v would never change. So rounding is stochastic: away from
// zero with a probability equal to the fraction that is cut off, so that it is unbiased. The noise
// is a hash of the update, the tensor and the element: the same run gives the same bits, resumed or
// not.

// The key of a tensor in an update. updates: applied so far; tensor: its index in the list.
static inline HOST_DEVICE uint32_t moment_key(int64_t updates, int tensor) {
  return noise_mix(noise_mix((uint32_t)updates) + (uint32_t)tensor);
}
// The noise of an element: 16 bits for m, and above them 16 for v.
static inline HOST_DEVICE uint32_t moment_noise(uint32_t key, int64_t element) {
  return noise_mix((uint32_t)element ^ key);
}

// The bf16 below or above, as a float; a value that bf16 holds exactly stays the same. Only the low
// 16 bits of `noise` count; MOMENT_NEAREST rounds to nearest.
enum { MOMENT_NEAREST = 0x8000 };
static inline HOST_DEVICE float moment_round(float value, uint32_t noise) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits += noise & 0xffffu; // infinities and NaN stay
  bits &= 0xffff0000u;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// ---- Master weights of matrices as bf16. The update computes the new weight in fp32 from the old
// one and rounds it as moments are: a step may be a fraction of the distance from one bf16 to the
// next. The noise is another, with the keys of tensors from 2^31 on.
static inline HOST_DEVICE uint32_t master_key(int64_t updates, int tensor) {
  return noise_mix(noise_mix((uint32_t)updates) + (uint32_t)tensor + 0x80000000u);
}
static inline HOST_DEVICE float master_round(float weight, uint32_t key, int64_t element) {
  return moment_round(weight, moment_noise(key, element));
}
