// The programs against cuBLASLt's best product of the same shape, which does nothing around it, and
// against their unfused twins: the product and the kernels that the unfused backend runs after it.
// Usage: bench_fused [110m|350m|1b|8b|70b|all] [PROGRAM] [--sustain]
//   --sustain  also a second of each variant back to back: the ranking under the power limit
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm_cublaslt.h"
#include "kernels/fused/program.h"
#include "kernels/unfused/unfused.h"
#include "tests/gpu/fused_support.h"
#include "tests/gpu/random_fill.h"

enum {
  WARM_UP = 2,
  MAX_ROUNDS = 20,
  FLUSH_BYTES = 160 << 20, // the second-level cache has 60 MB at most
  PATTERN = 1 << 22,
  MAX_MEMORY = 16,
  MAX_ROWS = 128
};

typedef struct Width {
  const char *name;
  int64_t D, F, H, KV, d, V;
  int rounds;
} Width;

static const Width widths[] = {
    {"110m", 768, 2048, 12, 12, 64, 32000, MAX_ROUNDS},
    {"350m", 1024, 2816, 16, 16, 64, 32000, MAX_ROUNDS},
    {"1b", 2048, 8192, 32, 8, 64, 128256, MAX_ROUNDS},
    {"8b", 4096, 14336, 32, 8, 128, 128256, MAX_ROUNDS},
    {"70b", 8192, 28672, 64, 8, 128, 128256, 12},
};
static const int64_t tokens = 16384, head_tokens = 8192, sequence = 4096;
static const float eps = 1e-5f;

// One timed problem. What a variant needs beside it is in the fields of its program.
typedef struct Problem {
  ProgramName program;
  const char *name;
  GemmProblem product;
  int64_t D; // that the row scale divides by
  // Filled by problem_open
  ProgramCall call;
  RowScale r;
  RopeShape rope;
  CrossEntropy loss;
  void *out, *scratch;
  void *memory[MAX_MEMORY];
  int allocations;
} Problem;

typedef struct Bench {
  Gpu gpu;
  Gemm gemm;
  FusedKernels kernels;
  cudaEvent_t start, stop;
  char *flush;
  uint16_t *normal, *weights; // patterns of values: of deviation 1, and as weights start
  const char *only;           // a program's name, or NULL
  bool sustain;
} Bench;

// How a problem is computed: by cuBLASLt alone, by the twin, or by the program in a tile shape.
typedef enum Variant { BARE, TWIN, PROGRAM_TILES, VARIANTS = PROGRAM_TILES + TILE_SHAPES } Variant;

typedef struct Times {
  double median[VARIANTS], tenth[VARIANTS], ninetieth[VARIANTS]; // ms
  double sustained[VARIANTS];
} Times;

static void end_with(const char *why) {
  fprintf(stderr, "%s\n", why);
  exit(EXIT_FAILURE);
}

// ---- Memory

static void *take(Problem *p, size_t bytes) {
  if (p->allocations == MAX_MEMORY) {
    fprintf(stderr, "bench_fused: MAX_MEMORY is too small\n");
    exit(EXIT_FAILURE);
  }
  void **memory = &p->memory[p->allocations++];
  CUDA_CHECK(cudaMalloc(memory, bytes));
  return *memory;
}

static void *take_copy(Problem *p, const void *from, size_t bytes) {
  void *memory = take(p, bytes);
  CUDA_CHECK(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
  return memory;
}

static void *take_random(Problem *p, const uint16_t *pattern, int64_t count) {
  const size_t bytes = (size_t)count * 2;
  void *memory = take(p, bytes);
  fill_with_copies(memory, bytes, pattern, PATTERN * sizeof *pattern);
  return memory;
}

static void *take_filled(Problem *p, int64_t count, float value) {
  float *values = xmalloc((size_t)count * sizeof *values);
  for (int64_t i = 0; i < count; i++) values[i] = value;
  void *memory = take_copy(p, values, (size_t)count * sizeof *values);
  free(values);
  return memory;
}

static uint16_t *normal_pattern(double deviation) {
  uint16_t *pattern = xmalloc(PATTERN * sizeof *pattern);
#pragma omp parallel for
  for (int64_t i = 0; i < PATTERN; i++) {
    const float value = (float)(deviation * rng_normal(7, (uint64_t)i));
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    pattern[i] = (uint16_t)(bits >> 16);
  }
  return pattern;
}

// ---- The operands of each program

static Matrix normal_matrix(const Bench *b, Problem *p, int64_t rows, int64_t cols) {
  return (Matrix){take_random(p, b->normal, rows * cols), rows, cols};
}
static Matrix out_matrix(Problem *p, int64_t rows, int64_t cols) {
  return (Matrix){take(p, (size_t)(rows * cols) * 2), rows, cols};
}

// Row scales: the sums of squares come in as many parts as a residual of D columns leaves, K
// columns long as the MLP's; the twin's come in one.
static void add_row_scales(const Width *w, Problem *p) {
  const int64_t M = p->product.M;
  const int32_t parts = tile_parts(tile_choose(PROGRAM_RESIDUAL, M, p->D, w->F), p->D);
  p->call.args.sumsq = (RowParts){take_filled(p, parts * M, (float)p->D / (float)parts), M, parts};
  p->call.args.inverse_D = 1 / (float)p->D;
  p->call.args.eps = eps;
  p->r = (RowScale){
      .sumsq = take_filled(p, M, (float)p->D), .D = p->D, .eps = eps, .parts = 1, .stride = M};
}

static void add_rope(const Width *w, Problem *p) {
  double *inv_freq = xmalloc((size_t)w->d / 2 * sizeof *inv_freq);
  for (int64_t j = 0; j < w->d / 2; j++) inv_freq[j] = pow(500000, -2 * (double)j / (double)w->d);
  float *angles = xmalloc((size_t)(sequence * w->d) * sizeof *angles);
  for (int64_t i = 0; i < sequence * w->d; i += 2) {
    const double angle = (double)(i / w->d) * inv_freq[i % w->d / 2];
    angles[i] = (float)cos(angle);
    angles[i + 1] = (float)sin(angle);
  }
  const RopeTable table = rope_table(0, 0, sequence, w->d, inv_freq);
  p->call.loads[0] = (Matrix){take_copy(p, table.values, (size_t)(table.rows * table.cols) * 2),
                              table.rows, table.cols};
  p->call.args.period = (int32_t)sequence;
  p->call.args.head_dim = (int32_t)w->d;
  p->call.args.rotated = (int32_t)((w->H + w->KV) * w->d);
  p->rope = (RopeShape){.rotated = (w->H + w->KV) * w->d,
                        .R = p->product.N,
                        .d = w->d,
                        .T = sequence,
                        .table = take_copy(p, angles, (size_t)(sequence * w->d) * 4)};
  free(inv_freq), free(angles), free(table.values);
}

static void add_loss(const Bench *b, Problem *p) {
  const int64_t M = p->product.M, V = p->product.N;
  int32_t *targets = xmalloc((size_t)M * sizeof *targets);
  for (int64_t m = 0; m < M; m++) targets[m] = (int32_t)(rng_u64(11, (uint64_t)m) % (uint64_t)V);
  p->call.args.softmax = take(p, (size_t)(tile_parts(TILE_128x128, V) * M) * sizeof(MaxSum));
  p->call.args.softmax_stride = M;
  p->loss = (CrossEntropy){.M = M,
                           .V = V,
                           .logits = p->out,
                           .targets = take_copy(p, targets, (size_t)M * sizeof *targets),
                           .r = p->r,
                           .clusters = b->gpu.major >= 9,
                           .multiprocessors = b->gpu.sm_count,
                           .grad_scale = 1,
                           .row_loss = take(p, (size_t)M * 4)};
  free(targets);
}

// RMSNorm's s: the MLP's comes in as many parts as its backward leaves, the others' in one.
static void add_s(const Width *w, Problem *p) {
  const int64_t M = p->product.M;
  const TileShape tile = tile_choose(PROGRAM_SWIGLU_BACKWARD, M, w->F, w->D);
  const int32_t parts = p->product.K == 2 * w->F ? tile_parts(tile, w->F) : 1;
  p->call.args.s = (RowParts){take_filled(p, parts * M, 1), M, parts};
}

static void problem_open(const Bench *b, const Width *w, Problem *p) {
  const int64_t M = p->product.M, N = p->product.N, K = p->product.K;
  p->call = (ProgramCall){.M = M, .N = N, .K = K};
  p->call.A = take_random(p, b->normal, M * K);
  p->call.B = take_random(p, b->weights, N * K);
  p->call.stores[0] = out_matrix(p, M, N);
  p->out = (void *)(uintptr_t)p->call.stores[0].data;
  if (p->D) add_row_scales(w, p);
  switch (p->program) {
  case PROGRAM_RESIDUAL:
    p->call.loads[0] = normal_matrix(b, p, M, N);
    break;
  case PROGRAM_ROPE:
    add_rope(w, p);
    break;
  case PROGRAM_SWIGLU:
    p->call.stores[1] = out_matrix(p, M, N / 2);
    break;
  case PROGRAM_LOGITS:
    add_loss(b, p);
    break;
  case PROGRAM_SWIGLU_BACKWARD:
  case PROGRAM_SWIGLU_BACKWARD_Y: // dz' beside z, which thus stays what it is
    p->call.loads[0] = normal_matrix(b, p, M, 2 * N);
    p->call.stores[0] = out_matrix(p, M, 2 * N);
    p->call.stores[1] = out_matrix(p, M, N);
    p->scratch = take(p, (size_t)(M * N) * 2);
    break;
  case PROGRAM_NORM_DGRAD:
  case PROGRAM_NORM_DGRAD_RESIDUAL:
    p->call.loads[0] = normal_matrix(b, p, M, N);
    p->call.loads[1] = normal_matrix(b, p, M, N);
    p->scratch = take(p, (size_t)(M * N) * 2);
    add_s(w, p);
    break;
  default:
    break;
  }
  // As many as the smallest tiles leave; each launch says how many it means.
  p->call.args.sums =
      (RowParts){.data = take(p, (size_t)(tile_parts(TILE_128x128, N) * M) * 4), .stride = M};
  CUDA_CHECK(cudaDeviceSynchronize()); // the copies above are of another stream
}

static void problem_close(Problem *p) {
  for (int i = 0; i < p->allocations; i++) CUDA_CHECK(cudaFree(p->memory[i]));
}

// ---- The variants

static void run_product(Bench *b, const Problem *p, bool add, const void *C, void *to) {
  GemmProblem product = p->product;
  product.add = add;
  gemm_run(&b->gemm, product, p->call.A, p->call.B, C, to);
}

// What the unfused backend does after (or with) its product: kernels/unfused/forward_unfused.c and
// backward_unfused.c.
static void run_twin(Bench *b, const Problem *p) {
  const int64_t M = p->product.M, N = p->product.N;
  const ProgramCall *c = &p->call;
  void *second = (void *)(uintptr_t)c->stores[1].data;
  switch (p->program) {
  case PROGRAM_RESIDUAL:
    run_product(b, p, true, c->loads[0].data, p->out);
    unfused_row_sumsq(M, N, p->out, c->args.sums.data, b->gpu.stream);
    break;
  case PROGRAM_ROPE:
    run_product(b, p, false, NULL, p->out);
    unfused_rope(M, p->rope, p->r, p->out, b->gpu.stream);
    break;
  case PROGRAM_SWIGLU:
    run_product(b, p, false, NULL, p->out);
    unfused_swiglu(M, N / 2, p->r, p->out, second, b->gpu.stream);
    break;
  case PROGRAM_LOGITS:
    run_product(b, p, false, NULL, p->out);
    unfused_cross_entropy(&p->loss, b->gpu.stream);
    break;
  case PROGRAM_SWIGLU_BACKWARD:
  case PROGRAM_SWIGLU_BACKWARD_Y:
    run_product(b, p, false, NULL, p->scratch);
    unfused_swiglu_backward(M, N, p->r, c->loads[0].data, p->scratch,
                            (void *)(uintptr_t)c->stores[0].data, c->args.sums.data,
                            p->program == PROGRAM_SWIGLU_BACKWARD ? NULL : second, b->gpu.stream);
    break;
  case PROGRAM_NORM_DGRAD:
  case PROGRAM_NORM_DGRAD_RESIDUAL:
    run_product(b, p, p->program == PROGRAM_NORM_DGRAD_RESIDUAL, c->loads[1].data, p->scratch);
    unfused_norm_backward(M, p->r, c->loads[0].data, (RowSums){.data = c->args.s.data}, p->scratch,
                          p->out, b->gpu.stream);
    break;
  default:
    break;
  }
}

static bool has_twin(ProgramName name) {
  switch (name) {
  case PROGRAM_RESIDUAL:
  case PROGRAM_ROPE:
  case PROGRAM_SWIGLU:
  case PROGRAM_LOGITS:
  case PROGRAM_SWIGLU_BACKWARD:
  case PROGRAM_SWIGLU_BACKWARD_Y:
  case PROGRAM_NORM_DGRAD:
  case PROGRAM_NORM_DGRAD_RESIDUAL:
    return true;
  default: // of run_twin
    return false;
  }
}

static void run_variant(Bench *b, const Problem *p, int variant) {
  if (variant == BARE) {
    run_product(b, p, false, NULL, p->out);
  } else if (variant == TWIN) {
    run_twin(b, p);
  } else {
    const TileShape tile = (TileShape)(variant - PROGRAM_TILES);
    ProgramCall call = p->call;
    call.args.sums.parts = tile_parts(tile, call.N);
    fused_launch(&b->kernels, p->program, tile, &call, b->gpu.stream);
  }
}

// ---- Timing

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double time_once(Bench *b, const Problem *p, int variant, int calls) {
  const cudaStream_t stream = b->gpu.stream;
  // Also long enough for the host to have launched what is timed before its turn comes.
  CUDA_CHECK(cudaMemsetAsync(b->flush, variant, FLUSH_BYTES, stream));
  CUDA_CHECK(cudaEventRecord(b->start, stream));
  for (int i = 0; i < calls; i++) run_variant(b, p, variant);
  CUDA_CHECK(cudaEventRecord(b->stop, stream));
  CUDA_CHECK(cudaEventSynchronize(b->stop));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, b->start, b->stop));
  return (double)ms / calls;
}

static void time_problem(Bench *b, const Problem *p, int rounds, Times *t) {
  double samples[VARIANTS][MAX_ROUNDS];
  int order[VARIANTS], count = 0;
  for (int v = 0; v < VARIANTS; v++)
    if (v != TWIN || has_twin(p->program)) order[count++] = v;
  for (int round = -WARM_UP; round < rounds; round++) {
    for (int i = count - 1; i > 0; i--) {
      const int j =
          (int)(rng_u64(13, (uint64_t)((round + WARM_UP) * VARIANTS + i)) % (uint64_t)(i + 1));
      const int swap = order[i];
      order[i] = order[j], order[j] = swap;
    }
    for (int i = 0; i < count; i++) {
      const double ms = time_once(b, p, order[i], 1);
      if (round >= 0) samples[order[i]][round] = ms;
    }
  }
  *t = (Times){0};
  for (int i = 0; i < count; i++) {
    const int v = order[i];
    qsort(samples[v], (size_t)rounds, sizeof samples[v][0], by_value);
    t->median[v] = (samples[v][(rounds - 1) / 2] + samples[v][rounds / 2]) / 2;
    t->tenth[v] = samples[v][rounds / 10];
    t->ninetieth[v] = samples[v][rounds - 1 - rounds / 10];
  }
  for (int v = 0; v < VARIANTS && b->sustain; v++)
    if (t->median[v] > 0) t->sustained[v] = time_once(b, p, v, (int)(1000 / t->median[v]) + 1);
}

// ---- The table

// Of a row, in units of cuBLASLt's time.
typedef struct Row {
  ProgramName program;
  double chosen, best; // the program in the tile shape that tile_choose names; in its best
  double twin;         // 0 = none
} Row;

typedef struct Rows {
  Row rows[MAX_ROWS];
  int count;
} Rows;

static void print_head(const char *width, int64_t D, int64_t F) {
  printf("\n%s: D %lld, F %lld. ms (x cuBLASLt's); * = the tile shape that tile_choose takes\n",
         width, (long long)D, (long long)F);
  printf("%-19s %-13s %-18s %9s %7s  %-15s %-15s %-15s %6s %9s %6s\n", "program", "", "M x N x K",
         "cuBLASLt", "TFLOP/s", "128x256", "128x192", "128x128", "10-90%", "twin", "/ ours");
}

static void print_row(const Problem *p, const Times *t, Rows *all) {
  const GemmProblem *q = &p->product;
  const int chosen = PROGRAM_TILES + (int)tile_choose(p->program, q->M, q->N, q->K);
  const double flops = 2 * (double)q->M * (double)q->N * (double)q->K, bare = t->median[BARE];
  char shape[64];
  snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)q->M, (long long)q->N,
           (long long)q->K);
  printf("%-19s %-13s %-18s %9.4f %7.1f ", fused_program(p->program)->name, p->name, shape, bare,
         flops / bare * 1e-9);
  double best = t->median[chosen];
  for (int v = PROGRAM_TILES; v < VARIANTS; v++) {
    printf(" %8.4f %5.3f%c", t->median[v], t->median[v] / bare, v == chosen ? '*' : ' ');
    if (t->median[v] < best) best = t->median[v];
  }
  printf(" %5.1f%%", 100 * (t->ninetieth[chosen] - t->tenth[chosen]) / t->median[chosen]);
  if (has_twin(p->program))
    printf(" %9.4f %6.3f", t->median[TWIN], t->median[TWIN] / t->median[chosen]);
  printf("\n");
  if (t->sustained[BARE] > 0) {
    printf("%-19s %-13s %-18s %9.4f %7.1f ", "", "sustained", "", t->sustained[BARE],
           flops / t->sustained[BARE] * 1e-9);
    for (int v = PROGRAM_TILES; v < VARIANTS; v++)
      printf(" %8.4f %5.3f%c", t->sustained[v], t->sustained[v] / t->sustained[BARE],
             v == chosen ? '*' : ' ');
    if (has_twin(p->program))
      printf(" %6s %9.4f %6.3f", "", t->sustained[TWIN], t->sustained[TWIN] / t->sustained[chosen]);
    printf("\n");
  }
  fflush(stdout);
  if (all->count == MAX_ROWS) end_with("MAX_ROWS is too small");
  all->rows[all->count++] = (Row){.program = p->program,
                                  .chosen = t->median[chosen] / bare,
                                  .best = best / bare,
                                  .twin = t->median[TWIN] / bare};
}

typedef enum Kind { PLAIN, FORWARD, BACKWARD } Kind;

static Kind kind_of(ProgramName name) {
  switch (name) {
  case PROGRAM_RESIDUAL:
  case PROGRAM_ROPE:
  case PROGRAM_SWIGLU:
  case PROGRAM_LOGITS:
    return FORWARD;
  default:
    return has_twin(name) ? BACKWARD : PLAIN;
  }
}

static void print_summary(const Rows *all, const char *name, Kind kind) {
  double chosen[MAX_ROWS], best[MAX_ROWS], gain[MAX_ROWS];
  int n = 0;
  for (int i = 0; i < all->count; i++) {
    const Row *r = &all->rows[i];
    if (kind_of(r->program) != kind) continue;
    chosen[n] = r->chosen, best[n] = r->best, gain[n++] = r->twin / r->chosen;
  }
  if (n == 0) return;
  qsort(chosen, (size_t)n, sizeof *chosen, by_value);
  qsort(best, (size_t)n, sizeof *best, by_value);
  qsort(gain, (size_t)n, sizeof *gain, by_value);
  printf("%-8s %2d problems: x cuBLASLt's time %.3f median, %.3f worst; in the best tile shape "
         "%.3f, %.3f",
         name, n, (chosen[(n - 1) / 2] + chosen[n / 2]) / 2, chosen[n - 1],
         (best[(n - 1) / 2] + best[n / 2]) / 2, best[n - 1]);
  if (kind != PLAIN)
    printf("; twin / ours %.3f median, %.3f least", (gain[(n - 1) / 2] + gain[n / 2]) / 2, gain[0]);
  printf("\n");
}

// ---- The problems

static void bench_problem(Bench *b, const Width *w, Problem p, Rows *all) {
  if (b->only && strcmp(b->only, fused_program(p.program)->name) != 0) return;
  GemmProblem products[2] = {p.product, p.product};
  products[0].alignment = products[1].alignment = 16;
  products[1].add = true;
  const bool added = p.program == PROGRAM_RESIDUAL || p.program == PROGRAM_NORM_DGRAD_RESIDUAL;
  Error err;
  if (gemm_prepare(&b->gemm, products, added ? 2 : 1, &err)) {
    fprintf(stderr, "%s\n", err.text);
    exit(EXIT_FAILURE);
  }
  Times t;
  problem_open(b, w, &p);
  time_problem(b, &p, w->rounds, &t);
  problem_close(&p);
  print_row(&p, &t, all);
}

static void bench_width(Bench *b, const Width *w, Rows *all) {
  const int64_t M = tokens, D = w->D, F = w->F, Hd = w->H * w->d, R = (w->H + 2 * w->KV) * w->d,
                V = w->V;
  const Problem problems[] = {
      {.program = PROGRAM_PLAIN_NT, .name = "qkv", .product = {.M = M, .N = R, .K = D}},
      {.program = PROGRAM_PLAIN_NT, .name = "out", .product = {.M = M, .N = D, .K = Hd}},
      {.program = PROGRAM_PLAIN_NT, .name = "gate_up", .product = {.M = M, .N = 2 * F, .K = D}},
      {.program = PROGRAM_PLAIN_NT, .name = "down", .product = {.M = M, .N = D, .K = F}},
      {.program = PROGRAM_PLAIN_NN, .name = "out dgrad", .product = {.M = M, .N = Hd, .K = D}},
      {.program = PROGRAM_PLAIN_NN,
       .name = "gate_up dgrad",
       .product = {.M = M, .N = D, .K = 2 * F}},
      {.program = PROGRAM_PLAIN_TN, .name = "down wgrad", .product = {.M = D, .N = F, .K = M}},
      {.program = PROGRAM_PLAIN_TN, .name = "qkv wgrad", .product = {.M = R, .N = D, .K = M}},
      {.program = PROGRAM_ROPE, .name = "qkv", .product = {.M = M, .N = R, .K = D}, .D = D},
      {.program = PROGRAM_RESIDUAL, .name = "out", .product = {.M = M, .N = D, .K = Hd}},
      {.program = PROGRAM_SWIGLU,
       .name = "gate_up",
       .product = {.M = M, .N = 2 * F, .K = D},
       .D = D},
      {.program = PROGRAM_RESIDUAL, .name = "down", .product = {.M = M, .N = D, .K = F}},
      {.program = PROGRAM_LOGITS,
       .name = "lm_head",
       .product = {.M = head_tokens, .N = V, .K = D},
       .D = D},
      {.program = PROGRAM_NORM_DGRAD,
       .name = "lm_head dgrad",
       .product = {.M = head_tokens, .N = D, .K = V},
       .D = D},
      {.program = PROGRAM_SWIGLU_BACKWARD,
       .name = "down dgrad",
       .product = {.M = M, .N = F, .K = D},
       .D = D},
      {.program = PROGRAM_SWIGLU_BACKWARD_Y,
       .name = "down dgrad",
       .product = {.M = M, .N = F, .K = D},
       .D = D},
      {.program = PROGRAM_NORM_DGRAD_RESIDUAL,
       .name = "gate_up dgrad",
       .product = {.M = M, .N = D, .K = 2 * F},
       .D = D},
      {.program = PROGRAM_NORM_DGRAD_RESIDUAL,
       .name = "qkv dgrad",
       .product = {.M = M, .N = D, .K = R},
       .D = D},
  };
  print_head(w->name, D, F);
  for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
    Problem p = problems[i];
    p.product.form = fused_program(p.program)->form;
    bench_problem(b, w, p, all);
  }
}

// ---- main

// Whether `text` names a width (or all), or else a program.
static bool is_width(const char *text) {
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
    if (strcmp(text, widths[i].name) == 0) return true;
  return strcmp(text, "all") == 0;
}
static bool is_program(const char *text) {
  for (int name = 0; name < PROGRAMS; name++)
    if (strcmp(text, fused_program((ProgramName)name)->name) == 0) return true;
  return false;
}

int main(int argc, char **argv) {
  Bench b = {0};
  const char *which = "all";
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--sustain") == 0)
      b.sustain = true;
    else if (is_width(argv[i]))
      which = argv[i];
    else if (is_program(argv[i]))
      b.only = argv[i];
    else
      end_with("usage: bench_fused [110m|350m|1b|8b|70b|all] [PROGRAM] [--sustain]");
  }
  Error err;
  if (gpu_open(&b.gpu, &err) || fused_kernels_open(&b.kernels, &b.gpu, &err)) end_with(err.text);
  gemm_open(&b.gemm, &b.gpu, "");
  CUDA_CHECK(cudaEventCreate(&b.start));
  CUDA_CHECK(cudaEventCreate(&b.stop));
  CUDA_CHECK(cudaMalloc((void **)&b.flush, FLUSH_BYTES));
  b.normal = normal_pattern(1);
  b.weights = normal_pattern(0.02);

  printf("%s, cuBLASLt %zu, driver for CUDA %d.%d\n", b.gpu.name, b.gpu.cublaslt,
         b.gpu.driver / 1000, b.gpu.driver % 1000 / 10);
  printf("Random normal data. Every variant of a problem once a round, in a new random order each "
         "round, after a write of %d MB that empties the second-level cache; CUDA events; medians "
         "of %d rounds (%d at 70b) after %d.\n"
         "cuBLASLt: the fastest of its heuristics' algorithms, bf16 out, nothing around it. twin: "
         "its product and the unfused kernels. For logits: the product and a pass over it for the "
         "loss.\n",
         FLUSH_BYTES >> 20, MAX_ROUNDS, widths[sizeof widths / sizeof *widths - 1].rounds, WARM_UP);
  Rows all = {.count = 0};
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
    if (strcmp(which, "all") == 0 || strcmp(which, widths[i].name) == 0)
      bench_width(&b, &widths[i], &all);
  printf("\n");
  print_summary(&all, "plain", PLAIN);
  print_summary(&all, "forward", FORWARD);
  print_summary(&all, "backward", BACKWARD);
  free(b.normal), free(b.weights);
  CUDA_CHECK(cudaFree(b.flush));
  CUDA_CHECK(cudaEventDestroy(b.start));
  CUDA_CHECK(cudaEventDestroy(b.stop));
  gemm_close(&b.gemm);
  gpu_close(&b.gpu);
  return 0;
}
