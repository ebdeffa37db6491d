// The plans of cuBLASLt products and the file that remembers them.
#include "tests/gpu/gpu_test.h"

#include <unistd.h>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/gemm.h"
#include "tests/gpu/fp8_here.h"

static const GemmProblem problems[] = {
    {.M = 333, .N = 264, .K = 520, .form = GEMM_NT, .alignment = 16, .lda = 528},
    {.M = 264, .N = 520, .K = 333, .form = GEMM_TN, .out_fp32 = true, .add = true, .alignment = 16},
};
enum { PROBLEMS = sizeof problems / sizeof *problems };

typedef struct Place {
  char directory[64], path[128];
  Gpu gpu;
} Place;

static int set_up(void **state) {
  Place *p = xcalloc(1, sizeof *p);
  Error err;
  snprintf(p->directory, sizeof p->directory, "/tmp/coda-gemm-XXXXXX");
  assert_non_null(mkdtemp(p->directory));
  snprintf(p->path, sizeof p->path, "%s/new/gemm.txt", p->directory);
  if (gpu_probe(&p->gpu, &err) || gpu_open(&p->gpu, &err)) fail_msg("%s", err.text);
  *state = p;
  return 0;
}

static int tear_down(void **state) {
  Place *p = *state;
  Error err;
  gpu_close(&p->gpu);
  must(directory_remove(p->directory, &err), &err);
  free(p);
  return 0;
}

// Prepares the problems; returns whether every choice is exactly the one in `expected` (or leaves
// the choices there).
static bool prepare(Place *p, Gpu *gpu, GemmChoice *choices, bool compare) {
  Gemm gemm;
  Error err;
  gemm_open(&gemm, gpu, p->path);
  must(gemm_prepare(&gemm, problems, PROBLEMS, &err), &err);
  bool same = true;
  for (int i = 0; i < PROBLEMS; i++) {
    const GemmChoice *plan = gemm_find(&gemm, &problems[i]);
    assert_non_null(plan);
    assert_true(plan->microseconds > 0);
    // Two timings of a product are never equal to the last bit, so an equal time was remembered.
    if (compare) same = same && plan->microseconds == choices[i].microseconds;
    if (compare && same)
      assert_memory_equal(&plan->algorithm, &choices[i].algorithm, sizeof plan->algorithm);
    if (!compare) choices[i] = *plan;
  }
  gemm_close(&gemm);
  return same;
}

// The file's times have three decimals.
static void as_written(GemmChoice *plans) {
  for (int i = 0; i < PROBLEMS; i++) {
    char text[32];
    snprintf(text, sizeof text, "%.3f", (double)plans[i].microseconds);
    plans[i].microseconds = strtof(text, NULL);
  }
}

TEST_WITH(choices_are_remembered, set_up, tear_down) {
  Place *p = *state;
  GemmChoice choices[PROBLEMS];
  prepare(p, &p->gpu, choices, false);
  as_written(choices);
  assert_true(path_exists(p->path));
  assert_true(prepare(p, &p->gpu, choices, true));
}

// How many choices the file has for this GPU. unit/test_choices has what may be wrong with it.
static int remembered(const Place *p, const Gpu *gpu) {
  Gpu copy = *gpu;
  Gemm gemm;
  int count = 0;
  gemm_open(&gemm, &copy, p->path);
  for (const char *c = gemm.choices.lines; *c; c++) count += *c == '\n';
  gemm_close(&gemm);
  return count;
}

TEST_WITH(a_cache_of_another_driver_is_ignored, set_up, tear_down) {
  Place *p = *state;
  GemmChoice choices[PROBLEMS];
  prepare(p, &p->gpu, choices, false);
  Gpu other = p->gpu;
  other.driver++;
  assert_int_equal(remembered(p, &other), 0);
}

// ---- FP8

// A product of random values (or of values of one sign) and its reference.
enum { INVERSE_B = 4 }; // floats

typedef struct Product {
  GemmProblem p;
  bool one_sign;
  uint8_t *A, *B;    // on the device, rows lda and ldb apart
  float *inverse;    // on the device, at 16-byte boundaries: of A, of B at INVERSE_B
  void *C, *D;       // on the device, ldd apart; C is NULL where the problem does not add
  double *reference; // [M, N], without C, for inverse scales of 1
  size_t bytes;      // of D
} Product;

static void *on_gpu(const void *data, size_t bytes) {
  void *memory = gpu_alloc(bytes);
  assert_non_null(memory);
  if (data)
    CUDA_CHECK(cudaMemcpy(memory, data, bytes, cudaMemcpyHostToDevice));
  else
    CUDA_CHECK(cudaMemset(memory, 0xff, bytes)); // NaN
  return memory;
}

// Random values of the format, in rows `stride` apart with NaN between them; their values in fp32.
static uint8_t *operand(Fp8Format format, int64_t rows, int64_t cols, int64_t stride, bool one_sign,
                        const char *name, float **values) {
  uint8_t *bits = xmalloc((size_t)(rows * stride));
  const uint64_t key = rng_key(3, name);
  *values = xmalloc((size_t)(rows * cols) * sizeof **values);
  memset(bits, 0x7f, (size_t)(rows * stride));
#pragma omp parallel for
  for (int64_t i = 0; i < rows * cols; i++) {
    const float x = (float)rng_normal(key, (uint64_t)i);
    const uint8_t b = fp8_bits(format, one_sign ? fabsf(x) : x);
    bits[i / cols * stride + i % cols] = b;
    (*values)[i] = fp8_value(format, b);
  }
  void *memory = on_gpu(bits, (size_t)(rows * stride));
  free(bits);
  return memory;
}

static Product product_new(GemmProblem p, bool one_sign) {
  Product t = {.p = p, .one_sign = one_sign};
  const int64_t lda = p.lda ? p.lda : p.K, ldb = p.ldb ? p.ldb : p.K, ldd = p.ldd ? p.ldd : p.N;
  float *A, *B, *C = xmalloc((size_t)(p.M * ldd) * sizeof *C);
  const float ones[INVERSE_B + 1] = {1, 0, 0, 0, 1};
  t.A = operand(FP8_E4M3, p.M, p.K, lda, one_sign, "A", &A);
  t.B = operand(FP8_E4M3, p.N, p.K, ldb, one_sign, "B", &B);
  t.inverse = on_gpu(ones, sizeof ones);
  t.bytes = (size_t)(p.M * ldd) * (p.out_fp32 ? 4 : 2);
  for (int64_t i = 0; i < p.M * ldd; i++) C[i] = 1;
  t.C = p.add ? on_gpu(C, t.bytes) : NULL; // fp32 alone
  t.D = on_gpu(NULL, t.bytes);
  t.reference = xmalloc((size_t)(p.M * p.N) * sizeof *t.reference);
#pragma omp parallel for
  for (int64_t i = 0; i < p.M * p.N; i++) {
    double sum = 0;
    for (int64_t k = 0; k < p.K; k++)
      sum += (double)A[i / p.N * p.K + k] * (double)B[i % p.N * p.K + k];
    t.reference[i] = sum;
  }
  free(A), free(B), free(C);
  return t;
}

static void product_free(Product *t) {
  CUDA_CHECK(cudaFree(t->A));
  CUDA_CHECK(cudaFree(t->B));
  CUDA_CHECK(cudaFree(t->inverse));
  CUDA_CHECK(cudaFree(t->C));
  CUDA_CHECK(cudaFree(t->D));
  free(t->reference);
}

static void run(Gemm *gemm, const Product *t, const float *inverse_A) {
  gemm_run_fp8(gemm, t->p, t->A, inverse_A, t->B, t->inverse + INVERSE_B, t->C, t->D);
}

// D as fp32, [M, N], and that nothing was written between its rows.
static float *result(const Product *t) {
  const GemmProblem *p = &t->p;
  const int64_t ldd = p->ldd ? p->ldd : p->N;
  char *raw = xmalloc(t->bytes);
  float *D = xmalloc((size_t)(p->M * p->N) * sizeof *D);
  CUDA_CHECK(cudaDeviceSynchronize());
  CUDA_CHECK(cudaMemcpy(raw, t->D, t->bytes, cudaMemcpyDeviceToHost));
  for (int64_t i = 0; i < p->M * ldd; i++) {
    const uint32_t wide = p->out_fp32 ? ((uint32_t *)raw)[i] : (uint32_t)((uint16_t *)raw)[i] << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    if (i % ldd < p->N)
      D[i / ldd * p->N + i % ldd] = value;
    else
      assert_true(isnan(value));
  }
  free(raw);
  return D;
}

// The L2 error and the mean error, relative to the reference.
static void expect_product(const Product *t, double l2, double bias) {
  const GemmProblem *p = &t->p;
  float *D = result(t);
  double square = 0, norm = 0, sum = 0, all = 0;
  for (int64_t i = 0; i < p->M * p->N; i++) {
    const double d = (double)D[i] - t->reference[i] - (p->add ? 1 : 0);
    square += d * d;
    norm += t->reference[i] * t->reference[i];
    sum += d;
    all += fabs(t->reference[i]);
  }
  printf("# fp8 %lld x %lld x %lld%s%s%s: L2 %.2e (bound %.2e), mean %+.2e (bound %.2e)\n",
         (long long)p->M, (long long)p->N, (long long)p->K, p->accurate ? ", accurate" : ", fast",
         p->out_fp32 ? ", fp32" : "", t->one_sign ? ", one sign" : "", sqrt(square / norm), l2,
         sum / all, bias);
  fflush(stdout);
  assert_true(sqrt(square / norm) <= l2 && fabs(sum / all) <= bias);
  free(D);
}

// Bounds: a result in bf16 carries 1.66e-3. Of fast sums 1.94e-3 in all was observed at K = 2048,
// of one sign -3.07e-2; of accurate ones -6.5e-4 at any K.
TEST_WITH(fp8_products_are_as_exact_as_they_say, set_up, tear_down) {
  if (!fp8_here()) skip();
  Place *place = *state;
  static const struct {
    GemmProblem p;
    bool one_sign;
    double l2, bias;
  } cases[] = {
      {{.M = 333, .N = 272, .K = 528, .formats = GEMM_E4M3}, false, 2.2e-3, 1e-3},
      {{.M = 1, .N = 528, .K = 2048, .formats = GEMM_E4M3}, false, 3e-3, 2e-3},
      {{.M = 64, .N = 16, .K = 16, .formats = GEMM_E4M3, .accurate = true}, false, 2.2e-3, 1e-3},
      {{.M = 40, .N = 1008, .K = 272, .formats = GEMM_E4M3, .accurate = true}, false, 2.2e-3, 1e-3},
      {{.M = 37,
        .N = 272,
        .K = 528,
        .formats = GEMM_E4M3,
        .accurate = true,
        .lda = 544,
        .ldb = 592,
        .ldd = 288},
       false,
       2.2e-3,
       1e-3},
      {{.M = 272,
        .N = 144,
        .K = 4096,
        .formats = GEMM_E4M3,
        .accurate = true,
        .out_fp32 = true,
        .add = true},
       false,
       1e-3,
       1e-3},
      {{.M = 64, .N = 64, .K = 32768, .formats = GEMM_E4M3, .accurate = true, .out_fp32 = true},
       true,
       1e-3,
       1e-3},
      {{.M = 64, .N = 64, .K = 2048, .formats = GEMM_E4M3}, true, 4e-2, 4e-2},
  };
  Gemm gemm;
  gemm_open(&gemm, &place->gpu, "");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Product t = product_new(cases[i].p, cases[i].one_sign);
    run(&gemm, &t, t.inverse);
    expect_product(&t, cases[i].l2, cases[i].bias);
    product_free(&t);
  }
  gemm_close(&gemm);
}

// A recorded product keeps the pointer of its own inverse scale, and reads what is there then.
TEST_WITH(fp8_products_are_recorded_with_their_scales, set_up, tear_down) {
  if (!fp8_here()) skip();
  Place *place = *state;
  const cudaStream_t stream = place->gpu.stream;
  const float half = 0.5f;
  cudaGraph_t graph;
  cudaGraphExec_t recorded;
  Gemm gemm;
  gemm_open(&gemm, &place->gpu, "");
  Product t = product_new((GemmProblem){.M = 48, .N = 64, .K = 256, .formats = GEMM_E4M3}, false);
  float *other = on_gpu(&half, sizeof half);
  run(&gemm, &t, t.inverse);
  float *plain = result(&t);
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  run(&gemm, &t, other);
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&recorded, graph, 0));
  for (int i = 0; i < 2; i++) {
    const float inverse = i == 0 ? 0.5f : 0.25f;
    CUDA_CHECK(cudaMemcpy(other, &inverse, sizeof inverse, cudaMemcpyHostToDevice));
    run(&gemm, &t, t.inverse); // in between, with another scale
    CUDA_CHECK(cudaGraphLaunch(recorded, stream));
    float *scaled = result(&t);
    for (int64_t j = 0; j < t.p.M * t.p.N; j++) scaled[j] /= inverse;
    expect_same("a recorded product", scaled, plain, t.p.M * t.p.N);
    free(scaled);
  }
  CUDA_CHECK(cudaGraphExecDestroy(recorded));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaFree(other));
  free(plain);
  product_free(&t);
  gemm_close(&gemm);
}

// Timed and remembered like others.
TEST_WITH(fp8_choices_are_remembered, set_up, tear_down) {
  if (!fp8_here()) skip();
  Place *place = *state;
  const GemmProblem p = {.M = 512, .N = 768, .K = 1024, .formats = GEMM_E4M3, .alignment = 16};
  float microseconds = 0;
  for (int i = 0; i < 2; i++) {
    Gemm gemm;
    gemm_open(&gemm, &place->gpu, place->path);
    must(gemm_prepare(&gemm, &p, 1, &err), &err);
    const GemmChoice *plan = gemm_find(&gemm, &p);
    assert_true(plan && plan->microseconds > 0);
    assert_true(i == 0 || fabsf(plan->microseconds - microseconds) < 1e-3f);
    microseconds = plan->microseconds;
    gemm_close(&gemm);
  }
}
