// The programs against cuBLASLt's best product of the same shape, which does nothing around it, and
// against their unfused twins: the product and the kernels that the unfused backend runs after it.
// Usage: bench_fused [110m|350m|1b|8b|70b|all] [PROGRAM] [--sustain]
//        bench_fused PROGRAM MxNxK [--sustain]      any program in any shape
//   --sustain  also three blocks of half a second of each variant, alternately: the ranking under
//              the power limit
#include "tests/bench/fused_problem.h"

enum { WARM_UP = 2, MAX_ROUNDS = 20, FLUSH_BYTES = 160 << 20, MAX_ROWS = 128 };
enum { TURNS = 3, TURN_MS = 500 }; // sustained

static const Width widths[] = {
    {"110m", 768, 2048, 12, 12, 64, 32000, MAX_ROUNDS},
    {"350m", 1024, 2816, 16, 16, 64, 32000, MAX_ROUNDS},
    {"1b", 2048, 8192, 32, 8, 64, 128256, MAX_ROUNDS},
    {"8b", 4096, 14336, 32, 8, 128, 128256, MAX_ROUNDS},
    {"70b", 8192, 28672, 64, 8, 128, 128256, 12},
};
enum { WIDTHS = sizeof widths / sizeof *widths };
static const int64_t tokens = 16384, head_tokens = 8192;

// How a problem is computed: by cuBLASLt alone, by the twin, or by the program in a tile shape.
typedef enum Variant { BARE, TWIN, PROGRAM_TILES, VARIANTS = PROGRAM_TILES + TILE_SHAPES } Variant;

typedef struct Times {
  double median[VARIANTS], tenth[VARIANTS], ninetieth[VARIANTS]; // ms; 0 = there is none
  double sustained[VARIANTS];
} Times;

// ---- Timing

typedef struct VariantOf {
  const Problem *p;
  int variant;
} VariantOf;

static void run_variant(void *context) {
  const VariantOf *v = context;
  const Problem *p = v->p;
  if (v->variant == BARE) {
    run_product(p, false, NULL, p->out);
  } else if (v->variant == TWIN) {
    p->subject->twin(p);
  } else {
    const TileShape tile = (TileShape)(v->variant - PROGRAM_TILES);
    ProgramCall call = p->call;
    for (int i = 0; i < 2; i++) call.args.out[i].parts = tile_parts(tile, call.N);
    fused_launch(&p->open, tile, &call, p->bench->gpu.stream);
  }
}

static void time_problem(const Problem *p, Times *t) {
  const GpuTimer *timer = &p->bench->timer;
  const int rounds = p->width->rounds;
  double samples[VARIANTS][MAX_ROUNDS];
  VariantOf order[VARIANTS];
  int count = 0;
  for (int v = 0; v < VARIANTS; v++)
    if (v == BARE ||
        (v == TWIN ? p->subject->twin != NULL : fused_runs_in(&p->open, v - PROGRAM_TILES)))
      order[count++] = (VariantOf){p, v};
  for (int round = -WARM_UP; round < rounds; round++) {
    for (int i = count - 1; i > 0; i--) {
      const int j =
          (int)(rng_u64(13, (uint64_t)((round + WARM_UP) * VARIANTS + i)) % (uint64_t)(i + 1));
      const VariantOf swap = order[i];
      order[i] = order[j], order[j] = swap;
    }
    for (int i = 0; i < count; i++) {
      const double ms = gpu_timer_ms(timer, 1, run_variant, &order[i]);
      if (round >= 0) samples[order[i].variant][round] = ms;
    }
  }
  *t = (Times){0};
  for (int i = 0; i < count; i++) {
    const int v = order[i].variant;
    sort_samples(samples[v], rounds);
    t->median[v] = median_of(samples[v], rounds);
    t->tenth[v] = samples[v][rounds / 10];
    t->ninetieth[v] = samples[v][rounds - 1 - rounds / 10];
  }
  for (int turn = 0; turn < TURNS && p->bench->sustain; turn++)
    for (int i = 0; i < count; i++) {
      const int v = order[i].variant;
      t->sustained[v] +=
          gpu_timer_ms(timer, (int)(TURN_MS / t->median[v]) + 1, run_variant, &order[i]) / TURNS;
    }
}

// ---- The table

// Of a row, in units of cuBLASLt's time.
typedef struct TableRow {
  Kind kind;
  double chosen, best; // the program in the chosen tile shape; in its best
  double twin;         // 0 = none
} TableRow;

typedef struct Table {
  TableRow rows[MAX_ROWS];
  int count;
} Table;

static void print_head(const Width *w) {
  printf("\n%s: D %lld, F %lld. ms (x cuBLASLt's); * = the chosen tile shape\n", w->name,
         (long long)w->D, (long long)w->F);
  printf("%-19s %-13s %-18s %9s %7s  %-15s %-15s %-15s %-15s %-15s %6s %9s %6s\n", "program", "",
         "M x N x K", "cuBLASLt", "TFLOP/s", "128x256", "128x192", "128x128", "128x64", "mma.sync",
         "10-90%", "twin", "/ ours");
}

// A line of times; `spread` is what stands between the tile shapes and the twin.
static void print_times(const char *const names[3], const GemmProblem *q, const double *ms,
                        int chosen, const char *spread) {
  const double flops = 2 * (double)q->M * (double)q->N * (double)q->K;
  printf("%-19s %-13s %-18s %9.4f %7.1f ", names[0], names[1], names[2], ms[BARE],
         flops / ms[BARE] * 1e-9);
  for (int v = PROGRAM_TILES; v < VARIANTS; v++)
    if (ms[v] > 0)
      printf(" %8.4f %5.3f%c", ms[v], ms[v] / ms[BARE], v == chosen ? '*' : ' ');
    else
      printf(" %8s %5s ", "-", "");
  printf(" %6s", spread);
  if (ms[TWIN] > 0) printf(" %9.4f %6.3f", ms[TWIN], ms[TWIN] / ms[chosen]);
  printf("\n");
}

// The tile shape that train takes; for other programs, and where that does not run, fused_tile's.
static int chosen_variant(const Problem *p) {
  const GemmProblem *q = &p->product;
  const TileShape tile = tile_choose(MAINLOOP_AUTO, p->subject->name, q->M, q->N, q->K);
  const bool named = p->subject->name != PROGRAMS && fused_runs_in(&p->open, tile);
  return PROGRAM_TILES + (int)(named ? tile : fused_tile(&p->open, q->M, q->N, q->K));
}

static void print_row(const Problem *p, const Times *t, Table *all) {
  const GemmProblem *q = &p->product;
  const int chosen = chosen_variant(p);
  if (t->median[chosen] <= 0) end_with("bench_fused: this GPU runs the program in no tile shape");
  char shape[64], spread[16];
  snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)q->M, (long long)q->N,
           (long long)q->K);
  snprintf(spread, sizeof spread, "%.1f%%",
           100 * (t->ninetieth[chosen] - t->tenth[chosen]) / t->median[chosen]);
  print_times((const char *[]){p->subject->program->name, p->name, shape}, q, t->median, chosen,
              spread);
  if (t->sustained[BARE] > 0)
    print_times((const char *[]){"", "sustained", ""}, q, t->sustained, chosen, "");
  fflush(stdout);
  double best = t->median[chosen];
  for (int v = PROGRAM_TILES; v < VARIANTS; v++)
    if (t->median[v] > 0 && t->median[v] < best) best = t->median[v];
  if (all->count == MAX_ROWS) end_with("MAX_ROWS is too small");
  all->rows[all->count++] = (TableRow){.kind = p->subject->kind,
                                       .chosen = t->median[chosen] / t->median[BARE],
                                       .best = best / t->median[BARE],
                                       .twin = t->median[TWIN] / t->median[BARE]};
}

static void print_summary(const Table *all, const char *name, Kind kind) {
  double chosen[MAX_ROWS], best[MAX_ROWS], gain[MAX_ROWS];
  int n = 0;
  for (int i = 0; i < all->count; i++) {
    const TableRow *r = &all->rows[i];
    if (r->kind != kind) continue;
    chosen[n] = r->chosen, best[n] = r->best, gain[n++] = r->twin / r->chosen;
  }
  if (n == 0) return;
  sort_samples(chosen, n), sort_samples(best, n), sort_samples(gain, n);
  printf("%-8s %2d problems: x cuBLASLt's time %.3f median, %.3f worst; in the best tile shape "
         "%.3f, %.3f",
         name, n, median_of(chosen, n), chosen[n - 1], median_of(best, n), best[n - 1]);
  if (kind == FORWARD || kind == BACKWARD)
    printf("; twin / ours %.3f median, %.3f least", median_of(gain, n), gain[0]);
  printf("\n");
}

// ---- The problems

static void bench_problem(Bench *b, const Width *w, const Program *program, const char *name,
                          Shape s, Table *all) {
  const Subject subject = subject_of(program);
  GemmProblem products[2];
  products[0] = (GemmProblem){.form = program->form,
                              .formats = program->formats,
                              .M = s.M,
                              .N = s.N,
                              .K = s.K,
                              .alignment = 16};
  products[1] = products[0];
  products[1].add = true;
  Error err;
  if (gemm_prepare(&b->gemm, products, subject.adds ? 2 : 1, &err)) end_with(err.text);
  Problem p = {.bench = b, .subject = &subject, .width = w, .name = name, .product = products[0]};
  Times t;
  problem_open(&p);
  time_problem(&p, &t);
  problem_close(&p);
  print_row(&p, &t, all);
}

// only: a program, or NULL for all
static void bench_width(Bench *b, const Width *w, const Program *only, Table *all) {
  const int64_t M = tokens, D = w->D, F = w->F, Hd = w->H * w->d, R = (w->H + 2 * w->KV) * w->d,
                V = w->V;
  const struct {
    const Program *program;
    const char *name;
    Shape s;
  } problems[] = {
      {&fused_program_plain_nt, "qkv", {M, R, D}},
      {&fused_program_plain_nt, "out", {M, D, Hd}},
      {&fused_program_plain_nt, "gate_up", {M, 2 * F, D}},
      {&fused_program_plain_nt, "down", {M, D, F}},
      {&fused_program_plain_nn, "out dgrad", {M, Hd, D}},
      {&fused_program_plain_nn, "gate_up dgrad", {M, D, 2 * F}},
      {&fused_program_plain_tn, "down wgrad", {D, F, M}},
      {&fused_program_plain_tn, "qkv wgrad", {R, D, M}},
      {&fused_program_rope, "qkv", {M, R, D}},
      {&fused_program_residual, "out", {M, D, Hd}},
      {&fused_program_swiglu, "gate_up", {M, 2 * F, D}},
      {&fused_program_residual, "down", {M, D, F}},
      {&fused_program_probabilities, "head_loss", {head_tokens, V, D}},
      {&fused_program_norm_dgrad, "lm_head dgrad", {head_tokens, D, V}},
      {&fused_program_swiglu_backward, "down dgrad", {M, F, D}},
      {&fused_program_norm_dgrad_residual, "gate_up dgrad", {M, D, 2 * F}},
      {&fused_program_norm_dgrad_residual, "qkv dgrad", {M, D, R}},
      {&fused_program_rope_fp8, "qkv", {M, R, D}},
      {&fused_program_residual_fp8, "out", {M, D, Hd}},
      {&fused_program_swiglu_fp8, "gate_up", {M, 2 * F, D}},
      {&fused_program_residual_promoted_fp8, "down", {M, D, F}},
      {&fused_program_probabilities_fp8, "head_loss", {head_tokens, V, D}},
      {&fused_program_norm_dgrad_fp8, "lm_head dgrad", {head_tokens, D, V}},
      {&fused_program_swiglu_backward_fp8, "down dgrad", {M, F, D}},
      {&fused_program_norm_dgrad_residual_promoted_fp8, "gate_up dgrad", {M, D, 2 * F}},
      {&fused_program_norm_dgrad_residual_fp8, "qkv dgrad", {M, D, R}},
  };
  print_head(w);
  for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
    if (!only || problems[i].program == only)
      bench_problem(b, w, problems[i].program, problems[i].name, problems[i].s, all);
}

// A shape of no width: with heads of 64.
static void bench_shape(Bench *b, const Program *program, Shape s, Table *all) {
  const Width w = {"as asked", s.K, s.K, s.N / 64, 0, 64, s.N, MAX_ROUNDS};
  print_head(&w);
  bench_problem(b, &w, program, "", s, all);
}

// ---- main

// What the command line asks for.
typedef struct Request {
  const char *width;      // of `widths`, or "all"
  const Program *program; // NULL: all
  Shape shape;            // M 0: the widths'
} Request;

static bool is_width(const char *text) {
  for (size_t i = 0; i < WIDTHS; i++)
    if (strcmp(text, widths[i].name) == 0) return true;
  return strcmp(text, "all") == 0;
}

static Request read_request(int argc, char **argv, bool *sustain) {
  Request r = {.width = "all"};
  bool right = true;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--sustain") == 0)
      *sustain = true;
    else if (is_width(argv[i]))
      r.width = argv[i];
    else if (program_named(argv[i]))
      r.program = program_named(argv[i]);
    else
      right = right && shape_read(argv[i], &r.shape);
  }
  if (!right || (r.shape.M && !r.program))
    end_with("usage: bench_fused [110m|350m|1b|8b|70b|all] [PROGRAM] [--sustain]\n"
             "       bench_fused PROGRAM MxNxK [--sustain]; N and K are multiples of 8");
  return r;
}

static void print_method(const Bench *b) {
  printf("%s, cuBLASLt %zu, driver for CUDA %d.%d\n", b->gpu.name, b->gpu.cublaslt,
         b->gpu.driver / 1000, b->gpu.driver % 1000 / 10);
  printf("Random normal data. Every variant of a problem once a round, in a new random order each "
         "round, after a write of %d MB that empties the second-level cache; CUDA events; medians "
         "of %d rounds (%d at 70b) after %d.\n"
         "cuBLASLt: the fastest of its heuristics' algorithms, bf16 out, nothing around it; in FP8 "
         "with fast accumulation. twin: "
         "its product and the unfused kernels.\n",
         FLUSH_BYTES >> 20, MAX_ROUNDS, widths[WIDTHS - 1].rounds, WARM_UP);
}

int main(int argc, char **argv) {
  Bench b = {0};
  const Request request = read_request(argc, argv, &b.sustain);
  Error err;
  if (gpu_probe(&b.gpu, &err) || gpu_open(&b.gpu, &err)) end_with(err.text);
  gemm_open(&b.gemm, &b.gpu, "");
  b.timer = gpu_timer_open(b.gpu.stream, FLUSH_BYTES);
  b.normal = normal_pattern(1);
  b.weights = normal_pattern(0.02);
  for (int format = 0; format < 2; format++) b.normal_fp8[format] = fp8_pattern((Fp8Format)format);
  print_method(&b);
  Table all = {.count = 0};
  if (request.shape.M) bench_shape(&b, request.program, request.shape, &all);
  for (size_t i = 0; i < WIDTHS && !request.shape.M; i++)
    if (strcmp(request.width, "all") == 0 || strcmp(request.width, widths[i].name) == 0)
      bench_width(&b, &widths[i], request.program, &all);
  if (!all.count)
    end_with("bench_fused: the program is in no layer of these widths; name a shape, MxNxK");
  printf("\n");
  print_summary(&all, "plain", ANY);
  print_summary(&all, "forward", FORWARD);
  print_summary(&all, "backward", BACKWARD);
  print_summary(&all, "FP8", IN_FP8);
  free(b.normal), free(b.weights), free(b.normal_fp8[0]), free(b.normal_fp8[1]);
  gpu_timer_close(&b.timer);
  gemm_close(&b.gemm);
  gpu_close(&b.gpu);
  return 0;
}
