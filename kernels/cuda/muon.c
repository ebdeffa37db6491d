#include "kernels/cuda/muon.h"

#include <stdlib.h>

#include "base/memory.h"
#include "kernels/cuda/cuda.h"

static int64_t at_least_one(int64_t value) {
  return value > 1 ? value : 1;
}
static int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// ---- Groups

static MuonGroup *group_of(const Muon *muon, int64_t rows, int64_t cols) {
  for (int i = 0; i < muon->group_count; i++)
    if (muon->groups[i].rows == rows && muon->groups[i].cols == cols) return &muon->groups[i];
  return NULL;
}

static void count_part(Muon *muon, int64_t rows, int64_t cols) {
  MuonGroup *group = group_of(muon, rows, cols);
  if (!group) {
    const size_t bytes = ((size_t)muon->group_count + 1) * sizeof *muon->groups;
    muon->groups = xrealloc(muon->groups, bytes);
    group = &muon->groups[muon->group_count++];
    *group = (MuonGroup){.rows = rows, .cols = cols};
  }
  group->count++;
}

// All memory, or its size where there is none.
static size_t place(Muon *muon, char *memory) {
  Arena arena = {.block = memory};
  int64_t all = 0, squares = 0;
  for (int i = 0; i < muon->group_count; i++) {
    MuonGroup *g = &muon->groups[i];
    const int64_t n = smaller(g->rows, g->cols);
    g->X = arena_take(&arena, (size_t)(g->count * g->rows * g->cols) * sizeof *g->X);
    g->factors = arena_take(&arena, (size_t)g->count * sizeof *g->factors);
    if (all < g->batch * g->rows * g->cols) all = g->batch * g->rows * g->cols;
    if (squares < g->batch * n * n) squares = g->batch * n * n;
  }
  muon->Y = arena_take(&arena, (size_t)all * sizeof *muon->Y);
  for (int i = 0; i < MUON_SQUARES; i++)
    muon->S[i] = arena_take(&arena, (size_t)squares * sizeof *muon->S[i]);
  return arena.used;
}

// A launch's matrices: enough to fill a card. All have the same number, for one plan of cuBLASLt.
static int64_t batch_of(const MuonGroup *g) {
  const int64_t elements = 1 << 27, most = at_least_one(elements / (g->rows * g->cols));
  const int64_t launches = (g->count + most - 1) / most;
  return (g->count + launches - 1) / launches;
}

Muon muon_plan(const ParamTensor *list, int count) {
  Muon muon = {0};
  for (int i = 0; i < count; i++)
    for (int k = 0; k < list[i].part_count; k++)
      count_part(&muon, list[i].parts[k].rows, list[i].cols);
  for (int i = 0; i < muon.group_count; i++) muon.groups[i].batch = batch_of(&muon.groups[i]);
  if (muon.group_count > 0) muon.bytes = place(&muon, NULL);
  return muon;
}

void muon_free(Muon *muon) {
  free(muon->groups);
  *muon = (Muon){0};
}

MuonPlace muon_place(Muon *muon, int64_t rows, int64_t cols) {
  MuonGroup *g = group_of(muon, rows, cols);
  const int64_t i = g->placed++;
  if (!g->X) return (MuonPlace){0};
  return (MuonPlace){g->X + i * rows * cols, g->factors + i};
}

void muon_places_reset(Muon *muon) {
  for (int i = 0; i < muon->group_count; i++) muon->groups[i].placed = 0;
}

// ---- The iteration by cuBLASLt: the twin of the fused one

enum { PRODUCTS = 3 };
typedef struct Products {
  GemmProblem gram, polynomial, apply;
} Products;

static Products products_of(int64_t count, int64_t rows, int64_t cols) {
  const bool tall = rows > cols;
  const int64_t n = tall ? cols : rows;
  const GemmProblem any = {.formats = GEMM_BF16, .alignment = 16, .batch = count};
  Products p = {any, any, any};
  p.gram.M = p.gram.N = n;
  p.gram.K = tall ? rows : cols;
  p.gram.form = tall ? GEMM_TN : GEMM_NT;
  p.polynomial.M = p.polynomial.N = p.polynomial.K = n;
  p.polynomial.form = GEMM_NT; // A is symmetric
  p.polynomial.add = p.apply.add = true;
  p.polynomial.alpha = (float)MUON_C;
  p.polynomial.beta = (float)MUON_B;
  p.apply.M = rows;
  p.apply.N = cols;
  p.apply.K = n;
  p.apply.form = tall ? GEMM_NT : GEMM_NN; // and so is B
  p.apply.beta = (float)MUON_A;
  return p;
}

static void iterate(Gemm *gemm, const Products *p, const MuonBatch *b, const bf16_bits *from,
                    bf16_bits *to) {
  const bool tall = b->rows > b->cols;
  bf16_bits *const A = b->S[0], *const B = b->S[1];
  gemm_run(gemm, p->gram, from, from, NULL, A);
  gemm_run(gemm, p->polynomial, A, A, A, B);
  gemm_run(gemm, p->apply, tall ? from : B, tall ? B : from, from, to);
}

// An odd number of steps ends in X.
void cuda_orthogonalise(Cuda *c, const MuonBatch *b) {
  const Products p = products_of(b->count, b->rows, b->cols);
  launch_normalise(b->count, b->rows * b->cols, b->X, b->factors, b->Y, c->gpu.stream);
  _Static_assert(MUON_STEPS % 2 == 1, "the last step ends in Y");
  for (int i = 0; i < MUON_STEPS; i++)
    iterate(&c->gemm, &p, b, i % 2 ? b->X : b->Y, i % 2 ? b->Y : b->X);
}

// ---- Set-up

static int prepare(Gemm *gemm, const Muon *muon, Error *err) {
  for (int i = 0; i < muon->group_count; i++) {
    const MuonGroup *g = &muon->groups[i];
    const Products p = products_of(g->batch, g->rows, g->cols);
    const GemmProblem list[PRODUCTS] = {p.gram, p.polynomial, p.apply};
    if (gemm_prepare(gemm, list, PRODUCTS, err)) return -1;
  }
  return 0;
}

void muon_open(Muon *muon, Gemm *gemm, const ParamTensor *list, int count) {
  Error err;
  *muon = muon_plan(list, count);
  if (muon->bytes == 0) return;
  error_check(prepare(gemm, muon, &err), &err);
  muon->memory = gpu_alloc(muon->bytes); // the plan counts it
  if (!muon->memory) CUDA_CHECK(cudaErrorMemoryAllocation);
  place(muon, muon->memory);
}

void muon_close(Muon *muon) {
  if (muon->memory) CUDA_CHECK(cudaFree(muon->memory));
  muon_free(muon);
}

// ---- The operation

static MuonBatch batch_at(const Muon *muon, const MuonGroup *g, int64_t first) {
  const int64_t left = g->count - first;
  return (MuonBatch){.count = left < g->batch ? left : g->batch,
                     .rows = g->rows,
                     .cols = g->cols,
                     .X = g->X + first * g->rows * g->cols,
                     .Y = muon->Y,
                     .S = muon->S,
                     .factors = g->factors + first};
}

void cuda_muon(Backend *be, const ParamTensor *list, int count) {
  Cuda *c = cuda_of(be);
  const ParamTable *table = cuda_table(c, list, count);
  cuda_decide(c);
  launch_momentum(table, c->config.moments == MOMENTS_BF16, c->state, c->gpu.stream);
  for (int i = 0; i < c->muon.group_count; i++) {
    const MuonGroup *g = &c->muon.groups[i];
    for (int64_t first = 0; first < g->count; first += g->batch) {
      const MuonBatch batch = batch_at(&c->muon, g, first);
      c->orthogonalise(c, &batch);
    }
  }
}
