// The end of a step on the GPU: the norm weights' gradients, the norm, AdamW, the compute copies;
// and a step captured in a graph.
#include "tests/gpu/params_rig.h"
#include "tests/support/shapes.h"

// A norm weight with the matrix that it is folded into, another with a tied embedding, and a matrix
// used plain.
enum { TENSORS = 5, TIED = 3 };

typedef struct Update {
  int64_t D, rows, V;
  bool grads_fp32;
  MomentType moments;
  MasterType masters;
  Start start[TENSORS];
  Side gpu, cpu, twin; // the last two have one backend
} Update;

static const AdamW hyper = {
    .learning_rate = 1e-2, .weight_decay = 0.1, .clip_norm = 1, ADAMW_AT(2)};

static float *copy_of(const void *x, int64_t n) {
  float *copy = xmalloc((size_t)n * sizeof *copy);
  memcpy(copy, x, (size_t)n * sizeof *copy);
  return copy;
}

// An array of the CPU backend.
static float *floats_of(void *array) {
  return array;
}

static void set_shapes(Update *u, ParamTensor *list) {
  const ParamTensor shapes[TENSORS] = {
      {.rows = 1, .cols = u->D, .norm = -1, .vector = true},
      {.rows = u->rows, .cols = u->D, .norm = 0},
      {.rows = 1, .cols = u->D, .norm = -1, .vector = true},
      {.rows = u->V, .cols = u->D, .norm = 2},
      {.rows = u->D, .cols = u->rows + 3, .norm = -1},
  };
  memcpy(list, shapes, sizeof shapes);
}

static bool is_folded(int i) {
  return i == 1 || i == TIED;
}
static bool is_norm(int i) {
  return i == 0 || i == 2;
}
static bool is_plain(int i) {
  return i >= TIED;
}
// Its master is bf16, and is what products read where it is used plain.
static bool is_narrow(const Update *u, int i) {
  return u->masters == MASTERS_BF16 && !is_norm(i);
}

static void update_open(Update *u, int64_t D, int64_t rows, int64_t V, bool grads_fp32,
                        MomentType moments, MasterType masters) {
  Spec spec = params_spec(D, V, moments, masters);
  spec.grads_fp32 = grads_fp32;
  *u = (Update){.D = D,
                .rows = rows,
                .V = V,
                .grads_fp32 = grads_fp32,
                .moments = moments,
                .masters = masters};
  u->cpu.be = u->twin.be = backend_cpu_create(&spec);
  u->gpu.be = gpu_backend(spec);
  u->gpu.bench.be = u->gpu.be;
  set_shapes(u, u->gpu.list), set_shapes(u, u->cpu.list), set_shapes(u, u->twin.list);
  for (int i = 0; i < TENSORS; i++) {
    const int64_t n = elements(&u->gpu.list[i]);
    u->start[i] = (Start){.master = named(n, 1, "W", i),
                          .m = named(n, 1e-3, "m", i),
                          .v = named(n, 1e-2, "v", i),
                          .grad = named(n, 0.1, "g", i),
                          .grad_folded = named(n, 0.1, "f", i)};
    if (is_norm(i)) u->start[i].master[7] = 0; // W wn says nothing of W
    for (int64_t j = 0; j < n; j++) u->start[i].v[j] = rounded(u->start[i].v[j] * u->start[i].v[j]);
  }
}

// All sides from the start.
static void place(Update *u) {
  params_new(&u->gpu, TENSORS, TIED, u->start, false);
  params_new(&u->cpu, TENSORS, TIED, u->start, false);
  params_new(&u->twin, TENSORS, TIED, u->start, false);
}

static void update_close(Update *u) {
  bench_free(&u->gpu.bench), bench_free(&u->cpu.bench), bench_free(&u->twin.bench);
  for (int i = 0; i < TENSORS; i++) {
    const Start *s = &u->start[i];
    free(s->master), free(s->m), free(s->v), free(s->grad), free(s->grad_folded);
  }
  u->cpu.be->services.destroy(u->cpu.be);
  u->gpu.be->services.destroy(u->gpu.be);
}

static StepResult step(Side *s) {
  Backend *be = s->be;
  ParamTensor *list = s->list;
  be->services.refresh(be, list, TENSORS);
  be->services.set_updates(be, 5);
  be->services.step_begin(be);
  be->grads_finish(be, list, TENSORS);
  be->services.set_hyper(be, &hyper);
  be->adamw(be, list, TENSORS);
  be->services.step_end(be);
  return be->services.step_result(be);
}

static void compare(Update *u, int i, const char *what, const void *got_at, const void *twin,
                    const void *reference, const float *start, double floor) {
  char name[64];
  snprintf(name, sizeof name, "%s of tensor %d, D %lld", what, i, (long long)u->D);
  const int64_t n = elements(&u->gpu.list[i]);
  float *got = bench_read(&u->gpu.bench, got_at), *t = copy_of(twin, n), *r = copy_of(reference, n);
  for (int64_t j = 0; j < n && start; j++) {
    got[j] -= start[j];
    t[j] -= start[j];
    r[j] -= start[j];
  }
  expect_near(name, got, t, r, n, floor);
  free(got), free(t), free(r);
}

static void check_copies(Update *u, int i) {
  const ParamTensor *t = &u->gpu.list[i];
  const int64_t n = elements(t);
  float *master = bench_read(&u->gpu.bench, t->master);
  if (t->compute.data) {
    float *copy = bench_read(&u->gpu.bench, t->compute.data), *expected = copy_of(master, n);
    round_all(expected, n);
    expect_same("compute", copy, expected, n);
    free(copy), free(expected);
  }
  if (t->folded.data) {
    float *copy = bench_read(&u->gpu.bench, t->folded.data), *expected = copy_of(master, n);
    float *norm = bench_read(&u->gpu.bench, u->gpu.list[t->norm].master);
    for (int64_t j = 0; j < n; j++) expected[j] = rounded(master[j] * norm[j % t->cols]);
    expect_same("folded", copy, expected, n);
    free(copy), free(expected), free(norm);
  }
  free(master);
}

static void check_kept(Update *u, int i, const grad_t *gradient_at, const float *start) {
  float *values = bench_read(&u->gpu.bench, gradient_at);
  expect_same("gradient", values, start, elements(&u->gpu.list[i]));
  free(values);
}

// The twin's folded fp32 masters become what their bf16 copies hold of them.
static void read_from_copies(Update *u) {
  for (int i = 0; i < TENSORS && u->masters == MASTERS_FP32; i++) {
    const ParamTensor *t = &u->twin.list[i];
    const float *wn = is_folded(i) ? u->start[t->norm].master : NULL;
    float *W = floats_of(t->master);
    for (int64_t j = 0; wn && j < elements(t); j++)
      if (wn[j % t->cols] != 0) W[j] = rounded(W[j] * wn[j % t->cols]) / wn[j % t->cols];
  }
}

// bf16 moments and masters are rounded with the same noise: where the sides differ, fp32 was near a
// threshold. `expected` is of the twin, whose norm weights have gradients of rounded copies, too.
// size: what the moment has on average, or twice a weight's step. Other noise would leave every
// third weight a step off. dwn: NULL, or the gradient of a norm weight's m in bf16, whose rounding
// counts `share`: where its sum in fp32 is near a tie, the sides differ by it.
static void check_rounded(Update *u, int i, const char *what, const void *got_at,
                          const void *expected_at, float size, const void *dwn_at, double share,
                          double bound) {
  const float *expected = expected_at, *dwn = dwn_at;
  const int64_t n = elements(&u->gpu.list[i]);
  float *got = bench_read(&u->gpu.bench, got_at);
  int64_t other = 0;
  for (int64_t j = 0; j < n; j++) {
    other += got[j] != expected[j];
    const float of_dwn = dwn ? 0x1p-7f * (float)share * fabsf(dwn[j]) : 0;
    if (!(fabsf(got[j] - expected[j]) <= 0x1p-7f * fabsf(expected[j]) + 1e-3f * size + of_dwn))
      fail_msg("%s[%lld] of tensor %d is %g, not %g", what, (long long)j, i, (double)got[j],
               (double)expected[j]);
  }
  const double part = (double)other / (double)n;
  printf("# %s of tensor %d in bf16: %.2f %% are a step off (bound %.0f %%)\n", what, i, 100 * part,
         100 * bound);
  assert_true(part <= bound + 1.0 / (double)n);
  free(got);
}

static void check_update(int64_t D, int64_t rows, int64_t V, bool grads_fp32, MomentType moments,
                         MasterType masters) {
  Update u;
  update_open(&u, D, rows, V, grads_fp32, moments, masters);
  place(&u);
  const StepResult expected = step(&u.cpu);
  u.cpu.be->services.set_updates(u.cpu.be, 5);
  u.cpu.be->services.step_begin(u.cpu.be);
  if (!grads_fp32) read_from_copies(&u);
  u.cpu.be->grads_finish(u.cpu.be, u.twin.list, TENSORS);
  for (int i = 0; i < TENSORS && !grads_fp32; i++) {
    const int64_t n = elements(&u.twin.list[i]);
    if (is_norm(i)) round_all(floats_of(u.twin.list[i].grad), n);
    memcpy(u.twin.list[i].master, u.start[i].master, (size_t)n * sizeof(float));
  }
  u.cpu.be->adamw(u.cpu.be, u.twin.list, TENSORS);

  StepResult got;
  RUN_TWICE(&u.gpu.bench, got = step(&u.gpu));
  printf("# norm %.9g, not %.9g on the CPU\n", got.grad_norm, expected.grad_norm);
  if (!(fabs(got.grad_norm / expected.grad_norm - 1) < (grads_fp32 ? 1e-5 : 1e-3)))
    fail_msg("the gradient norm is off");
  assert_true(got.applied);
  assert_int_equal(got.updates, 6);
  for (int i = 0; i < TENSORS; i++) {
    const ParamTensor *g = &u.gpu.list[i];
    const ParamTensor *c = &u.cpu.list[i], *t = &u.twin.list[i];
    if (is_norm(i)) compare(&u, i, "dwn", g->grad, t->grad, c->grad, NULL, 2e-6);
    if (is_plain(i)) check_kept(&u, i, g->grad, u.start[i].grad);
    if (is_folded(i)) check_kept(&u, i, g->grad_folded, u.start[i].grad_folded);
    // The norm that clips has rounded dwn on the GPU: 1e-4 or so of a difference.
    const double floor = grads_fp32 ? 1e-5 : 1e-3;
    if (moments == MOMENTS_BF16) {
      const double bound = grads_fp32 ? 0.02 : 0.1;
      const void *dwn = is_norm(i) && !grads_fp32 ? t->grad : NULL;
      check_rounded(&u, i, "m", g->m, t->m, 1e-3f, dwn, (1 - hyper.beta1) / expected.grad_norm,
                    bound);
      check_rounded(&u, i, "v", g->v, t->v, 1e-4f, NULL, 0, bound);
    } else {
      compare(&u, i, "m", g->m, t->m, c->m, NULL, floor);
      compare(&u, i, "v", g->v, t->v, c->v, NULL, 2 * floor);
    }
    // W is about 1 and its step 0.01: the step has 1e-5 of rounding.
    if (is_narrow(&u, i))
      check_rounded(&u, i, "W", g->master, t->master, 0.02f, NULL, 0, 0.01);
    else
      compare(&u, i, "step of W", g->master, t->master, c->master, u.start[i].master, 2e-4 + floor);
    check_copies(&u, i);
  }
  update_close(&u);
}

static void check_updates(MomentType moments, MasterType masters) {
  check_update(200, 300, 1003, false, moments, masters);
  check_update(200, 300, 1003, true, moments, masters);
  check_update(37, 129, 65, false, moments, masters);
  check_update(37, 129, 65, true, moments, masters);
  check_update(1024, 513, 4097, false, moments, masters);
}

TEST(the_norm_is_of_all_gradients_and_adamw_updates_every_tensor) {
  check_updates(MOMENTS_FP32, MASTERS_FP32);
  check_updates(MOMENTS_BF16, MASTERS_FP32);
}

TEST(bf16_masters_are_rounded_as_the_cpu_rounds_them) {
  check_updates(MOMENTS_FP32, MASTERS_BF16);
  check_updates(MOMENTS_BF16, MASTERS_BF16);
}

static void check_skipped(MasterType masters) {
  Update u;
  update_open(&u, 64, 100, 65, false, MOMENTS_FP32, masters);
  u.start[4].grad[17] = NAN;
  place(&u);
  bench_reset(&u.gpu.bench);
  const StepResult got = step(&u.gpu);
  assert_false(got.applied);
  assert_int_equal(got.updates, 5);
  for (int i = 0; i < TENSORS; i++) {
    float *master = bench_read(&u.gpu.bench, u.gpu.list[i].master);
    expect_same("master", master, u.start[i].master, elements(&u.gpu.list[i]));
    free(master);
  }
  update_close(&u);
}

TEST(a_gradient_that_is_not_finite_changes_nothing) {
  check_skipped(MASTERS_FP32);
  check_skipped(MASTERS_BF16);
}

static void check_refresh(MasterType masters) {
  Update u;
  update_open(&u, 37, 100, 65, false, MOMENTS_FP32, masters);
  place(&u);
  RUN_TWICE(&u.gpu.bench, u.gpu.be->services.refresh(u.gpu.be, u.gpu.list, TENSORS));
  for (int i = 0; i < TENSORS; i++) check_copies(&u, i);
  update_close(&u);
}

TEST(refresh_writes_the_compute_copies) {
  check_refresh(MASTERS_FP32);
  check_refresh(MASTERS_BF16);
}

// In several pieces, from any element on.
TEST(masters_are_read_as_they_were_written) {
  enum { ROWS = 3, COLS = 300001 };
  Update u;
  update_open(&u, 64, 100, 65, false, MOMENTS_FP32, MASTERS_BF16);
  const ParamTensor t = {
      .rows = ROWS,
      .cols = COLS,
      .master = buffer_of(&u.gpu.bench,
                          wide_or_bf16(&u.gpu.be->spec, computes_with_masters(&u.gpu.be->spec)),
                          (int64_t)ROWS * COLS, NULL)};
  float *values = xmalloc((size_t)ROWS * COLS * sizeof *values),
        *found = xmalloc((size_t)ROWS * COLS * sizeof *found);
  for (int64_t i = 0; i < ROWS * COLS; i++) values[i] = (float)rng_normal(5, (uint64_t)i);
  bench_reset(&u.gpu.bench);
  u.gpu.be->services.write_master(u.gpu.be, &t, 0, values, COLS + 1);
  u.gpu.be->services.write_master(u.gpu.be, &t, COLS + 1, values + COLS + 1, 2 * COLS - 1);
  u.gpu.be->services.read_master(u.gpu.be, found, &t, 5, 3 * COLS - 5);
  for (int64_t i = 0; i < ROWS * COLS; i++) values[i] = moment_round(values[i], MOMENT_NEAREST);
  expect_same("a master", found, values + 5, 3 * COLS - 5);
  free(values), free(found);
  update_close(&u);
}

// ---- Capture

static void captured_part(Backend *be, ParamTensor *list, const int32_t *tokens, stat_t *sumsq_,
                          act_t *x, act_t *logits, stat_t *s_, int64_t M) {
  const ParamTensor *E = &list[3];
  RowStat sumsq = {.data = sumsq_, .stride = M};
  HeadGradient g = {.p = operand_of(logits), .s = {.data = s_, .stride = M}};
  g.p.row_stride = padded_vocab(&(Spec){.V = E->rows});
  be->services.step_begin(be);
  be->embed(be, M, tokens, E->compute.data, operand_of(x), &sumsq);
  be->head_loss(be, M, operand_of(x), sumsq, E->folded, tokens, logits, 1.0 / (double)M, &g);
  be->down_wgrad(be, M, E->rows, E->cols, g.p, operand_of(x), E->grad_folded, false);
  be->embed_backward(be, M, tokens, x, E->grad, false);
  be->grads_finish(be, list, TENSORS);
  be->adamw(be, list, TENSORS);
}

TEST(a_captured_step_gives_the_same_bits) {
  enum { M = 64 };
  Update u;
  const int64_t padded = padded_vocab(&(Spec){.V = 1003});
  update_open(&u, 64, 100, 1003, false, MOMENTS_FP32, MASTERS_FP32);
  place(&u);
  int32_t tokens[M];
  for (int m = 0; m < M; m++) tokens[m] = m * m % 1003;
  int32_t *tokens_gpu = int32_buffer(&u.gpu.bench, M, tokens);
  act_t *x = bf16_buffer(&u.gpu.bench, M * 64, NULL),
        *logits = bf16_buffer(&u.gpu.bench, M * padded, NULL);
  stat_t *sumsq = fp32_buffer(&u.gpu.bench, M, NULL), *s = fp32_buffer(&u.gpu.bench, M, NULL);
  Backend *be = u.gpu.be;
  const cudaStream_t stream = cuda_of(be)->gpu.stream;

  bench_reset(&u.gpu.bench);
  be->services.set_updates(be, 0);
  be->services.set_hyper(be, &hyper);
  be->services.refresh(be, u.gpu.list, TENSORS);
  captured_part(be, u.gpu.list, tokens_gpu, sumsq, x, logits, s, M);
  be->services.step_end(be);
  const StepResult first = be->services.step_result(be);
  char **direct = bench_snapshot(&u.gpu.bench);

  cudaGraph_t graph;
  cudaGraphExec_t program;
  assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  captured_part(be, u.gpu.list, tokens_gpu, sumsq, x, logits, s, M);
  assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  assert_int_equal(cudaGraphInstantiate(&program, graph, 0), cudaSuccess);
  bench_reset(&u.gpu.bench);
  be->services.set_updates(be, 0);
  be->services.refresh(be, u.gpu.list, TENSORS);
  assert_int_equal(cudaGraphLaunch(program, stream), cudaSuccess);
  be->services.step_end(be);
  const StepResult second = be->services.step_result(be);
  bench_compare(&u.gpu.bench, direct, bench_snapshot(&u.gpu.bench));
  printf("# loss %.6f directly, %.6f from the graph\n", first.loss, second.loss);
  assert_memory_equal(&first.loss, &second.loss, sizeof first.loss);
  assert_int_equal(second.updates, 1);
  assert_true(second.applied);
  cudaGraphExecDestroy(program);
  cudaGraphDestroy(graph);
  update_close(&u);
}

// ---- Results that are read a step late

TEST(results_come_in_the_order_of_their_steps) {
  Update u;
  update_open(&u, 64, 100, 65, false, MOMENTS_FP32, MASTERS_FP32);
  place(&u);
  bench_reset(&u.gpu.bench);
  u.gpu.be->services.refresh(u.gpu.be, u.gpu.list, TENSORS);
  u.gpu.be->services.set_hyper(u.gpu.be, &hyper);
  for (int i = 0; i < 3; i++) {
    u.gpu.be->services.step_begin(u.gpu.be);
    u.gpu.be->grads_finish(u.gpu.be, u.gpu.list, TENSORS);
    u.gpu.be->adamw(u.gpu.be, u.gpu.list, TENSORS);
    u.gpu.be->services.step_end(u.gpu.be);
  }
  for (int i = 0; i < 3; i++)
    assert_int_equal(u.gpu.be->services.step_result(u.gpu.be).updates, i + 1);
  update_close(&u);
}
