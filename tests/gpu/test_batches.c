// The batched programs in every tile shape, against fp32 products of the same bf16 inputs: each
// matrix by itself, and both sides of what is symmetric. The bound of each error is twice that of
// the product rounded to bf16.
#include "tests/gpu/program_rig.h"

typedef struct Batched {
  const Program *program;
  double product, load, identity; // the factor of each in the result
  bool gram, tall; // A and B are X; the matrix that is no square has more rows than columns
} Batched;

static const Batched cases[] = {
    {&fused_program_gram, 1, 0, 0, true, false},
    {&fused_program_gram_tall, 1, 0, 0, true, true},
    {&fused_program_polynomial, 2.0315, -4.775, 3.4445, false, false},
    {&fused_program_commuting, 1, 0, 0, false, false},
    {&fused_program_apply, 1, 0, 0, false, false},
    {&fused_program_apply_tall, 1, 0, 0, false, true},
};
enum { CASES = sizeof cases / sizeof *cases };

// The smaller side, the larger one, and how many.
static const int64_t sizes[][3] = {
    {8, 24, 3}, {72, 136, 5}, {136, 200, 2}, {264, 520, 3}, {776, 1096, 2}};

// A case in one size. All arrays hold one matrix behind the other.
typedef struct Matrices {
  Bench b;
  ProgramCall call;
  float *A, *B, *load, *reference, *twin, *factors;
} Matrices;

static void make_symmetric(int64_t n, int64_t batch, float *x) {
  for (int64_t k = 0; k < batch; k++)
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < i; j++) x[k * n * n + j * n + i] = x[k * n * n + i * n + j];
}

// Symmetric results are of factors that give one: T = S / 2, so that S T^T is.
static void operands_new(Matrices *m, const Batched *c) {
  const ProgramCall *call = &m->call;
  const int64_t M = call->M, N = call->N, K = call->K, batch = call->batch;
  const double each = 1 / sqrt(sqrt((double)K));
  m->A = random_bf16(batch * M * K, each, "A");
  m->B = random_bf16(batch * N * K, each, "B");
  for (int64_t i = 0; c->program->symmetric && i < batch * N * K; i++)
    m->B[i] = c->gram ? m->A[i] : m->A[i] / 2;
  m->call.A = bf16_buffer(&m->b, batch * M * K, m->A);
  m->call.B = c->gram ? m->call.A : bf16_buffer(&m->b, batch * N * K, m->B);
  if (c->load != 0) {
    m->load = random_bf16(batch * M * N, 1, "load");
    make_symmetric(M, batch, m->load);
    m->call.loads[0] = (Matrix){bf16_buffer(&m->b, batch * M * N, m->load), M, N};
  }
  m->factors = floats(batch);
  for (int64_t i = 0; i < batch; i++) m->factors[i] = 0.5f + (float)i;
  m->call.args.params[0].f = (float)c->identity;
  m->call.args.params[1].f = (float)c->load;
  m->call.args.params[2].f = (float)c->product;
  if (c->gram) m->call.args.factors = fp32_buffer(&m->b, batch, m->factors);
}

static void expected_new(Matrices *m, const Batched *c) {
  const int64_t M = m->call.M, N = m->call.N, K = m->call.K, batch = m->call.batch;
  m->reference = floats(batch * M * N), m->twin = floats(batch * M * N);
  for (int64_t k = 0; k < batch; k++) {
    const double of_product = c->gram ? pow((double)m->factors[k], 2) : c->product;
    float *out = m->reference + k * M * N;
    gemm(c->program->form, M, N, K, m->A + k * M * K, m->B + k * N * K, 0, out);
    for (int64_t i = 0; i < M * N; i++) {
      double sum = of_product * (double)out[i];
      if (c->load != 0) sum += c->load * (double)m->load[k * M * N + i];
      if (i / N == i % N) sum += c->identity;
      out[i] = (float)sum;
      m->twin[k * M * N + i] = rounded(out[i]);
    }
  }
}

static void matrices_new(Matrices *m, Machine *machine, const Batched *c, const int64_t *size) {
  const int64_t n = size[0], other = size[1], batch = size[2];
  *m = (Matrices){.b.be = &machine->memory,
                  .call = {.M = n, .N = n, .K = c->gram ? other : n, .batch = batch}};
  if (!c->program->symmetric) *(c->tall ? &m->call.M : &m->call.N) = other;
  operands_new(m, c);
  expected_new(m, c);
  m->call.stores[0] =
      (Matrix){bf16_buffer(&m->b, batch * m->call.M * m->call.N, NULL), m->call.M, m->call.N};
}

static void matrices_free(Matrices *m) {
  free(m->A), free(m->B), free(m->load);
  free(m->reference), free(m->twin), free(m->factors);
  bench_free(&m->b);
}

static void launch_batch(const Machine *machine, const OpenProgram *open, TileShape tile,
                         const ProgramCall *call) {
  fused_launch(open, tile, call, machine->gpu.stream);
  CUDA_CHECK(cudaStreamSynchronize(machine->gpu.stream));
}

static void check_batch(Machine *machine, const Batched *c, const int64_t *size) {
  const OpenProgram open = program_open(machine, c->program);
  Matrices m;
  matrices_new(&m, machine, c, size);
  const ProgramCall *call = &m.call;
  assert_true(
      fused_runs_in(&open, tile_of_batch((ProgramName)(PROGRAM_GRAM + (c - cases)), call->batch,
                                         call->M, call->N, call->K, c->program->symmetric)));
  for (int tile = 0; tile < TILE_SHAPES; tile++) {
    if (!fused_runs_in(&open, tile)) continue;
    char what[80];
    snprintf(what, sizeof what, "%s %d, %lld of %lldx%lldx%lld", c->program->name,
             (int)c->program->kernels[tile].cols, (long long)call->batch, (long long)call->M,
             (long long)call->N, (long long)call->K);
    RUN_TWICE(&m.b, launch_batch(machine, &open, (TileShape)tile, call));
    float *got = bench_read(&m.b, call->stores[0].data);
    expect_near(what, got, m.twin, m.reference, call->batch * call->M * call->N, 1e-6);
    free(got);
  }
  matrices_free(&m);
}

TEST(every_matrix_of_a_batch_is_multiplied) {
  Machine machine;
  must(machine_open(&machine, &err), &err);
  const OpenProgram open = program_open(&machine, cases[0].program);
  if (!fused_runs_in(&open, TILE_128x128)) skip(); // no wgmma
  for (int i = 0; i < CASES; i++)
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
      check_batch(&machine, &cases[i], sizes[k]);
  gpu_close(&machine.gpu);
}

TEST(every_batched_program_has_a_case) {
  int batched = 0;
  for (int name = 0; name < PROGRAMS; name++) batched += fused_program((ProgramName)name)->batched;
  assert_int_equal(batched, CASES);
  for (int i = 0; i < CASES; i++)
    assert_ptr_equal(cases[i].program, fused_program((ProgramName)(PROGRAM_GRAM + i)));
}
