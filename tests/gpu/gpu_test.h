// What the tests of GPU operations share: device buffers between guard bands, outputs filled with
// NaN, every operation run twice for equal bits, and errors measured against a twin that rounds
// where the operation stores.
#pragma once
#include "base/rng.h"
#include "kernels/gpu.h"
#include "kernels/ops.h"
#include "model/run/check.h"
#include "tests/support/bf16.h"
#include "tests/support/test.h"

// What tests of the GPU backends run over: the unfused kernels, and the programs on the mainloop
// that this GPU takes by itself and on the one that every GPU has.
typedef struct KernelMode {
  const char *name;
  KernelChoice kernels;
  Mainloop mainloop;
} KernelMode;
enum { KERNEL_MODES = 3 };
static const KernelMode kernel_modes[KERNEL_MODES] = {
    {"unfused", KERNELS_UNFUSED, MAINLOOP_AUTO},
    {"fused", KERNELS_FUSED, MAINLOOP_AUTO},
    {"mma_sync", KERNELS_FUSED, MAINLOOP_MMA_SYNC}};

// Never NULL: the test fails. No choices are remembered.
static inline Backend *gpu_backend(Spec spec) {
  Gpu gpu;
  Error err;
  spec.gemm_cache = "";
  Backend *be = gpu_find(&gpu, &err) == 0 ? backend_gpu_create(&spec, &gpu, &err) : NULL;
  if (!be) fail_msg("%s", err.text);
  return be;
}

enum { GUARD = 1024, MAX_BUFFERS = 64 };

static inline void round_all(float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) x[i] = rounded(x[i]);
}

// Normal values that bf16 holds exactly.
static inline float *random_bf16(int64_t n, double scale, const char *name) {
  float *x = xmalloc((size_t)n * sizeof *x);
  const uint64_t key = rng_key(42, name);
#pragma omp parallel for
  for (int64_t i = 0; i < n; i++) x[i] = rounded((float)(scale * rng_normal(key, (uint64_t)i)));
  return x;
}

// A tensor on the device. bytes an element: 2 = bf16, 4 = fp32 or int32.
typedef struct Buffer {
  char *base;    // of the allocation: GUARD bytes, the tensor, GUARD bytes
  void *data;    // on the device
  char *initial; // host copy that every run starts from
  size_t bytes;
  int width;
  int64_t count;
} Buffer;

typedef struct Bench {
  Backend *be;
  Buffer buffers[MAX_BUFFERS];
  int count;
} Bench;

static inline Buffer *buffer_new(Bench *b, int64_t count, int width, const void *initial) {
  assert_true(b->count < MAX_BUFFERS);
  Buffer *t = &b->buffers[b->count++];
  t->width = width;
  t->count = count;
  t->bytes = (size_t)count * (size_t)width;
  t->initial = xmalloc(t->bytes);
  if (initial)
    memcpy(t->initial, initial, t->bytes);
  else
    memset(t->initial, 0xff, t->bytes); // NaN in both types
  t->base = b->be->services.alloc(b->be, t->bytes + 2 * GUARD);
  assert_non_null(t->base);
  t->data = t->base + GUARD;
  return t;
}
// In: values as fp32. Out: values = NULL, filled with NaN before each run.
static inline void *bf16_buffer(Bench *b, int64_t count, const float *values) {
  if (!values) return buffer_new(b, count, 2, NULL)->data;
  uint16_t *bits = xmalloc((size_t)count * sizeof *bits);
  for (int64_t i = 0; i < count; i++) bits[i] = to_bf16(values[i]);
  void *data = buffer_new(b, count, 2, bits)->data;
  free(bits);
  return data;
}
static inline void *fp32_buffer(Bench *b, int64_t count, const float *values) {
  return buffer_new(b, count, 4, values)->data;
}
static inline void *int32_buffer(Bench *b, int64_t count, const int32_t *values) {
  return buffer_new(b, count, 4, values)->data;
}
// As wide as the backend holds an activation or a gradient: fp32 on the CPU.
static inline void *buffer_of(Bench *b, size_t width, int64_t count, const float *values) {
  return width == 2 ? bf16_buffer(b, count, values) : fp32_buffer(b, count, values);
}
static inline void *act_buffer(Bench *b, int64_t count, const float *values) {
  return buffer_of(b, act_bytes(&b->be->spec), count, values);
}
static inline void *grad_buffer(Bench *b, int64_t count, const float *values) {
  return buffer_of(b, grad_bytes(&b->be->spec), count, values);
}
// Writes activations in any memory of the backend.
static inline void act_write(Backend *be, void *to, const float *values, int64_t count) {
  uint16_t *bits = xmalloc((size_t)count * sizeof *bits);
  const bool fp32 = act_bytes(&be->spec) == 4;
  for (int64_t i = 0; i < count; i++) bits[i] = to_bf16(values[i]);
  be->services.write(be, to, fp32 ? (const void *)values : bits,
                     (size_t)count * act_bytes(&be->spec));
  free(bits);
}
static inline void bench_free(Bench *b) {
  for (int i = 0; i < b->count; i++) {
    b->be->services.release(b->be, b->buffers[i].base);
    free(b->buffers[i].initial);
  }
  b->count = 0;
}

static inline void bench_reset(Bench *b) {
  for (int i = 0; i < b->count; i++) {
    const Buffer *t = &b->buffers[i];
    char *whole = xmalloc(t->bytes + 2 * GUARD);
    memset(whole, 0xff, t->bytes + 2 * GUARD);
    memcpy(whole + GUARD, t->initial, t->bytes);
    b->be->services.write(b->be, t->base, whole, t->bytes + 2 * GUARD);
    free(whole);
  }
}

// Everything on the device, guards included, in fresh memory.
static inline char **bench_snapshot(Bench *b) {
  char **s = xmalloc(MAX_BUFFERS * sizeof *s);
  for (int i = 0; i < b->count; i++) {
    const Buffer *t = &b->buffers[i];
    s[i] = xmalloc(t->bytes + 2 * GUARD);
    b->be->services.read(b->be, s[i], t->base, t->bytes + 2 * GUARD);
    for (int g = 0; g < GUARD; g++)
      if (s[i][g] != (char)0xff || s[i][GUARD + t->bytes + (size_t)g] != (char)0xff)
        fail_msg("buffer %d: something wrote outside of it", i);
  }
  return s;
}

static inline void bench_compare(Bench *b, char **first, char **second) {
  for (int i = 0; i < b->count; i++) {
    if (memcmp(first[i], second[i], b->buffers[i].bytes + 2 * GUARD) != 0)
      fail_msg("buffer %d: two runs gave different bits", i);
    free(first[i]);
    free(second[i]);
  }
  free(first);
  free(second);
}

// Runs `call` twice from the same state; what the second run left stays on the device.
#define RUN_TWICE(b, call)                                                                         \
  do {                                                                                             \
    bench_reset(b);                                                                                \
    call;                                                                                          \
    char **first_ = bench_snapshot(b);                                                             \
    bench_reset(b);                                                                                \
    call;                                                                                          \
    bench_compare(b, first_, bench_snapshot(b));                                                   \
  } while (0)

// A buffer's contents as fp32, in fresh memory.
static inline float *bench_read(Bench *b, const void *data) {
  for (int i = 0; i < b->count; i++) {
    const Buffer *t = &b->buffers[i];
    if (t->data != data) continue;
    float *values = xmalloc((size_t)t->count * sizeof *values);
    if (t->width == 2)
      b->be->services.read_act(b->be, values, data, t->count);
    else
      b->be->services.read(b->be, values, data, t->bytes);
    return values;
  }
  fail_msg("not a buffer of this test");
  return NULL;
}

// ---- Row statistics

// In so many parts; rows past M hold NaN.
static inline RowStat stat_in(Bench *b, int64_t parts, int64_t M, const float *values) {
  const int64_t stride = b->be->spec.max_tokens;
  float *all = xmalloc((size_t)(parts * stride) * sizeof *all);
  for (int64_t p = 0; p < parts; p++)
    for (int64_t m = 0; m < stride; m++)
      all[p * stride + m] = m >= M           ? NAN
                            : parts == 1     ? values[m]
                            : p == 0         ? values[m] * 0.75f
                            : p == parts - 1 ? values[m] * 0.25f
                                             : 0.0f;
  void *data = fp32_buffer(b, parts * stride, all);
  free(all);
  return (RowStat){.data = data, .stride = stride, .parts = (int32_t)parts};
}

// Room for most_parts; the producer says how many it leaves, and the others stay NaN.
static inline RowStat stat_out(Bench *b, int64_t most_parts) {
  const int64_t stride = b->be->spec.max_tokens;
  return (RowStat){.data = fp32_buffer(b, most_parts * stride, NULL), .stride = stride};
}

// The sum over all parts of each row, in fresh memory.
static inline float *stat_read(Bench *b, RowStat s, int64_t M) {
  float *all = bench_read(b, s.data), *sum = xcalloc((size_t)M, sizeof *sum);
  assert_true(s.parts > 0);
  for (int64_t p = 0; p < s.parts; p++)
    for (int64_t m = 0; m < M; m++) sum[m] += all[p * s.stride + m];
  free(all);
  return sum;
}

// ---- z as FP8 keeps it (kernels/formats.h)

// The bytes of z [M, cols], in fresh memory.
static inline uint8_t *z_bytes(int64_t M, int64_t cols, const float *z) {
  uint8_t *bytes = xmalloc((size_t)(M * cols));
  for (int64_t i = 0; i < M * cols; i++)
    bytes[i / cols * cols + fp8_column_place(i % cols)] = fp8_bits(FP8_E4M3, z[i] / Z_DIVISOR);
  return bytes;
}

// The values [M, cols] of such bytes, in fresh memory.
static inline float *z_values(int64_t M, int64_t cols, const uint8_t *bytes) {
  float *z = xmalloc((size_t)(M * cols) * sizeof *z);
  for (int64_t i = 0; i < M * cols; i++)
    z[i] = Z_DIVISOR * fp8_value(FP8_E4M3, bytes[i / cols * cols + fp8_column_place(i % cols)]);
  return z;
}

// ---- Errors

// x may deviate from the reference by deviation_bound of the twin's.
static inline void expect_near(const char *what, const float *x, const float *twin,
                               const float *reference, int64_t n, double floor) {
  const Deviation d = deviation(x, reference, n),
                  bound = deviation_bound(deviation(twin, reference, n), floor);
  printf("# %-34s L2 %.2e (bound %.2e)  largest %.2e (bound %.2e)\n", what, d.l2, bound.l2,
         d.largest, bound.largest);
  fflush(stdout);
  if (!(d.l2 <= bound.l2 && d.largest <= bound.largest))
    fail_msg("%s is outside of its bound", what);
}

static inline void expect_same(const char *what, const float *x, const float *expected, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (memcmp(&x[i], &expected[i], sizeof *x) != 0)
      fail_msg("%s[%lld] is %.9g, not %.9g", what, (long long)i, (double)x[i], (double)expected[i]);
}
