// A whole transformer layer, forward and backward, fused against unfused, against what
// torch.compile takes for it, and against its floor: its bare products and attention.
// Usage: bench_layer [1b|8b|70b|all]
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/cuda/check.h"
#include "kernels/fused/backend_fused.h"
#include "kernels/unfused/state.h"
#include "tests/gpu/random_fill.h"

enum {
  BATCH = 4,
  SEQ = 4096,
  TOKENS = BATCH * SEQ,
  VOCABULARY = 1024, // the output layer is not timed, and is to take no memory
  LOSS_TOKENS = 128,
  WARM_UP = 3,
  MAX_ROUNDS = 20,
  FLUSH_BYTES = 160 << 20, // the second-level cache has 60 MB at most
  PATTERN = (1 << 22) - 3, // a prime: in a matrix filled with copies of it no two rows are alike
  MAX_MEMORY = 32
};

typedef enum Pass { FORWARD, BACKWARD, BOTH, PASSES } Pass;
static const char *const pass_names[PASSES] = {"forward", "backward", "both"};

typedef struct Width {
  const char *name;
  int64_t D, F, H, KV, d;
  int rounds;
  double torch[PASSES]; // ms: PyTorch 2.11 torch.compile, measured on one H200
} Width;

static const Width widths[] = {
    {"1b", 2048, 8192, 32, 8, 64, MAX_ROUNDS, {3.95, 8.72, 12.65}},
    {"8b", 4096, 14336, 32, 8, 128, MAX_ROUNDS, {12.3, 25.5, 38.5}},
    {"70b", 8192, 28672, 64, 8, 128, 10, {44.4, 92.9, 137.6}},
};

// What the two results of a layer may differ by, relative, in L2. bf16 rounds by up to 2e-3.
static const double most_difference = 2e-2;

typedef enum Which { UNFUSED, FUSED, BACKENDS } Which;

// Everything that is timed, numbered through: every pass of every backend, then the floor's parts.
enum {
  FORWARD_PRODUCTS = 4,
  PRODUCTS = 12,
  FIRST_PRODUCT = (int)BACKENDS * (int)PASSES,
  PART_ATTENTION = FIRST_PRODUCT + PRODUCTS,
  PART_ATTENTION_BACKWARD,
  VARIANTS
};

typedef struct Product {
  const char *name;
  GemmProblem problem;
  const act_t *A, *B;
} Product;

// A layer as in model/acts.h and model/params.h. The backends share it: only z means something else
// to each, so a backward pass comes after a forward pass of the same backend.
typedef struct Layer {
  act_t *x, *qkv, *o, *x1, *z, *y, *x2;
  act_t *dx, *dx_start /* what a backward pass finds in dx */, *da, *dqkv;
  stat_t *x_sumsq, *x1_sumsq, *x2_sumsq, *lse, *s;
  act_t *W_qkv, *W_out, *W_gate_up, *W_down;
  grad_t *dW_qkv, *dW_out, *dW_gate_up, *dW_down;
  act_t *product; // of the floor's products
} Layer;

typedef struct Bench {
  const Width *width;
  Backend *backends[BACKENDS]; // FUSED may be NULL
  Layer layer;
  Product products[PRODUCTS];
  void *memory[MAX_MEMORY];
  int allocations;
  void *flush;
  cudaEvent_t start, stop;
} Bench;

// What an operation list is issued with.
typedef struct Issue {
  Backend *be;
  const Width *width;
  const Layer *layer;
} Issue;

typedef struct Time {
  double median, tenth, ninetieth; // ms
} Time;

static void end_with(const char *why) {
  fprintf(stderr, "bench_layer: %s\n", why);
  exit(EXIT_FAILURE);
}

static int64_t heads_width(const Width *w) {
  return w->H * w->d;
}
static int64_t qkv_width(const Width *w) {
  return (w->H + 2 * w->KV) * w->d;
}
static int64_t max64(int64_t a, int64_t b) {
  return a > b ? a : b;
}

// ---- Memory

static void *take(Bench *b, int64_t count, size_t element_bytes) {
  if (b->allocations == MAX_MEMORY) end_with("MAX_MEMORY is too small");
  Backend *be = b->backends[UNFUSED];
  void *memory = be->alloc(be, (size_t)count * element_bytes);
  if (!memory) end_with("the GPU has not enough memory for this width");
  b->memory[b->allocations++] = memory;
  return memory;
}
static act_t *take_act(Bench *b, int64_t rows, int64_t cols) {
  return take(b, rows * cols, sizeof(bf16_bits));
}
static stat_t *take_stat(Bench *b, int64_t count) {
  return take(b, count, sizeof(float));
}

// Random normal values, other ones for every matrix (else rows of activations would be rows of
// weights): the clock that a GPU holds depends on the data.
static act_t *take_random(Bench *b, int64_t rows, int64_t cols, double deviation) {
  const size_t bytes = (size_t)(rows * cols) * sizeof(bf16_bits);
  char *memory = take_act(b, rows, cols);
  bf16_bits *pattern = xmalloc(PATTERN * sizeof *pattern);
  const uint64_t key = (uint64_t)b->allocations;
#pragma omp parallel for
  for (int64_t i = 0; i < PATTERN; i++) {
    const float value = (float)(deviation * rng_normal(key, (uint64_t)i));
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    pattern[i] = (bf16_bits)(bits >> 16);
  }
  fill_with_copies(memory, bytes, pattern, PATTERN * sizeof *pattern);
  free(pattern);
  return memory;
}

// Weights as they start, for products of variance 1.
static act_t *take_weight(Bench *b, int64_t rows, int64_t cols) {
  return take_random(b, rows, cols, 1 / sqrt((double)cols));
}

static void open_layer(Bench *b) {
  const Width *w = b->width;
  const int64_t M = TOKENS, D = w->D, F = w->F, Hd = heads_width(w), R = qkv_width(w);
  int64_t parts_sumsq = 0, parts_s = 0; // as many as either backend leaves
  for (int i = 0; i < BACKENDS; i++) {
    const Backend *be = b->backends[i];
    if (!be) continue;
    parts_sumsq = max64(parts_sumsq, be->parts.sumsq);
    parts_s = max64(parts_s, max64(be->parts.gate_up, be->parts.qkv));
  }
  b->layer = (Layer){
      .x = take_random(b, M, D, 1),
      .qkv = take_act(b, M, R),
      .o = take_act(b, M, Hd),
      .x1 = take_act(b, M, D),
      .z = take_act(b, M, 2 * F),
      .y = take_act(b, M, F),
      .x2 = take_act(b, M, D),
      .dx = take_act(b, M, D),
      .dx_start = take_random(b, M, D, 1),
      .da = take_act(b, M, Hd),
      .dqkv = take_act(b, M, R),
      .x_sumsq = take_stat(b, parts_sumsq * M),
      .x1_sumsq = take_stat(b, parts_sumsq * M),
      .x2_sumsq = take_stat(b, parts_sumsq * M),
      .lse = take_stat(b, w->H * M),
      .s = take_stat(b, parts_s * M),
      .W_qkv = take_weight(b, R, D),
      .W_out = take_weight(b, D, Hd),
      .W_gate_up = take_weight(b, 2 * F, D),
      .W_down = take_weight(b, D, F),
      .dW_qkv = take_act(b, R, D),
      .dW_out = take_act(b, D, Hd),
      .dW_gate_up = take_act(b, 2 * F, D),
      .dW_down = take_act(b, D, F),
      .product = take_act(b, 2 * F, max64(M, D)),
  };
  const Layer *l = &b->layer;
  // Whole sums in the first part and 0 in the others are right for any number of parts.
  CUDA_CHECK(cudaMemset(l->x_sumsq, 0, (size_t)(parts_sumsq * M) * sizeof(float)));
  CUDA_CHECK(cudaDeviceSynchronize()); // the backends' streams do not wait for the default one
  unfused_row_sumsq(M, D, l->x, l->x_sumsq, unfused_of(b->backends[UNFUSED])->gpu.stream);
  CUDA_CHECK(cudaDeviceSynchronize());
}

// ---- The layer: model/forward.c, and layer_backward of model/backward.c

static void issue_forward(void *context) {
  const Issue *issue = context;
  Backend *be = issue->be;
  const Width *w = issue->width;
  const Layer *l = issue->layer;
  be->qkv(be, TOKENS, SEQ, 0, l->x, l->x_sumsq, l->W_qkv, l->qkv);
  be->attention(be, BATCH, SEQ, l->qkv, l->o, l->lse);
  be->residual(be, TOKENS, heads_width(w), l->o, l->W_out, l->x, l->x1, l->x1_sumsq);
  be->gate_up(be, TOKENS, l->x1, l->x1_sumsq, l->W_gate_up, l->z, l->y);
  be->residual(be, TOKENS, w->F, l->y, l->W_down, l->x1, l->x2, l->x2_sumsq);
}

static void issue_backward(void *context) {
  const Issue *issue = context;
  Backend *be = issue->be;
  const Width *w = issue->width;
  const Layer *l = issue->layer;
  const int64_t M = TOKENS, D = w->D, F = w->F, Hd = heads_width(w), R = qkv_width(w);
  act_t *dx = l->dx, *dz = l->z;

  be->wgrad(be, M, D, F, dx, l->y, l->dW_down, false);
  be->down_dgrad(be, M, dx, l->W_down, l->z, l->x1_sumsq, dz, l->s, NULL);
  be->wgrad(be, M, 2 * F, D, dz, l->x1, l->dW_gate_up, false);
  be->norm_dgrad(be, M, 2 * F, dz, l->W_gate_up, l->x1, l->x1_sumsq, l->s, be->parts.gate_up, dx,
                 dx);

  be->wgrad(be, M, D, Hd, dx, l->o, l->dW_out, false);
  be->dgrad(be, M, Hd, dx, l->W_out, l->da);
  be->attention_backward(be, BATCH, SEQ, l->qkv, l->o, l->lse, l->da, l->dqkv);
  be->rope_backward(be, M, SEQ, l->dqkv, l->qkv, l->x_sumsq, l->s);
  be->wgrad(be, M, R, D, l->dqkv, l->x, l->dW_qkv, false);
  be->norm_dgrad(be, M, R, l->dqkv, l->W_qkv, l->x, l->x_sumsq, l->s, be->parts.qkv, dx, dx);
}

// As a step has them: recorded at the second call and replayed from then on, so that the host's
// work is not in the times.
static void run_pass(Bench *b, Backend *be, Pass pass) {
  Issue issue = {be, b->width, &b->layer};
  if (pass != BACKWARD) be->replay(be, REPLAY_FIRST_MICRO_BATCH, issue_forward, &issue);
  if (pass != FORWARD) be->replay(be, REPLAY_NEXT_MICRO_BATCH, issue_backward, &issue);
}

// What a pass must find: the backward pass works in place on z, left by the forward, and on dx.
static void prepare_pass(Bench *b, Backend *be, Pass pass) {
  const Layer *l = &b->layer;
  if (pass == FORWARD) return;
  if (pass == BACKWARD) run_pass(b, be, FORWARD);
  CUDA_CHECK(cudaMemcpyAsync(l->dx, l->dx_start, (size_t)(TOKENS * b->width->D) * sizeof(bf16_bits),
                             cudaMemcpyDeviceToDevice, unfused_of(be)->gpu.stream));
}

// ---- The floor

static void open_floor(Bench *b) {
  const Width *w = b->width;
  const Layer *l = &b->layer;
  const int64_t M = TOKENS, D = w->D, F = w->F, Hd = heads_width(w), R = qkv_width(w);
  const Product products[PRODUCTS] = {
      {"qkv", {.M = M, .N = R, .K = D, .form = GEMM_NT}, l->x, l->W_qkv},
      {"out", {.M = M, .N = D, .K = Hd, .form = GEMM_NT}, l->o, l->W_out},
      {"gate_up", {.M = M, .N = 2 * F, .K = D, .form = GEMM_NT}, l->x1, l->W_gate_up},
      {"down", {.M = M, .N = D, .K = F, .form = GEMM_NT}, l->y, l->W_down},
      {"down wgrad", {.M = D, .N = F, .K = M, .form = GEMM_TN}, l->dx, l->y},
      {"down dgrad", {.M = M, .N = F, .K = D, .form = GEMM_NN}, l->dx, l->W_down},
      {"gate_up wgrad", {.M = 2 * F, .N = D, .K = M, .form = GEMM_TN}, l->z, l->x1},
      {"gate_up dgrad", {.M = M, .N = D, .K = 2 * F, .form = GEMM_NN}, l->z, l->W_gate_up},
      {"out wgrad", {.M = D, .N = Hd, .K = M, .form = GEMM_TN}, l->dx, l->o},
      {"out dgrad", {.M = M, .N = Hd, .K = D, .form = GEMM_NN}, l->dx, l->W_out},
      {"qkv wgrad", {.M = R, .N = D, .K = M, .form = GEMM_TN}, l->dqkv, l->x},
      {"qkv dgrad", {.M = M, .N = D, .K = R, .form = GEMM_NN}, l->dqkv, l->W_qkv},
  };
  memcpy(b->products, products, sizeof products);
  for (int i = 0; i < PRODUCTS; i++) {
    b->products[i].problem.alignment = 16;
    Error err;
    if (gemm_prepare(&unfused_of(b->backends[UNFUSED])->gemm, &b->products[i].problem, 1, &err))
      end_with(err.text);
  }
}

// Of the floor; it is timed on the unfused backend, whose attention is the fused one's, too.
static void run_part(Bench *b, int variant) {
  Backend *be = b->backends[UNFUSED];
  const Layer *l = &b->layer;
  if (variant == PART_ATTENTION) {
    be->attention(be, BATCH, SEQ, l->qkv, l->o, l->lse);
  } else if (variant == PART_ATTENTION_BACKWARD) {
    be->attention_backward(be, BATCH, SEQ, l->qkv, l->o, l->lse, l->da, l->dqkv);
  } else {
    const Product *p = &b->products[variant - FIRST_PRODUCT];
    gemm_run(&unfused_of(be)->gemm, p->problem, p->A, p->B, NULL, l->product);
  }
}

// ---- Both backends compute the same

// Relative L2 difference of what the backends leave in `of`. Their runs are recorded by then, so
// that it is the recordings that are checked.
static double difference(Bench *b, Pass pass, const act_t *of) {
  const int64_t count = TOKENS * b->width->D;
  float *results[BACKENDS];
  for (int i = 0; i < BACKENDS; i++) {
    Backend *be = b->backends[i];
    results[i] = xmalloc((size_t)count * sizeof(float));
    prepare_pass(b, be, pass);
    run_pass(b, be, pass);
    be->read_act(be, results[i], of, count);
  }
  double error = 0, size = 0;
#pragma omp parallel for reduction(+ : error, size)
  for (int64_t i = 0; i < count; i++) {
    const double expected = (double)results[UNFUSED][i],
                 apart = (double)results[FUSED][i] - expected;
    error += apart * apart;
    size += expected * expected;
  }
  free(results[UNFUSED]), free(results[FUSED]);
  return sqrt(error / size);
}

static void check_results(Bench *b) {
  const double x = difference(b, FORWARD, b->layer.x2), dx = difference(b, BACKWARD, b->layer.dx);
  printf(
      "fused and unfused differ by %.1e of the layer's output, by %.1e of its input's gradient\n",
      x, dx);
  fflush(stdout);
  if (!(x <= most_difference && dx <= most_difference)) // nor may they be NaN
    end_with("that is too much: at least one of them computes something else");
}

// ---- Timing

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double time_once(Bench *b, int variant) {
  const bool part = variant >= FIRST_PRODUCT;
  Backend *be = b->backends[part ? UNFUSED : variant / PASSES];
  const Pass pass = (Pass)(variant % PASSES);
  const cudaStream_t stream = unfused_of(be)->gpu.stream;
  if (!part) prepare_pass(b, be, pass);
  // Also long enough for the host to have launched what is timed before its turn comes.
  CUDA_CHECK(cudaMemsetAsync(b->flush, variant, FLUSH_BYTES, stream));
  CUDA_CHECK(cudaEventRecord(b->start, stream));
  if (part)
    run_part(b, variant);
  else
    run_pass(b, be, pass);
  CUDA_CHECK(cudaEventRecord(b->stop, stream));
  CUDA_CHECK(cudaEventSynchronize(b->stop));
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, b->start, b->stop));
  return (double)ms;
}

// Without the fused backend there is nothing to hold against a floor, either.
static bool is_timed(const Bench *b, int variant) {
  return b->backends[FUSED] || variant / PASSES == UNFUSED;
}

static void time_variants(Bench *b, Time times[VARIANTS]) {
  double samples[VARIANTS][MAX_ROUNDS];
  int order[VARIANTS], count = 0;
  const int rounds = b->width->rounds;
  for (int v = 0; v < VARIANTS; v++)
    if (is_timed(b, v)) order[count++] = v;
  for (int round = -WARM_UP; round < rounds; round++) {
    for (int i = count - 1; i > 0; i--) {
      const int j =
          (int)(rng_u64(13, (uint64_t)((round + WARM_UP) * VARIANTS + i)) % (uint64_t)(i + 1));
      const int swap = order[i];
      order[i] = order[j], order[j] = swap;
    }
    for (int i = 0; i < count; i++) {
      const double ms = time_once(b, order[i]);
      if (round >= 0) samples[order[i]][round] = ms;
    }
  }
  for (int i = 0; i < count; i++) {
    const int v = order[i];
    qsort(samples[v], (size_t)rounds, sizeof samples[v][0], by_value);
    times[v] = (Time){.median = (samples[v][(rounds - 1) / 2] + samples[v][rounds / 2]) / 2,
                      .tenth = samples[v][rounds / 10],
                      .ninetieth = samples[v][rounds - 1 - rounds / 10]};
  }
}

// ---- The table

static double floor_of(const Time times[VARIANTS], Pass pass) {
  double sum = 0;
  if (pass != BACKWARD) {
    sum += times[PART_ATTENTION].median;
    for (int i = 0; i < FORWARD_PRODUCTS; i++) sum += times[FIRST_PRODUCT + i].median;
  }
  if (pass != FORWARD) {
    sum += times[PART_ATTENTION_BACKWARD].median;
    for (int i = FORWARD_PRODUCTS; i < PRODUCTS; i++) sum += times[FIRST_PRODUCT + i].median;
  }
  return sum;
}

static void print_floor(const Bench *b, const Time times[VARIANTS]) {
  printf("floor:");
  for (int i = 0; i < FORWARD_PRODUCTS; i++)
    printf(" %s %.3f,", b->products[i].name, times[FIRST_PRODUCT + i].median);
  printf(" attention %.3f;", times[PART_ATTENTION].median);
  for (int i = FORWARD_PRODUCTS; i < PRODUCTS; i++)
    printf(" %s %.3f,", b->products[i].name, times[FIRST_PRODUCT + i].median);
  printf(" attention backward %.3f\n", times[PART_ATTENTION_BACKWARD].median);
}

static void print_time(Time time) {
  char range[32];
  snprintf(range, sizeof range, "(%.3f-%.3f)", time.tenth, time.ninetieth);
  printf(" %9.3f %-19s", time.median, range);
}

static void print_table(const Bench *b, const Time times[VARIANTS]) {
  const bool both = b->backends[FUSED];
  printf("%-9s %9s %-19s", "", "unfused", "(10-90%)");
  if (both)
    printf(" %9s %-19s %13s %9s %11s %9s %11s", "fused", "(10-90%)", "unfused/fused", "torch",
           "torch/fused", "floor", "fused/floor");
  printf("\n");
  for (int pass = 0; pass < PASSES; pass++) {
    const Time unfused = times[UNFUSED * PASSES + pass], fused = times[FUSED * PASSES + pass];
    const double torch = b->width->torch[pass];
    printf("%-9s", pass_names[pass]);
    print_time(unfused);
    if (both) {
      const double least = floor_of(times, (Pass)pass);
      print_time(fused);
      printf(" %13.3f %9.2f %11.3f %9.3f %11.3f", unfused.median / fused.median, torch,
             torch / fused.median, least, fused.median / least);
    }
    printf("\n");
  }
  if (both) print_floor(b, times);
  fflush(stdout);
}

// ---- A width

static void open_backends(Bench *b) {
  enum { MOST_PAIRS = 64 };
  const Width *w = b->width;
  double inv_freq[MOST_PAIRS];
  if (w->d / 2 > MOST_PAIRS) end_with("MOST_PAIRS is too small");
  for (int64_t j = 0; j < w->d / 2; j++) inv_freq[j] = pow(500000, -2 * (double)j / (double)w->d);
  const OpsConfig config = {.D = w->D,
                            .F = w->F,
                            .H = w->H,
                            .KV = w->KV,
                            .d = w->d,
                            .V = VOCABULARY,
                            .max_tokens = TOKENS,
                            .max_positions = SEQ,
                            .rms_norm_eps = 1e-5,
                            .inv_freq = inv_freq};
  const UnfusedOptions options = {
      .train = true, .graphs = true, .batch = BATCH, .seq = SEQ, .loss_tokens = LOSS_TOKENS};
  Error err;
  if (!(b->backends[UNFUSED] = backend_unfused_create(&config, &options, &err))) end_with(err.text);
  const bool supported = backend_fused_supported(&config, &err) == 0;
  if (supported && !(b->backends[FUSED] = backend_fused_create(&config, &options, &err)))
    end_with(err.text);
  printf("\n%s: D %lld, F %lld, %lld query and %lld key/value heads of %lld. %s\n", w->name,
         (long long)w->D, (long long)w->F, (long long)w->H, (long long)w->KV, (long long)w->d,
         b->backends[supported ? FUSED : UNFUSED]->description);
  if (!supported) printf("Unfused only: %s.\n", err.text);
}

static void bench_width(const Width *w) {
  Bench b = {.width = w};
  Time times[VARIANTS] = {0};
  open_backends(&b);
  open_layer(&b);
  CUDA_CHECK(cudaMalloc(&b.flush, FLUSH_BYTES));
  CUDA_CHECK(cudaEventCreate(&b.start));
  CUDA_CHECK(cudaEventCreate(&b.stop));
  enum { CALLS_UNTIL_RECORDED = 2 };
  for (int i = 0; i < BACKENDS * CALLS_UNTIL_RECORDED; i++) {
    Backend *be = b.backends[i % BACKENDS];
    if (!be) continue;
    prepare_pass(&b, be, BOTH);
    run_pass(&b, be, BOTH);
    CUDA_CHECK(cudaDeviceSynchronize()); // the backends share the buffers, but no stream
  }
  if (b.backends[FUSED]) {
    check_results(&b);
    open_floor(&b);
  }
  time_variants(&b, times);
  print_table(&b, times);

  CUDA_CHECK(cudaEventDestroy(b.start));
  CUDA_CHECK(cudaEventDestroy(b.stop));
  CUDA_CHECK(cudaFree(b.flush));
  for (int i = 0; i < b.allocations; i++)
    b.backends[UNFUSED]->release(b.backends[UNFUSED], b.memory[i]);
  for (int i = 0; i < BACKENDS; i++)
    if (b.backends[i]) b.backends[i]->destroy(b.backends[i]);
}

int main(int argc, char **argv) {
  const char *which = argc > 1 ? argv[1] : "all";
  bool known = strcmp(which, "all") == 0;
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
    known = known || strcmp(which, widths[i].name) == 0;
  if (!known || argc > 2) end_with("usage: bench_layer [1b|8b|70b|all]");
  printf("A layer of %d tokens in sequences of %d, random normal data, bf16 gradients, y kept. "
         "Everything once a round, in a new random order each round, each after a write of %d MB "
         "that empties the second-level cache; CUDA events around recorded graphs; ms, medians of "
         "%d rounds (%d at 70b) after %d.\n"
         "torch: PyTorch 2.11 torch.compile, measured on one H200, not here. floor: the sum of the "
         "bare cuBLASLt products and of attention, each timed alone.\n",
         TOKENS, SEQ, FLUSH_BYTES >> 20, MAX_ROUNDS, widths[2].rounds, WARM_UP);
  for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
    if (strcmp(which, "all") == 0 || strcmp(which, widths[i].name) == 0) bench_width(&widths[i]);
  return 0;
}
