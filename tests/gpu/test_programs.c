// Every epilogue program in every tile shape, against the CPU from the same bf16 inputs widened to
// fp32. The bound of each error is twice the error of a twin: the CPU's result rounded to bf16
// wherever the program stores a bf16 value. Usage: test_programs [NAME [MxNxK]]: one test alone,
// which is named after its program, in its own shapes or in this one.
#include "tests/gpu/program_formulas.h"

#include <unistd.h>

static const Shape shapes[] = {
    {1, 8, 8},         // a corner of one tile
    {77, 136, 72},     // tails in all three
    {333, 200, 48},    // less of K than a stage
    {1000, 1096, 328}, // stages that are no multiple of the ring
    {2112, 1536, 512}, // the last cluster has rows for half a block
    {4104, 3080, 200}, // 17 rows of cluster tiles: two groups of 8, and one
    {8192, 2048, 256}, // several tiles a block, so that every ring wraps
};

// ---- The table: a program and its formula; what else it needs, where it needs more

static const Case cases[] = {
    {.program = &fused_program_plain_nt, .row = plain},
    {.program = &fused_program_plain_nn, .row = plain},
    {.program = &fused_program_plain_tn, .row = plain},
    {.program = &fused_program_residual, .row = residual, .out = {ROW_SUM}},
    {.program = &fused_program_rope, .row = rope, .prepare = rope_prepare},
    {.program = &fused_program_swiglu, .row = swiglu_row, .scale = 1.5},
    {.program = &fused_program_probabilities,
     .row = probabilities,
     .scale = 3,
     .scale_odd = 10, // logits up to some 100: 230 would leave fp32's range
     .out = {ROW_SUM, ROW_SUM},
     .out_floor = 6e-5, // observed: 2.8e-5, fp32 at logits of 100
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
    // FP8
    {.program = &fused_program_residual_fp8,
     .row = residual_fp8,
     .out = {ROW_SUM},
     .copy_scale = 1,
     .copies_of_store = true,
     .row_scale_out = true,
     .in_place_of = 1},
    {.program = &fused_program_residual_promoted_fp8,
     .row = residual_fp8,
     .out = {ROW_SUM},
     .copy_scale = 1,
     .copies_of_store = true,
     .row_scale_out = true,
     .in_place_of = 1},
    {.program = &fused_program_rope_fp8, .row = rope, .prepare = rope_prepare},
    {.program = &fused_program_swiglu_fp8,
     .row = swiglu_row,
     .scale = 1.5,
     .copy_scale = 2,
     .largest_error = 1e-6},
    {.program = &fused_program_probabilities_fp8,
     .row = probabilities,
     .out = {ROW_SUM, ROW_SUM},
     .out_floor = 1e-2, // observed: 2.1e-3 at logits of 30, whose sums have some 14 bits
     .any_N = true,
     .prepare = probabilities_prepare},
    {.program = &fused_program_swiglu_backward_fp8,
     .row = swiglu_backward_row,
     .load_scale = {1.5},
     .out = {ROW_SUM},
     .out_floor = 2e-3,        // observed: 7.1e-4, of fp16 arithmetic
     .largest_error = 1.5e-3}, // observed: 5.1e-4
    // Outliers: y beyond 2^17, dz beyond 2^31.
    {.name = "swiglu_backward_fp8_of_outliers",
     .program = &fused_program_swiglu_backward_fp8,
     .row = swiglu_backward_row,
     .scale = 1e6,
     .load_scale = {150},
     .copy_scale = 0x1p-23f,
     .out = {ROW_SUM},
     .out_floor = 6e-3,        // observed: 2.8e-3, of a sum of 8 products that cancel
     .largest_error = 2.5e-3}, // observed: 7.6e-5; silu has fp16's 10 bits
    {.program = &fused_program_norm_dgrad_fp8, .row = norm_dgrad_fp8, .copies_of_store = true},
    {.program = &fused_program_norm_dgrad_residual_fp8,
     .row = norm_dgrad_fp8,
     .copies_of_store = true,
     .in_place_of = 2},
    {.program = &fused_program_norm_dgrad_residual_promoted_fp8,
     .row = norm_dgrad_fp8,
     .copies_of_store = true,
     .in_place_of = 2},
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
    // Logits of some 10, and such as are all at the cap.
    {.program = &fused_program_capped_logits,
     .row = capped_logits,
     .scale = 3,
     .scale_odd = 60,
     .out = {ROW_SOFTMAX}},
    {.program = &fused_program_capped_logits_fp8,
     .row = capped_logits,
     .scale = 3,
     .scale_odd = 60,
     .out = {ROW_SOFTMAX}},
    {.program = &fused_program_geglu, .row = geglu_row, .scale = 1.5},
    {.program = &fused_program_geglu_backward,
     .row = geglu_backward_row,
     .load_scale = {1.5},
     .out = {ROW_SUM},
     .out_floor = 2e-6,
     .in_place_of = 1},
};
enum { CASES = sizeof cases / sizeof *cases };

static const char *case_name(const Case *c) {
  return c->name ? c->name : c->program->name;
}

// ---- Tests

// What a test gets.
typedef struct Subject {
  Machine *machine;
  const Case *c;
  Shape only; // M 0: every shape
} Subject;

// The large shapes are there for the mainloop's rings. Programs on the CPU (tests/emulated), which
// has no mainloop, would take minutes for them, and a minute for those of a million elements.
static bool shape_pays(const Machine *m, Shape s) {
  return m->gpu.memory_bytes > 0 || s.M * s.N <= (first_tier() ? 1 << 17 : 4 << 20);
}

static Machine *machine_of(void **state) {
  return ((const Subject *)*state)->machine;
}

// FP8 programs are for Hopper alone.
static bool runs_somewhere(const Machine *m, const Program *program) {
  const OpenProgram open = program_open(m, program);
  bool somewhere = false;
  for (int tile = 0; tile < TILE_SHAPES; tile++)
    somewhere = somewhere || fused_runs_in(&open, tile);
  return somewhere;
}

static void test_case(void **state) {
  const Subject *t = *state;
  Machine *m = machine_of(state);
  if (!runs_somewhere(m, t->c->program)) skip();
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
    if (!fused_runs_in(&r.open, tile)) continue;
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

// So it does for the largest value of FP8 copies, in every program that writes them.
static void the_largest_copy_keeps_nan(void **state) {
  Machine *m = machine_of(state);
  for (int i = 0; i < CASES; i++) {
    Rig r;
    if (cases[i].program->copy_cols == 0) continue;
    rig_open(&r, m, &cases[i], (Shape){130, 384, 64}, NULL);
    bench_reset(&r.b);
    const uint8_t nan = 0x7f;
    memory_write(&m->memory, (void *)(uintptr_t)r.call.B, &nan, sizeof nan);
    for (int tile = 0; tile < TILE_SHAPES; tile++) {
      Scaling s;
      if (!fused_runs_in(&r.open, tile)) continue;
      for (int which = 0; which < 2; which++)
        r.call.args.out[which].parts = tile_parts((TileShape)tile, r.s.N);
      launch(&r, (TileShape)tile);
      memory_read(r.b.be, &s, r.call.args.copies, sizeof s);
      uint32_t largest = 0;
      for (int j = 0; j < MAXIMA; j++) largest = s.maxima[j] > largest ? s.maxima[j] : largest;
      if (largest <= 0x7f800000) fail_msg("%s: its bits are %08x", case_name(&cases[i]), largest);
    }
    rig_close(&r);
  }
}

// FP8's accumulators truncate: without promotion a sum of K = 32768 positive terms comes out 38 %
// short (kernels/cuda/gemm.h).
static void promoted_sums_of_one_sign_keep_their_size(void **state) {
  Machine *m = machine_of(state);
  if (!runs_somewhere(m, &fused_program_residual_promoted_fp8)) skip();
  const int64_t depths[] = {2048, 8192, 32768};
  for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
    const Shape s = {256, 256, depths[i]};
    const Case c = {.program = &fused_program_residual_promoted_fp8,
                    .row = residual_fp8,
                    .scale = 1,
                    .one_sign = true,
                    .out = {ROW_SUM},
                    .copy_scale = 1,
                    .row_scale_out = true};
    Rig r;
    rig_open(&r, m, &c, s, NULL);
    for (int tile = 0; tile < TILE_SHAPES; tile++) {
      if (!fused_runs_in(&r.open, tile)) continue;
      r.call.args.out[0].parts = tile_parts((TileShape)tile, s.N);
      bench_reset(&r.b);
      launch(&r, (TileShape)tile);
      float *got = bench_read(&r.b, r.call.stores[0].data);
      double sum = 0, expected = 0;
      for (int64_t j = 0; j < s.M * s.N; j++)
        sum += (double)got[j], expected += (double)r.reference[0][j];
      free(got);
      print_message("# K %lld, %d columns: %.2e short (observed 5.6e-3, bound 6e-3)\n",
                    (long long)s.K, (int)c.program->kernels[tile].cols, 1 - sum / expected);
      assert_true(fabs(1 - sum / expected) < 6e-3);
    }
    rig_close(&r);
  }
}

// What tile_choose names can be launched.
static void chosen_tiles_have_kernels(void **state) {
  (void)state;
  for (int name = 0; name < PROGRAMS; name++)
    for (int64_t N = 16; N < 200000; N *= 3)
      for (int64_t M = 1; M < 100000; M *= 7)
        for (int64_t K = 64; K < 200000; K *= 9)
          assert_non_null(fused_program((ProgramName)name)
                              ->kernels[tile_choose(MAINLOOP_WGMMA, (ProgramName)name, M, N, K)]
                              .kernel);
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
      if (fused_runs_in(&open, tile)) expect_one_kernel(m, &open, (TileShape)tile, &call);
  }
  CUDA_CHECK(cudaFree(memory));
}

int main(int argc, char **argv) {
  static const struct CMUnitTest others[] = {
      cmocka_unit_test(every_program_has_a_case),
      cmocka_unit_test(a_maximum_keeps_nan),
      cmocka_unit_test(the_largest_copy_keeps_nan),
      cmocka_unit_test(promoted_sums_of_one_sign_keep_their_size),
      cmocka_unit_test(chosen_tiles_have_kernels),
      cmocka_unit_test(a_call_is_one_kernel)};
  Machine machine;
  Subject subjects[CASES + 1];
  enum { OTHERS = sizeof others / sizeof *others };
  struct CMUnitTest tests[CASES + OTHERS];
  Shape only = {0};
  bool known = argc < 2;
  for (int i = 0; i < CASES; i++) {
    subjects[i].c = &cases[i];
    tests[i] = (struct CMUnitTest){case_name(&cases[i]), test_case, NULL, NULL, &subjects[i]};
    known = known || strcmp(argv[1], case_name(&cases[i])) == 0;
  }
  if (argc > 3 || !known || (argc == 3 && !shape_read(argv[2], &only))) {
    fprintf(stderr, "usage: test_programs [NAME [MxNxK]]; N and K are multiples of 8. NAME:");
    for (int i = 0; i < CASES; i++) fprintf(stderr, " %s", case_name(&cases[i]));
    fprintf(stderr, "\n");
    return EXIT_FAILURE;
  }
  Error err;
  if (machine_open(&machine, &err)) {
    fprintf(stderr, "%s\n", err.text);
    return EXIT_FAILURE;
  }
  for (int i = 0; i <= CASES; i++) subjects[i].machine = &machine, subjects[i].only = only;
  for (int i = 0; i < OTHERS; i++) {
    tests[CASES + i] = others[i];
    tests[CASES + i].initial_state = &subjects[CASES];
  }
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  alarm(300); // a kernel whose barriers do not meet never ends; all of this takes 90 seconds
  const int failed = cmocka_run_group_tests_name("programs", tests, NULL, NULL);
  gpu_close(&machine.gpu);
  return failed;
}
