// What a test of programs needs: the GPU with the fused kernels, operands with their product on
// the CPU, row statistics in parts.
#pragma once
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/check.h"
#include "kernels/fused/program.h"
#include "tests/gpu/gpu_test.h"

static const float eps = 1e-5f;

typedef struct Shape {
  int64_t M, N, K;
} Shape;

// ---- The GPU

typedef struct Machine {
  Backend memory; // first; what the buffers of gpu_test.h call, and nothing else
  Gpu gpu;
  FusedKernels kernels;
  bool usable; // the programs run on some GPUs only
} Machine;

static inline void *memory_alloc(Backend *be, size_t bytes) {
  (void)be;
  void *memory;
  CUDA_CHECK(cudaMalloc(&memory, bytes));
  return memory;
}
static inline void memory_release(Backend *be, void *memory) {
  (void)be;
  CUDA_CHECK(cudaFree(memory));
}
// On the stream of the programs, which waits for no other: a cudaMemcpy may return before it ends.
static inline void memory_write(Backend *be, void *to, const void *from, size_t bytes) {
  const cudaStream_t stream = ((const Machine *)be)->gpu.stream;
  CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));
}
static inline void memory_read(Backend *be, void *to, const void *from, size_t bytes) {
  (void)be;
  CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}
static inline void memory_read_act(Backend *be, float *to, const act_t *from, int64_t count) {
  uint16_t *bits = xmalloc((size_t)count * sizeof *bits);
  memory_read(be, bits, from, (size_t)count * sizeof *bits);
#pragma omp parallel for
  for (int64_t i = 0; i < count; i++) to[i] = from_bf16(bits[i]);
  free(bits);
}

static inline int set_up(void **state) {
  Machine *m = xcalloc(1, sizeof *m);
  m->memory = (Backend){.alloc = memory_alloc,
                        .release = memory_release,
                        .write = memory_write,
                        .read = memory_read,
                        .read_act = memory_read_act};
  Error err;
  if (gpu_open(&m->gpu, &err)) fail_msg("%s", err.text);
  m->usable = fused_kernels_check(m->gpu.major, m->gpu.minor, &err) == 0;
  if (m->usable && fused_kernels_open(&m->kernels, &m->gpu, &err)) fail_msg("%s", err.text);
  printf("# %s\n", m->gpu.name);
  *state = m;
  return 0;
}

static inline int tear_down(void **state) {
  Machine *m = *state;
  gpu_close(&m->gpu);
  free(m);
  return 0;
}

static inline Machine *machine(void **state) {
  Machine *m = *state;
  if (!m->usable) skip();
  return m;
}

// The large shapes are there for the mainloop's rings. Programs on the CPU (tests/emulated), which
// has no mainloop, would take minutes for them.
static inline bool shape_pays(const Machine *m, Shape s) {
  return m->gpu.memory_bytes > 0 || s.M * s.N <= 4 << 20;
}

static inline void launch(const Machine *m, ProgramName name, TileShape tile,
                          const ProgramCall *call) {
  fused_launch(&m->kernels, name, tile, call, m->gpu.stream);
  CUDA_CHECK(cudaStreamSynchronize(m->gpu.stream));
}

// ---- Operands

static inline float *floats(int64_t n) {
  return xcalloc((size_t)n, sizeof(float));
}

static inline float *rounded_copy(const float *x, int64_t n) {
  float *copy = floats(n);
  memcpy(copy, x, (size_t)n * sizeof *copy);
  round_all(copy, n);
  return copy;
}

// The CPU's product, and a call with the same operands.
typedef struct Product {
  Shape s;
  float *values; // [M, N]
  ProgramCall call;
} Product;

static inline Product product_new(Bench *b, GemmForm form, Shape s, double scale) {
  float *A = random_bf16(s.M * s.K, 1, "A"),
        *B = random_bf16(s.N * s.K, scale / sqrt((double)s.K), "B");
  Product p = {.s = s, .values = floats(s.M * s.N)};
  gemm(form, s.M, s.N, s.K, A, B, 0, p.values);
  p.call = (ProgramCall){.M = s.M,
                         .N = s.N,
                         .K = s.K,
                         .A = bf16_buffer(b, s.M * s.K, A),
                         .B = bf16_buffer(b, s.N * s.K, B)};
  free(A), free(B);
  return p;
}

static inline Matrix matrix_in(Bench *b, int64_t rows, int64_t cols, const float *values) {
  return (Matrix){bf16_buffer(b, rows * cols, values), rows, cols};
}
static inline Matrix matrix_out(Bench *b, int64_t rows, int64_t cols) {
  return matrix_in(b, rows, cols, NULL);
}

// Row sums in `parts` parts, with NaN between them: part i of row m is value(i, m).
static inline RowParts row_parts(Bench *b, int64_t M, int32_t parts, const float *values) {
  const int64_t stride = M + 5;
  float *sparse = xmalloc((size_t)(parts * stride) * sizeof *sparse);
  memset(sparse, 0xff, (size_t)(parts * stride) * sizeof *sparse);
  for (int64_t i = 0; i < parts; i++)
    memcpy(sparse + i * stride, values + i * M, (size_t)M * sizeof *sparse);
  const RowParts p = {fp32_buffer(b, parts * stride, sparse), stride, parts};
  free(sparse);
  return p;
}

// Random parts, each lowest + range * uniform, and their sums over the parts.
static inline RowParts random_parts(Bench *b, int64_t M, int32_t parts, double lowest, double range,
                                    const char *name, double *sums) {
  float *values = floats(parts * M);
  const uint64_t key = rng_key(42, name);
  for (int64_t m = 0; m < M; m++) sums[m] = 0;
  for (int64_t i = 0; i < parts * M; i++) {
    values[i] = (float)(lowest + range * rng_uniform(key, (uint64_t)i));
    sums[i % M] += (double)values[i];
  }
  const RowParts p = row_parts(b, M, parts, values);
  free(values);
  return p;
}

// Gives the call sums of squares of rows of D, and returns the scales that follow. The sums are
// made up, so that a row's scale differs from its neighbours'.
static inline double *row_scales(Bench *b, Product *p, int64_t D, int32_t parts) {
  double *r = xcalloc((size_t)p->s.M, sizeof *r);
  p->call.args.sumsq =
      random_parts(b, p->s.M, parts, 0.2 * (double)D / parts, 2 * (double)D / parts, "sumsq", r);
  p->call.args.inverse_D = 1 / (float)D;
  p->call.args.eps = eps;
  for (int64_t m = 0; m < p->s.M; m++) r[m] = 1 / sqrt(r[m] / (double)D + (double)eps);
  return r;
}

static inline void scale_rows(Bench *b, Product *p, int32_t parts) {
  double *r = row_scales(b, p, p->s.K, parts);
  for (int64_t i = 0; i < p->s.M * p->s.N; i++)
    p->values[i] = (float)(r[i / p->s.N] * (double)p->values[i]);
  free(r);
}

typedef struct Label {
  char text[64];
} Label;

static inline Label label(ProgramName name, TileShape tile, Shape s, const char *what) {
  const ProgramKernel *k = &fused_program(name)->kernels[tile];
  Label l;
  snprintf(l.text, sizeof l.text, "%s%s%s %dx%d, %lldx%lldx%lld", fused_program(name)->name,
           *what ? " " : "", what, (int)k->rows, (int)k->cols, (long long)s.M, (long long)s.N,
           (long long)s.K);
  return l;
}

static inline void expect_unwritten(const char *what, const float *values, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &values[i], sizeof bits);
    if (bits != 0xffffffffu) fail_msg("%s: element %lld was written", what, (long long)i);
  }
}
