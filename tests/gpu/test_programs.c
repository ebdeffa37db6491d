// Every epilogue program in every tile shape, against the CPU from the same bf16 inputs widened to
// fp32. The bound of each error is twice the error of a twin: the CPU's result rounded to bf16
// wherever the program stores a bf16 value. Usage: test_programs [NAME [MxNxK]]: one test alone,
// which is named after its program, in its own shapes or in this one.
#include "tests/gpu/program_rig.h"

#include <unistd.h>

#include "kernels/fused/head.h"
#include "kernels/fused/rope.h"
#include "tests/gpu/fused_support.h"
#include "tests/gpu/programs/absmax.h"

static const Shape shapes[] = {
    {1, 8, 8},         // a corner of one tile
    {77, 136, 72},     // tails in all three
    {333, 200, 48},    // less of K than a stage
    {1000, 1096, 328}, // stages that are no multiple of the ring
    {2112, 1536, 512}, // the last cluster has rows for half a block
    {4104, 3080, 200}, // 17 rows of cluster tiles: two groups of 8, and one
    {8192, 2048, 256}, // several tiles a block, so that every ring wraps
};

// ---- The formulas

static void plain(const Row *row) {
  for (int64_t n = 0; n < row->N; n++) row_store(row, 0, n, (double)row->product[n]);
}

static void residual(const Row *row) {
  for (int64_t n = 0; n < row->N; n++) {
    const float out = row_store(row, 0, n, (double)(row->product[n] + row->loads[0][n]));
    row->terms[0][n] = out * out;
  }
}

static void logits(const Row *row) {
  const double r = rstd_of(row);
  for (int64_t n = 0; n < row->N; n++)
    row->terms[0][n] = row_store(row, 0, n, r * (double)row->product[n]);
}

// A row's aim and its u are made up, so that they differ from the neighbours'.
static int64_t target_of(int64_t m, int64_t N) {
  return m * 37 % N;
}
static float exponent_of(int64_t m) {
  return 73 + (float)(m % 13);
}
static float u_of(int64_t m) {
  return ldexpf(1 + (float)(m % 5) / 4, (int)(m % 7) - 3);
}

static void probabilities(const Row *row) {
  const double r = rstd_of(row);
  for (int64_t n = 0; n < row->N; n++) {
    const double log2_p = r * (double)row->product[n] / log(2) - (double)exponent_of(row->m);
    const bool is_target = n == target_of(row->m, row->N);
    row_store(row, 0, n, is_target ? 0 : exp2(log2_p));
    row->terms[0][n] = is_target ? 0 : (float)exp2(log2_p);
    row->terms[1][n] = is_target ? 0 : (float)(exp2(log2_p) * log2_p);
  }
  for (int64_t n = row->N; n % 16 != 0; n++) row_store(row, 0, n, 0);
}

static void probabilities_prepare(Rig *r) {
  const int64_t M = r->s.M, stride = M + 5;
  float *aim = xmalloc((size_t)(AIM_PARTS * stride) * sizeof *aim);
  memset(aim, 0xff, (size_t)(AIM_PARTS * stride) * sizeof *aim);
  for (int64_t m = 0; m < M; m++) {
    aim[AIM_EXPONENT * stride + m] = exponent_of(m);
    aim[AIM_TARGET * stride + m] = (float)target_of(m, r->s.N);
  }
  r->call.args.in[1] = (RowStat){fp32_buffer(&r->b, AIM_PARTS * stride, aim), stride, AIM_PARTS};
  free(aim);
}

static void head_dgrad(const Row *row) {
  const double factor = rstd_of(row) / row->D * row->in[1];
  for (int64_t n = 0; n < row->N; n++)
    row_store(row, 0, n,
              (double)u_of(row->m) * (double)row->product[n] - factor * (double)row->loads[0][n]);
}

static void head_dgrad_prepare(Rig *r) {
  float *u = floats(r->s.M);
  for (int64_t m = 0; m < r->s.M; m++) u[m] = u_of(m);
  r->call.args.row_scale = fp32_buffer(&r->b, r->s.M, u);
  free(u);
}

static void norm_dgrad(const Row *row) {
  const double factor = rstd_of(row) / row->D * row->in[1];
  for (int64_t n = 0; n < row->N; n++)
    row_store(row, 0, n,
              (double)row->product[n] - factor * (double)row->loads[0][n] +
                  (double)row->loads[1][n]);
}

static void absmax(const Row *row) {
  for (int64_t n = 0; n < row->N; n++)
    row->terms[0][n] = fabsf(row_store(row, 0, n, (double)row->product[n] / row->in[0]));
}

static void layer_norm(const Row *row) {
  const double mean = row->in[1] / row->D,
               r = 1 / sqrt(row->in[0] / row->D - mean * mean + (double)eps);
  for (int64_t n = 0; n < row->N; n++) {
    const double centred = (double)row->product[n] - mean * (double)row->columns[n];
    const float out = row_store(row, 0, n, r * centred);
    row->terms[0][n] = out * out;
    row->terms[1][n] = out;
  }
}

// ---- Gated activations

static void gated(const Row *row, float (*activation)(float gate, float up)) {
  const double r = rstd_of(row);
  const int64_t F = row->N / 2;
  for (int64_t pair = 0; pair < F; pair++) {
    const int64_t n = 2 * pair;
    const float gate = row_store(row, 0, n, r * (double)row->product[n]),
                up = row_store(row, 0, n + 1, r * (double)row->product[n + 1]);
    row_store(row, 1, feature_of_pair(pair, F), (double)activation(gate, up));
  }
}

static void gated_backward(const Row *row, void (*gradient)(float gate, float up, float dy,
                                                            float *dgate, float *dup)) {
  const double r = rstd_of(row);
  for (int64_t pair = 0; pair < row->N; pair++) {
    const int64_t feature = feature_of_pair(pair, row->N), n = 2 * pair;
    const float gate = row->loads[0][n], up = row->loads[0][n + 1];
    float dgate, dup;
    gradient(gate, up, (float)(r * (double)row->product[feature]), &dgate, &dup);
    row_store(row, 0, n, (double)dgate);
    row_store(row, 0, n + 1, (double)dup);
    row->terms[0][feature] = dgate * gate + dup * up;
  }
}

static float geglu(float gate, float up) {
  const double x = (double)gate, u = sqrt(2 / 3.141592653589793) * (x + 0.044715 * x * x * x);
  return (float)(x / 2 * (1 + tanh(u)) * (double)up);
}
static void geglu_gradient(float gate, float up, float dy, float *dgate, float *dup) {
  const double x = (double)gate, c = sqrt(2 / 3.141592653589793);
  const double t = tanh(c * (x + 0.044715 * x * x * x));
  const double slope = (1 + t) / 2 + x / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
  *dgate = (float)((double)dy * (double)up * slope);
  *dup = (float)((double)dy * x / 2 * (1 + t));
}

static void swiglu_row(const Row *row) {
  gated(row, swiglu);
}
static void swiglu_backward_row(const Row *row) {
  gated_backward(row, swiglu_backward);
}
static void geglu_row(const Row *row) {
  gated(row, geglu);
}
static void geglu_backward_row(const Row *row) {
  gated_backward(row, geglu_gradient);
}

// ---- rope

typedef struct RopeCase {
  int64_t M, K;
  int32_t H, KV, d, T;
  int32_t first;  // of args
  int64_t base;   // position that the table's row 0 holds
  double divisor; // of the angles that turn less than once in 8192 positions, as llama 3.1 has it
} RopeCase;

static const RopeCase rope_cases[] = {
    {130, 72, 2, 1, 64, 1, 0, 0, 1},         // every row the same position
    {1, 64, 2, 1, 64, 1, 8191, 0, 1},        // generation
    {333, 48, 4, 1, 48, 7, 0, 0, 1},         // sequences shorter than a chunk; rotated 240
    {1000, 328, 5, 1, 80, 77, 5, 0, 1},      // heads that no chunk starts with; rotated 480
    {999, 128, 4, 2, 128, 333, 0, 90000, 8}, // far out
    {4500, 200, 6, 3, 48, 4096, 300, 20000, 32},
    {8192, 256, 16, 4, 80, 4096, 0, 0, 32},
    {8192, 64, 8, 2, 64, 4096, 8200, 0, 32},
    {2112, 512, 3, 1, 128, 1056, 0, 131072 - 1056, 8},
};

static double frequency(const RopeCase *c, int64_t j) {
  const double turns = pow(500000, -2 * (double)j / (double)c->d);
  return turns * 8192 < 2 * 3.141592653589793 ? turns / c->divisor : turns;
}

// Exact angles: the table's rounding to fp16 is part of the error.
static void rope(const Row *row) {
  const RopeCase *c = row->user;
  const int64_t rotated = (c->H + c->KV) * c->d;
  const double r = rstd_of(row), position = (double)(c->base + c->first + row->m % c->T);
  for (int64_t j = 0; j < c->d / 2; j++) {
    const double angle = position * frequency(c, j), cosine = cos(angle), sine = sin(angle);
    for (int64_t n = 2 * j; n < rotated; n += c->d) {
      const double x = r * (double)row->product[n], y = r * (double)row->product[n + 1];
      row_store(row, 0, n, x * cosine - y * sine);
      row_store(row, 0, n + 1, y * cosine + x * sine);
    }
  }
  for (int64_t n = rotated; n < row->N; n++) row_store(row, 0, n, r * (double)row->product[n]);
}

static void rope_prepare(Rig *r) {
  const RopeCase *c = r->user;
  double *inv_freq = xmalloc((size_t)c->d / 2 * sizeof *inv_freq);
  for (int64_t j = 0; j < c->d / 2; j++) inv_freq[j] = frequency(c, j);
  RopeTable table = rope_table(c->base, c->first, c->T, c->d, inv_freq);
  r->call.loads[0] = (Matrix){buffer_new(&r->b, table.rows * table.cols, 2, table.values)->data,
                              table.rows, table.cols};
  r->split = (c->H + c->KV) * c->d; // q and k, and v
  r->call.args.params[ROPE_FIRST].i = c->first;
  r->call.args.params[ROPE_PERIOD].i = c->T;
  r->call.args.params[ROPE_HEAD_DIM].i = c->d;
  r->call.args.params[ROPE_ROTATED].i = (int32_t)r->split;
  printf("# heads %d + 2 x %d of %d, rows are positions %lld + m %% %d\n", (int)c->H, (int)c->KV,
         (int)c->d, (long long)(c->base + c->first), (int)c->T);
  free(inv_freq), free(table.values);
}

static void absmax_prepare(Rig *r) {
  r->call.args.params[ABSMAX_LEAST].f = 0.01f;
}

// ---- The table: a program and its formula; what else it needs, where it needs more

static const Case cases[] = {
    {.program = &fused_program_plain_nt, .row = plain},
    {.program = &fused_program_plain_nn, .row = plain},
    {.program = &fused_program_plain_tn, .row = plain},
    {.program = &fused_program_residual, .row = residual, .out = {ROW_SUM}},
    {.program = &fused_program_rope, .row = rope, .prepare = rope_prepare},
    {.program = &fused_program_swiglu, .row = swiglu_row, .scale = 1.5},
    // Logits of some 10, and such that the exponential of the largest overflows fp32.
    {.program = &fused_program_logits,
     .row = logits,
     .scale = 3,
     .scale_odd = 60,
     .out = {ROW_SOFTMAX},
     .without_out = true},
    {.program = &fused_program_probabilities,
     .row = probabilities,
     .scale = 3,
     .scale_odd = 20, // logits up to some 100
     .out = {ROW_SUM, ROW_SUM},
     .out_floor = 2e-5, // observed: 8.9e-6, fp32 at logits of 100
     .any_N = true,
     .prepare = probabilities_prepare},
    {.program = &fused_program_swiglu_backward,
     .row = swiglu_backward_row,
     .load_scale = {1.5},
     .out = {ROW_SUM},
     .out_floor = 2e-6,
     .in_place_of = 1},
    {.program = &fused_program_norm_dgrad, .row = head_dgrad, .prepare = head_dgrad_prepare},
    {.program = &fused_program_norm_dgrad_residual, .row = norm_dgrad, .in_place_of = 2},
    // The examples of kernels/README.md
    {.program = &fused_program_absmax,
     .row = absmax,
     .in = {{ROW_MAX, 0.5, 4}},
     .out = {ROW_MAX},
     .prepare = absmax_prepare},
    {.program = &fused_program_layer_norm,
     .row = layer_norm,
     .in = {{0}, {ROW_SUM, -0.3, 0.3}},
     .out = {ROW_SUM, ROW_SUM}},
    {.program = &fused_program_geglu, .row = geglu_row, .scale = 1.5},
    {.program = &fused_program_geglu_backward,
     .row = geglu_backward_row,
     .load_scale = {1.5},
     .out = {ROW_SUM},
     .out_floor = 2e-6,
     .in_place_of = 1},
};
enum { CASES = sizeof cases / sizeof *cases };

// ---- Tests

// What a test gets.
typedef struct Subject {
  Machine *machine;
  const Case *c;
  Shape only; // M 0: every shape
} Subject;

// The large shapes are there for the mainloop's rings. Programs on the CPU (tests/emulated), which
// has no mainloop, would take minutes for them.
static bool shape_pays(const Machine *m, Shape s) {
  return m->gpu.memory_bytes > 0 || s.M * s.N <= 4 << 20;
}

static Machine *machine_of(void **state) {
  Machine *m = ((const Subject *)*state)->machine;
  if (!m->usable) skip();
  return m;
}

static void test_case(void **state) {
  const Subject *t = *state;
  Machine *m = machine_of(state);
  if (t->c->row == rope) { // shapes of its own: N is heads
    for (size_t i = 0; i < sizeof rope_cases / sizeof *rope_cases; i++) {
      const RopeCase *c = &rope_cases[i];
      const Shape s = {c->M, (c->H + 2 * c->KV) * c->d, c->K};
      if (shape_pays(m, s)) check_case(m, t->c, s, c);
    }
  } else if (t->only.M) {
    check_case(m, t->c, t->only, NULL);
  } else {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
      if (shape_pays(m, shapes[i])) check_case(m, t->c, shapes[i], NULL);
  }
}

static void every_program_has_a_case(void **state) {
  (void)state;
  for (int name = 0; name < PROGRAMS; name++) {
    int i = 0;
    while (i < CASES && cases[i].program != fused_program((ProgramName)name)) i++;
    if (i == CASES) fail_msg("%s has no case", fused_program((ProgramName)name)->name);
  }
}

// One NaN in a row makes the largest of its tile NaN, and of no other.
static void a_maximum_keeps_nan(void **state) {
  Machine *m = machine_of(state);
  const Shape s = {130, 392, 64};
  const int64_t column = 300;
  const Case c = {.program = &fused_program_absmax,
                  .row = absmax,
                  .in = {{ROW_MAX, 0.5, 4}},
                  .out = {ROW_MAX},
                  .prepare = absmax_prepare};
  Rig r;
  rig_open(&r, m, &c, s, NULL);
  bench_reset(&r.b);
  const uint16_t nan = 0x7fc0;
  memory_write(&m->memory, (uint16_t *)(uintptr_t)r.call.B + column * s.K, &nan, sizeof nan);
  for (int tile = 0; tile < TILE_SHAPES; tile++) {
    const int64_t cols = c.program->kernels[tile].cols;
    r.call.args.out[0].parts = tile_parts((TileShape)tile, s.N);
    launch(&r, (TileShape)tile);
    float *got = bench_read(&r.b, r.call.args.out[0].data);
    for (int64_t t = 0; t < r.call.args.out[0].parts; t++)
      for (int64_t row = 0; row < s.M; row++)
        assert_int_equal(isnan(got[t * r.call.args.out[0].stride + row]) != 0, t == column / cols);
    free(got);
  }
  rig_close(&r);
}

// A recorded call is one kernel, and nothing beside it. The recording is not run.
static void expect_one_kernel(const Machine *m, const OpenProgram *open, TileShape tile,
                              const ProgramCall *call) {
  cudaGraph_t graph;
  size_t nodes = 0;
  CUDA_CHECK(cudaStreamBeginCapture(m->gpu.stream, cudaStreamCaptureModeThreadLocal));
  fused_launch(open, tile, call, m->gpu.stream);
  CUDA_CHECK(cudaStreamEndCapture(m->gpu.stream, &graph));
  CUDA_CHECK(cudaGraphGetNodes(graph, NULL, &nodes));
  assert_int_equal(nodes, 1);
  cudaGraphNode_t node;
  enum cudaGraphNodeType type;
  CUDA_CHECK(cudaGraphGetNodes(graph, &node, &nodes));
  CUDA_CHECK(cudaGraphNodeGetType(node, &type));
  assert_int_equal(type, cudaGraphNodeTypeKernel);
  CUDA_CHECK(cudaGraphDestroy(graph));
}

static void a_call_is_one_kernel(void **state) {
  const Machine *m = machine_of(state);
  enum { SIDE = 1024 };
  void *memory;
  CUDA_CHECK(cudaMalloc(&memory, SIDE * SIDE * 2));
  const Matrix square = {memory, SIDE, SIDE};
  const RowStat parts = {.data = memory, .stride = SIDE, .parts = 1};
  const ProgramCall call = {
      .M = SIDE,
      .N = SIDE,
      .K = SIDE,
      .A = memory,
      .B = memory,
      .loads = {square, square},
      .stores = {square, square},
      .args = {.in = {parts, parts}, .out = {parts, parts}, .columns = memory}};
  for (int i = 0; i < CASES; i++) {
    const OpenProgram open = program_open(m, cases[i].program);
    for (int tile = 0; tile < TILE_SHAPES; tile++)
      expect_one_kernel(m, &open, (TileShape)tile, &call);
  }
  CUDA_CHECK(cudaFree(memory));
}

int main(int argc, char **argv) {
  Machine machine;
  Subject subjects[CASES + 1];
  struct CMUnitTest tests[CASES + 3];
  Shape only = {0};
  bool known = argc < 2;
  for (int i = 0; i < CASES; i++) {
    subjects[i].c = &cases[i];
    tests[i] = (struct CMUnitTest){cases[i].program->name, test_case, NULL, NULL, &subjects[i]};
    known = known || strcmp(argv[1], cases[i].program->name) == 0;
  }
  if (argc > 3 || !known || (argc == 3 && !shape_read(argv[2], &only))) {
    fprintf(stderr, "usage: test_programs [NAME [MxNxK]]; N and K are multiples of 8. NAME:");
    for (int i = 0; i < CASES; i++) fprintf(stderr, " %s", cases[i].program->name);
    fprintf(stderr, "\n");
    return EXIT_FAILURE;
  }
  Error err;
  if (machine_open(&machine, &err)) {
    fprintf(stderr, "%s\n", err.text);
    return EXIT_FAILURE;
  }
  for (int i = 0; i <= CASES; i++) subjects[i].machine = &machine, subjects[i].only = only;
  static const struct CMUnitTest others[] = {cmocka_unit_test(every_program_has_a_case),
                                             cmocka_unit_test(a_maximum_keeps_nan),
                                             cmocka_unit_test(a_call_is_one_kernel)};
  for (int i = 0; i < 3; i++) {
    tests[CASES + i] = others[i];
    tests[CASES + i].initial_state = &subjects[CASES];
  }
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  alarm(300); // a kernel whose barriers do not meet never ends; all of this takes half a minute
  const int failed = cmocka_run_group_tests_name("programs", tests, NULL, NULL);
  gpu_close(&machine.gpu);
  return failed;
}
