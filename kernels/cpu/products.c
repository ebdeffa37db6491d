// The CPU's matrix products: oneDNN's in fp32 and bf16, and for gradient checks a loop in fp64.
#include <assert.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bf16.h"
#include "base/memory.h"
#include "kernels/cpu/cpu.h"

#ifdef REAL_IS_DOUBLE
void gemm_strided(GemmForm form, int64_t M, int64_t N, int64_t K, real alpha, const real *A,
                  int64_t lda, const real *B, int64_t ldb, real beta, real *C, int64_t ldc) {
  const int64_t A_row = form == GEMM_TN ? 1 : lda, A_col = form == GEMM_TN ? lda : 1,
                B_row = form == GEMM_NT ? 1 : ldb, B_col = form == GEMM_NT ? ldb : 1;
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m++) {
    real *c = C + m * ldc;
    for (int64_t n = 0; n < N; n++) c[n] = beta == 0 ? 0 : beta * c[n];
    for (int64_t k = 0; k < K; k++) {
      const real a = alpha * A[m * A_row + k * A_col];
      for (int64_t n = 0; n < N; n++) c[n] += a * B[k * B_row + n * B_col];
    }
  }
}
#else
void gemm_strided(GemmForm form, int64_t M, int64_t N, int64_t K, real alpha, const real *A,
                  int64_t lda, const real *B, int64_t ldb, real beta, real *C, int64_t ldc) {
  const char A_turned = form == GEMM_TN ? 'T' : 'N', B_turned = form == GEMM_NT ? 'T' : 'N';
  const dnnl_status_t status =
      dnnl_sgemm(A_turned, B_turned, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
  if (status == dnnl_out_of_memory)
    out_of_memory("oneDNN has none for a product of %lld x %lld x %lld; allow more (ulimit -v)",
                  (long long)M, (long long)N, (long long)K);
  assert(!status); // nothing else depends on the values
}
#endif

void gemm_warm_up(void) {
  enum { CODE = 24 << 20, SIDE = 64, FEW = 4, WIDE = 256 };
  omp_set_num_threads(1); // where others asked for memory, too, less might be left than was tried
  free(xmalloc(CODE));
  real *zeros = xcalloc(WIDE * WIDE, sizeof *zeros), *C = xmalloc(SIDE * WIDE * sizeof *C);
  for (int form = GEMM_NT; form <= GEMM_TN; form++)
    for (int64_t N = 4; N <= SIDE; N *= 4)
      gemm_strided((GemmForm)form, SIDE, N, SIDE, 1, zeros, SIDE, zeros, SIDE, 0, C, SIDE);
  // A few rows have code of their own, which generating text needs.
  gemm_strided(GEMM_NT, FEW, WIDE, WIDE, 1, zeros, WIDE, zeros, WIDE, 0, C, WIDE);
  free(zeros), free(C);
}

void gemm(GemmForm form, int64_t M, int64_t N, int64_t K, const real *A, const real *B, real beta,
          real *C) {
  gemm_strided(form, M, N, K, 1, A, form == GEMM_TN ? M : K, B, form == GEMM_NT ? K : N, beta, C,
               N);
}

static void product(const Cpu *cpu, GemmForm form, int64_t M, int64_t N, int64_t K, Operand A,
                    Operand B, bool add, real *C, int64_t ldc) {
  const int64_t A_cols = form == GEMM_TN ? M : K, B_cols = form == GEMM_NT ? K : N;
  const int64_t lda = A.row_stride ? A.row_stride : A_cols,
                ldb = B.row_stride ? B.row_stride : B_cols;
  if (!A.by_row && !B.data) {
    const real inverse = 1 / (real)cpu->scalings[B.scaling].state.scale;
    gemm_strided(form, M, N, K, inverse, reals(A.data), lda, reals(B.by_row), ldb, add, C, ldc);
    return;
  }
  if (!A.by_row || !B.by_row) {
    if (!cpu->products || M == 1 ||
        bf16_product(cpu->products, form, M, N, K, (float *)A.data, lda, (float *)B.data, ldb, add,
                     (float *)C, ldc) != 0)
      gemm_strided(form, M, N, K, 1, reals(A.data), lda, reals(B.data), ldb, add, C, ldc);
    return;
  }
  // Copies have the summed dimension along their rows.
  const real alpha =
      1 / (real)cpu->scalings[A.scaling].state.scale / (real)cpu->scalings[B.scaling].state.scale;
  const bool A_by_col = form == GEMM_TN, B_by_col = form != GEMM_NT;
  gemm_strided(GEMM_NT, M, N, K, alpha, reals(A_by_col ? A.by_col : A.by_row),
               A_by_col ? A.stride : lda, reals(B_by_col ? B.by_col : B.by_row),
               B_by_col ? B.stride : ldb, add, C, ldc);
}

void multiply(const Cpu *cpu, GemmForm form, int64_t M, int64_t N, int64_t K, Operand A, Operand B,
              bool add, real *C, int64_t ldc) {
  const bool noted = cpu->base.observed == OBSERVE_GEMMS;
  if (noted) mark_now(cpu, MARK_GEMM);
  product(cpu, form, M, N, K, A, B, add, C, ldc);
  if (noted) mark_now(cpu, MARK_GEMM_END);
}

// ---- In bf16

// A oneDNN product of packed operands.
typedef struct Shape {
  GemmForm form;
  bool add;
  int64_t M, N, K, ldc;
} Shape;

typedef struct Product {
  Shape shape;
  dnnl_primitive_t primitive; // NULL where oneDNN has none
  dnnl_memory_t A, B, C;      // their data changes from call to call
} Product;

struct Bf16Products {
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  Product *list; // [count]
  int count;
  Bf16Room room;
  uint16_t *A, *B; // [room.A], [room.B]
};

// ---- The interface of oneDNN 2, in which a description is a struct, and that of oneDNN 3.
typedef dnnl_memory_desc_t Matrix;

static int describe(Matrix *matrix, int64_t rows, int64_t cols, dnnl_data_type_t type,
                    int64_t row_stride, int64_t col_stride) {
  const dnnl_dims_t sizes = {rows, cols}, strides = {row_stride, col_stride};
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_desc_create_with_strides(matrix, 2, sizes, type, strides);
#else
  return dnnl_memory_desc_init_by_strides(matrix, 2, sizes, type, strides);
#endif
}

#if DNNL_VERSION_MAJOR >= 3
static int matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, const Matrix matrices[3],
                  dnnl_primitive_attr_t attr) {
  return dnnl_matmul_primitive_desc_create(made, engine, matrices[0], matrices[1], NULL,
                                           matrices[2], attr);
}

static int memory_of(dnnl_memory_t *memory, const Matrix *matrix, dnnl_engine_t engine) {
  return dnnl_memory_create(memory, *matrix, engine, DNNL_MEMORY_NONE);
}

static void release(Matrix *matrix) {
  (void)dnnl_memory_desc_destroy(*matrix);
}

static int append_sum(dnnl_post_ops_t ops) {
  return dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef);
}
#else
static int matmul(dnnl_primitive_desc_t *made, dnnl_engine_t engine, const Matrix matrices[3],
                  dnnl_primitive_attr_t attr) {
  dnnl_matmul_desc_t product;
  int status = dnnl_matmul_desc_init(&product, &matrices[0], &matrices[1], NULL, &matrices[2]);
  if (!status) status = dnnl_primitive_desc_create(made, &product, attr, engine, NULL);
  return status;
}

static int memory_of(dnnl_memory_t *memory, const Matrix *matrix, dnnl_engine_t engine) {
  return dnnl_memory_create(memory, matrix, engine, DNNL_MEMORY_NONE);
}

static void release(Matrix *matrix) {
  (void)matrix;
}

static int append_sum(dnnl_post_ops_t ops) {
  return dnnl_post_ops_append_sum(ops, 1);
}
#endif

// ---- One product

// The attributes of a product: its result overwrites C, or is added to it.
static int attributes(dnnl_primitive_attr_t *attr, bool add) {
  dnnl_post_ops_t ops = NULL;
  int status = dnnl_primitive_attr_create(attr);
  if (status || !add) return status;
  status = dnnl_post_ops_create(&ops);
  if (!status) status = append_sum(ops);
  if (!status) status = dnnl_primitive_attr_set_post_ops(*attr, ops); // keeps a copy
  if (ops) (void)dnnl_post_ops_destroy(ops);
  return status;
}

static void product_close(Product *p) {
  dnnl_memory_t *memories[] = {&p->A, &p->B, &p->C};
  if (p->primitive) (void)dnnl_primitive_destroy(p->primitive);
  for (int i = 0; i < 3; i++)
    if (*memories[i]) (void)dnnl_memory_destroy(*memories[i]);
}

// Its primitive stays NULL where oneDNN has none.
static Product product_open(dnnl_engine_t engine, Shape s) {
  Product p = {.shape = s};
  const int64_t A_row = s.form == GEMM_TN ? 1 : s.K, A_col = s.form == GEMM_TN ? s.M : 1;
  const int64_t B_row = s.form == GEMM_NT ? 1 : s.N, B_col = s.form == GEMM_NT ? s.K : 1;
  Matrix matrices[3];
  int described = 0, status = describe(&matrices[0], s.M, s.K, dnnl_bf16, A_row, A_col);
  described += !status;
  if (!status) status = describe(&matrices[1], s.K, s.N, dnnl_bf16, B_row, B_col);
  described += !status;
  if (!status) status = describe(&matrices[2], s.M, s.N, dnnl_f32, s.ldc, 1);
  described += !status;
  dnnl_primitive_attr_t attr = NULL;
  dnnl_primitive_desc_t made = NULL;
  dnnl_primitive_t primitive = NULL;
  if (!status) status = attributes(&attr, s.add);
  if (!status) status = matmul(&made, engine, matrices, attr);
  if (!status) status = dnnl_primitive_create(&primitive, made);
  dnnl_memory_t *memories[] = {&p.A, &p.B, &p.C};
  for (int i = 0; i < 3 && !status; i++) status = memory_of(memories[i], &matrices[i], engine);
  for (int i = 0; i < described; i++) release(&matrices[i]);
  if (made) (void)dnnl_primitive_desc_destroy(made);
  if (attr) (void)dnnl_primitive_attr_destroy(attr);
  if (!status)
    p.primitive = primitive;
  else if (primitive)
    (void)dnnl_primitive_destroy(primitive);
  return p;
}

static const Product *find_product(Bf16Products *products, Shape s) {
  for (int i = 0; i < products->count; i++) {
    const Shape *have = &products->list[i].shape;
    if (have->form == s.form && have->add == s.add && have->M == s.M && have->N == s.N &&
        have->K == s.K && have->ldc == s.ldc)
      return &products->list[i];
  }
  const size_t count = (size_t)products->count + 1;
  products->list = xrealloc(products->list, count * sizeof *products->list);
  products->list[products->count] = product_open(products->engine, s);
  return &products->list[products->count++];
}

// ---- Rounding

VECTORS static void round_row(int64_t n, const float *from, uint16_t *to) {
  for (int64_t i = 0; i < n; i++) to[i] = bf16_of_float(from[i]);
}

static void round_matrix(int64_t rows, int64_t cols, const float *from, int64_t stride,
                         uint16_t *to) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < rows; i++) round_row(cols, from + i * stride, to + i * cols);
}

// ---- The interface

// For another kind of CPU oneDNN has no such names, though their numbers, and for products no code
// of its own.
static bool cpu_has(dnnl_cpu_isa_t isa) {
#ifdef __x86_64__
  return (dnnl_get_effective_cpu_isa() & isa) == isa;
#else
  (void)isa;
  return false;
#endif
}

int bf16_products_usable(Error *err) {
  if (sizeof(real) != sizeof(float)) return error_set(err, "this build computes in fp64");
  if (cpu_has(dnnl_cpu_isa_avx512_core)) return 0;
  return error_set(err,
                   "oneDNN multiplies in bf16 on CPUs with AVX-512, which this one does not have");
}

bool bf16_products_pay(void) {
  return cpu_has(dnnl_cpu_isa_avx512_core_amx);
}

ShortText products_library(void) {
  const dnnl_version_t *v = dnnl_version();
  const char *isa = cpu_has(dnnl_cpu_isa_avx512_core) ? "AVX-512"
                    : cpu_has(dnnl_cpu_isa_avx2)      ? "AVX2"
                    : cpu_has(dnnl_cpu_isa_avx)       ? "AVX"
                    : cpu_has(dnnl_cpu_isa_sse41)     ? "SSE4.1"
                                                      : "reference";
  return short_text("oneDNN %d.%d.%d (%s)", v->major, v->minor, v->patch, isa);
}

Bf16Products *bf16_products_open(Bf16Room room) {
  Bf16Products *products = xcalloc(1, sizeof *products);
  int status = dnnl_engine_create(&products->engine, dnnl_cpu, 0);
  if (!status)
    status = dnnl_stream_create(&products->stream, products->engine, dnnl_stream_default_flags);
  assert(!status); // a CPU is always there
  products->room = room;
  products->A = xmalloc(room.A * sizeof *products->A);
  products->B = xmalloc(room.B * sizeof *products->B);
  return products;
}

void bf16_products_close(Bf16Products *products) {
  if (!products) return;
  for (int i = 0; i < products->count; i++) product_close(&products->list[i]);
  free(products->list);
  (void)dnnl_stream_destroy(products->stream);
  (void)dnnl_engine_destroy(products->engine);
  free(products->A);
  free(products->B);
  free(products);
}

// For existing operands.
static void run(const Bf16Products *products, const Product *p, float *C) {
  const dnnl_exec_arg_t args[] = {
      {DNNL_ARG_SRC, p->A}, {DNNL_ARG_WEIGHTS, p->B}, {DNNL_ARG_DST, p->C}};
  int status = dnnl_memory_set_data_handle(p->A, products->A);
  if (!status) status = dnnl_memory_set_data_handle(p->B, products->B);
  if (!status) status = dnnl_memory_set_data_handle(p->C, C);
  if (!status) status = dnnl_primitive_execute(p->primitive, products->stream, 3, args);
  if (!status) status = dnnl_stream_wait(products->stream);
  assert(!status); // nothing depends on the values
}

int bf16_product(Bf16Products *products, GemmForm form, int64_t M, int64_t N, int64_t K,
                 const float *A, int64_t lda, const float *B, int64_t ldb, bool add, float *C,
                 int64_t ldc) {
  const int64_t fit = (int64_t)products->room.A / K, piece = fit < M ? fit : M;
  assert(piece > 0 && (size_t)(N * K) <= products->room.B);
  // oneDNN refuses a shape before anything of C is written: the last piece's is asked for, too.
  const int64_t last = (M - 1) % piece + 1;
  if (!find_product(products, (Shape){form, add, last, N, K, ldc})->primitive ||
      !find_product(products, (Shape){form, add, piece, N, K, ldc})->primitive)
    return -1;
  if (form == GEMM_NT)
    round_matrix(N, K, B, ldb, products->B);
  else
    round_matrix(K, N, B, ldb, products->B);
  for (int64_t m = 0; m < M; m += piece) {
    const int64_t rows = M - m < piece ? M - m : piece;
    if (form == GEMM_TN)
      round_matrix(K, rows, A + m, lda, products->A);
    else
      round_matrix(rows, K, A + m * lda, lda, products->A);
    run(products, find_product(products, (Shape){form, add, rows, N, K, ldc}), C + m * ldc);
  }
  return 0;
}
