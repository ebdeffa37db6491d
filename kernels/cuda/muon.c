#include "kernels/cuda/muon.h"

#include "kernels/cuda/cuda.h"

// ---- The iteration by cuBLASLt: the twin of the fused one

enum { PRODUCTS = 3 };
typedef struct Products {
  GemmProblem gram, polynomial, apply;
} Products;

static Products products_of(int64_t count, int64_t rows, int64_t cols, int step) {
  const bool tall = rows > cols;
  const int64_t n = tall ? cols : rows;
  const MuonPolynomial *of = &muon_polynomials[step];
  const GemmProblem any = {.formats = GEMM_BF16, .alignment = 16, .batch = count};
  Products p = {any, any, any};
  p.gram.M = p.gram.N = n;
  p.gram.K = tall ? rows : cols;
  p.gram.form = tall ? GEMM_TN : GEMM_NT;
  p.polynomial.M = p.polynomial.N = p.polynomial.K = n;
  p.polynomial.form = GEMM_NT; // A is symmetric
  p.polynomial.add = p.apply.add = true;
  p.polynomial.alpha = (float)of->c;
  p.polynomial.beta = (float)of->b;
  p.apply.M = rows;
  p.apply.N = cols;
  p.apply.K = n;
  p.apply.form = tall ? GEMM_NT : GEMM_NN; // and so is B
  p.apply.beta = (float)of->a;
  return p;
}

static void iterate(Gemm *gemm, int step, const MuonBatch *b, const bf16_bits *from,
                    bf16_bits *to) {
  const Products p = products_of(b->count, b->rows, b->cols, step);
  const bool tall = b->rows > b->cols;
  bf16_bits *const A = b->S[0], *const B = b->S[1];
  gemm_run(gemm, p.gram, from, from, NULL, A);
  gemm_run(gemm, p.polynomial, A, A, A, B);
  gemm_run(gemm, p.apply, tall ? from : B, tall ? B : from, from, to);
}

static void orthogonalize(Cuda *c, const MuonBatch *b) {
  bf16_bits *from = MUON_STEPS % 2 ? b->Y : b->X, *to = MUON_STEPS % 2 ? b->X : b->Y;
  launch_normalize(b->count, b->rows * b->cols, b->X, b->factors, from, c->gpu.stream);
  for (int step = 0; step < MUON_STEPS; step++) {
    iterate(&c->gemm, step, b, from, to);
    bf16_bits *const written = to;
    to = from;
    from = written;
  }
}

void cuda_orthogonalize(Cuda *c, const MuonLaunch *launch) {
  for (int i = 0; i < launch->shapes; i++) orthogonalize(c, &launch->batches[i]);
}

void cuda_prepare_muon(Cuda *c) {
  Error err;
  for (int i = 0; i < c->muon.group_count * MUON_STEPS; i++) {
    const MuonGroup *g = &c->muon.groups[i / MUON_STEPS];
    const Products p = products_of(g->batch, g->rows, g->cols, i % MUON_STEPS);
    const GemmProblem list[PRODUCTS] = {p.gram, p.polynomial, p.apply};
    error_check(gemm_prepare(&c->gemm, list, PRODUCTS, &err), &err);
  }
}

// ---- The operation

static MuonBatch batch_at(const Muon *muon, const MuonGroup *g, int64_t first, bf16_bits *Y) {
  const int64_t left = g->count - first;
  return (MuonBatch){.count = left < g->batch ? left : g->batch,
                     .rows = g->rows,
                     .cols = g->cols,
                     .X = g->X + first * g->rows * g->cols,
                     .Y = Y,
                     .S = muon->S,
                     .factors = g->factors + first};
}

// The matrices from `first` on of the group, or all of it and of those that join it.
static MuonLaunch launch_at(const Muon *muon, int group, int64_t first) {
  MuonLaunch launch = {.shapes = muon_joined(muon, group)};
  bf16_bits *Y = muon->Y;
  for (int i = 0; i < launch.shapes; i++) {
    MuonBatch *b = &launch.batches[i];
    *b = batch_at(muon, &muon->groups[group + i], first, Y);
    Y += b->count * b->rows * b->cols;
  }
  return launch;
}

void cuda_muon(Backend *be, const ParamTensor *list, int count) {
  Cuda *c = cuda_of(be);
  const ParamTable *table = cuda_table(c, list, count);
  cuda_decide(c);
  launch_momentum(table, c->base.spec.moments == MOMENTS_BF16, c->state, c->gpu.stream);
  for (int i = 0; i < c->muon.group_count; i += muon_joined(&c->muon, i)) {
    const MuonGroup *g = &c->muon.groups[i];
    for (int64_t first = 0; first < g->count; first += g->batch) {
      const MuonLaunch launch = launch_at(&c->muon, i, first);
      c->orthogonalize(c, &launch);
    }
  }
}
