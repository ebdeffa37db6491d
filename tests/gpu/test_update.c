// The end of a step on the GPU: the norm weights' gradients, the norm, AdamW, the compute copies;
// and a step captured in a graph.
#include "tests/gpu/gpu_test.h"

#include "kernels/cuda/cuda.h"
#include "kernels/gpu_backends.h"

// A norm weight with the matrix that it is folded into, another with a tied embedding, and a matrix
// used plain.
enum { TENSORS = 5 };

typedef struct Host { // one tensor's arrays, fp32
  float *master, *m, *v, *grad, *grad_folded, *compute, *folded;
} Host;

typedef struct Update {
  int64_t D, rows, V;
  bool grads_fp32;
  MomentType moments;
  MasterType masters;
  Backend *cpu, *gpu;
  Bench bench;
  ParamTensor on_gpu[TENSORS], on_cpu[TENSORS], twin[TENSORS];
  Host start[TENSORS], cpu_host[TENSORS], twin_host[TENSORS];
} Update;

static const AdamW hyper = {.learning_rate = 1e-2,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-8,
                            .weight_decay = 0.1,
                            .clip_norm = 1,
                            .gradient_scale = 1};

static float *copy_of(const float *x, int64_t n) {
  float *copy = xmalloc((size_t)n * sizeof *copy);
  memcpy(copy, x, (size_t)n * sizeof *copy);
  return copy;
}

static int64_t elements(const ParamTensor *t) {
  return t->rows * t->cols;
}

static float *named(int64_t n, double scale, const char *what, int tensor) {
  char name[32];
  snprintf(name, sizeof name, "%s %d", what, tensor);
  return random_bf16(n, scale, name);
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
  return i == 1 || i == 3;
}
static bool is_norm(int i) {
  return i == 0 || i == 2;
}
static bool is_plain(int i) {
  return i >= 3;
}
// Its master is bf16, and is what products read where it is used plain.
static bool is_narrow(const Update *u, int i) {
  return u->masters == MASTERS_BF16 && !is_norm(i);
}

static void host_list(Update *u, ParamTensor *list, Host *to) {
  set_shapes(u, list);
  for (int i = 0; i < TENSORS; i++) {
    const Host *from = &u->start[i];
    const int64_t n = elements(&list[i]);
    to[i] = (Host){
        .master = copy_of(from->master, n), .m = copy_of(from->m, n), .v = copy_of(from->v, n)};
    if (is_norm(i) || is_plain(i)) to[i].grad = copy_of(from->grad, n);
    if (is_folded(i)) to[i].grad_folded = copy_of(from->grad_folded, n);
    if (is_folded(i)) to[i].folded = copy_of(from->master, n);
    const bool shared = is_plain(i) && is_narrow(u, i);
    if (is_plain(i) && !shared) to[i].compute = copy_of(from->master, n);
    list[i].master = (master_t *)to[i].master;
    list[i].m = (moment_t *)to[i].m;
    list[i].v = (moment_t *)to[i].v;
    list[i].grad = (grad_t *)to[i].grad;
    list[i].grad_folded = (grad_t *)to[i].grad_folded;
    list[i].compute = operand_of((act_t *)(shared ? to[i].master : to[i].compute));
    list[i].folded = operand_of((act_t *)to[i].folded);
  }
}

static void host_free(Host *h) {
  free(h->master), free(h->m), free(h->v), free(h->grad), free(h->grad_folded);
  free(h->compute), free(h->folded);
}

static void *either_buffer(Update *u, bool fp32, int64_t n, const float *values) {
  return fp32 ? fp32_buffer(&u->bench, n, values) : bf16_buffer(&u->bench, n, values);
}
static void *gradient(Update *u, int64_t n, const float *values) {
  return either_buffer(u, u->grads_fp32, n, values);
}

static void gpu_list(Update *u) {
  set_shapes(u, u->on_gpu);
  for (int i = 0; i < TENSORS; i++) {
    ParamTensor *t = &u->on_gpu[i];
    const Host *from = &u->start[i];
    const int64_t n = elements(t);
    t->master = either_buffer(u, !is_narrow(u, i), n, from->master);
    t->m = either_buffer(u, u->moments == MOMENTS_FP32, n, from->m);
    t->v = either_buffer(u, u->moments == MOMENTS_FP32, n, from->v);
    if (is_norm(i)) t->grad = gradient(u, n, NULL); // written, not added to
    if (is_plain(i)) t->grad = gradient(u, n, from->grad);
    if (is_folded(i)) t->grad_folded = gradient(u, n, from->grad_folded);
    t->compute = operand_of(is_plain(i) && !is_narrow(u, i) ? bf16_buffer(&u->bench, n, NULL)
                            : is_plain(i)                   ? (act_t *)t->master
                                                            : NULL);
    t->folded = operand_of(is_folded(i) ? bf16_buffer(&u->bench, n, NULL) : NULL);
  }
}

static void update_open(Update *u, int64_t D, int64_t rows, int64_t V, bool grads_fp32,
                        MomentType moments, MasterType masters) {
  const OpsConfig config = {.D = D,
                            .F = 16,
                            .H = 1,
                            .KV = 1,
                            .d = 16,
                            .V = V,
                            .max_tokens = 64,
                            .max_positions = 64,
                            .rms_norm_eps = 1e-5f,
                            .moments = moments,
                            .masters = masters,
                            .inv_freq = {1}};
  const GpuOptions options = {
      .kernels = KERNELS_UNFUSED, .train = true, .grads_fp32 = grads_fp32, .gemm_cache = ""};
  Error err;
  *u = (Update){.D = D,
                .rows = rows,
                .V = V,
                .grads_fp32 = grads_fp32,
                .moments = moments,
                .masters = masters};
  u->cpu = backend_cpu_create(&config);
  u->gpu = backend_gpu_create(&config, &options, &err);
  if (!u->gpu) fail_msg("%s", err.text);
  u->bench.be = u->gpu;
  set_shapes(u, u->on_gpu);
  for (int i = 0; i < TENSORS; i++) {
    const int64_t n = elements(&u->on_gpu[i]);
    u->start[i] = (Host){.master = named(n, 1, "W", i),
                         .m = named(n, 1e-3, "m", i),
                         .v = named(n, 1e-2, "v", i),
                         .grad = named(n, 0.1, "g", i),
                         .grad_folded = named(n, 0.1, "f", i)};
    if (is_norm(i)) u->start[i].master[7] = 0; // W wn says nothing of W
    for (int64_t j = 0; j < n; j++) u->start[i].v[j] = rounded(u->start[i].v[j] * u->start[i].v[j]);
  }
}

static void update_close(Update *u) {
  bench_free(&u->bench);
  for (int i = 0; i < TENSORS; i++) {
    host_free(&u->start[i]);
    host_free(&u->cpu_host[i]);
    host_free(&u->twin_host[i]);
  }
  u->cpu->services.destroy(u->cpu);
  u->gpu->services.destroy(u->gpu);
}

static StepResult step(Backend *be, ParamTensor *list) {
  be->services.refresh(be, list, TENSORS);
  be->services.set_updates(be, 5);
  be->services.step_begin(be);
  be->grads_finish(be, list, TENSORS);
  be->services.set_hyper(be, &hyper);
  be->adamw(be, list, TENSORS);
  be->services.step_end(be);
  return be->services.step_result(be);
}

static void compare(Update *u, int i, const char *what, const void *got_at, const float *twin,
                    const float *reference, const float *start, double floor) {
  char name[64];
  snprintf(name, sizeof name, "%s of tensor %d, D %lld", what, i, (long long)u->D);
  const int64_t n = elements(&u->on_gpu[i]);
  float *got = bench_read(&u->bench, got_at), *t = copy_of(twin, n), *r = copy_of(reference, n);
  for (int64_t j = 0; j < n && start; j++) {
    got[j] -= start[j];
    t[j] -= start[j];
    r[j] -= start[j];
  }
  expect_near(name, got, t, r, n, floor);
  free(got), free(t), free(r);
}

static void check_copies(Update *u, int i) {
  const ParamTensor *t = &u->on_gpu[i];
  const int64_t n = elements(t);
  float *master = bench_read(&u->bench, t->master);
  if (t->compute.data) {
    float *copy = bench_read(&u->bench, t->compute.data), *expected = copy_of(master, n);
    round_all(expected, n);
    expect_same("compute", copy, expected, n);
    free(copy), free(expected);
  }
  if (t->folded.data) {
    float *copy = bench_read(&u->bench, t->folded.data), *expected = copy_of(master, n);
    float *norm = bench_read(&u->bench, u->on_gpu[t->norm].master);
    for (int64_t j = 0; j < n; j++) expected[j] = rounded(master[j] * norm[j % t->cols]);
    expect_same("folded", copy, expected, n);
    free(copy), free(expected), free(norm);
  }
  free(master);
}

static void check_kept(Update *u, int i, const grad_t *gradient_at, const float *start) {
  float *values = bench_read(&u->bench, gradient_at);
  expect_same("gradient", values, start, elements(&u->on_gpu[i]));
  free(values);
}

// The twin's folded fp32 masters become what their bf16 copies hold of them.
static void read_from_copies(Update *u) {
  for (int i = 0; i < TENSORS && u->masters == MASTERS_FP32; i++) {
    const ParamTensor *t = &u->twin[i];
    const float *wn = is_folded(i) ? u->start[t->norm].master : NULL;
    float *W = u->twin_host[i].master;
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
                          const float *expected, float size, const float *dwn, double share,
                          double bound) {
  const int64_t n = elements(&u->on_gpu[i]);
  float *got = bench_read(&u->bench, got_at);
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
  gpu_list(&u);
  host_list(&u, u.on_cpu, u.cpu_host);
  host_list(&u, u.twin, u.twin_host);
  const StepResult expected = step(u.cpu, u.on_cpu);
  u.cpu->services.set_updates(u.cpu, 5);
  u.cpu->services.step_begin(u.cpu);
  if (!grads_fp32) read_from_copies(&u);
  u.cpu->grads_finish(u.cpu, u.twin, TENSORS);
  for (int i = 0; i < TENSORS && !grads_fp32; i++) {
    const int64_t n = elements(&u.twin[i]);
    if (is_norm(i)) round_all(u.twin_host[i].grad, n);
    memcpy(u.twin_host[i].master, u.start[i].master, (size_t)n * sizeof(float));
  }
  u.cpu->adamw(u.cpu, u.twin, TENSORS);

  StepResult got;
  RUN_TWICE(&u.bench, got = step(u.gpu, u.on_gpu));
  printf("# norm %.9g, not %.9g on the CPU\n", got.grad_norm, expected.grad_norm);
  if (!(fabs(got.grad_norm / expected.grad_norm - 1) < (grads_fp32 ? 1e-5 : 1e-3)))
    fail_msg("the gradient norm is off");
  assert_true(got.applied);
  assert_int_equal(got.updates, 6);
  for (int i = 0; i < TENSORS; i++) {
    const ParamTensor *g = &u.on_gpu[i];
    const Host *c = &u.cpu_host[i], *t = &u.twin_host[i];
    if (is_norm(i)) compare(&u, i, "dwn", g->grad, t->grad, c->grad, NULL, 2e-6);
    if (is_plain(i)) check_kept(&u, i, g->grad, u.start[i].grad);
    if (is_folded(i)) check_kept(&u, i, g->grad_folded, u.start[i].grad_folded);
    // The norm that clips has rounded dwn on the GPU: 1e-4 or so of a difference.
    const double floor = grads_fp32 ? 1e-5 : 1e-3;
    if (moments == MOMENTS_BF16) {
      const double bound = grads_fp32 ? 0.02 : 0.1;
      const float *dwn = is_norm(i) && !grads_fp32 ? t->grad : NULL;
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
  gpu_list(&u);
  host_list(&u, u.on_cpu, u.cpu_host);
  host_list(&u, u.twin, u.twin_host);
  bench_reset(&u.bench);
  const StepResult got = step(u.gpu, u.on_gpu);
  assert_false(got.applied);
  assert_int_equal(got.updates, 5);
  for (int i = 0; i < TENSORS; i++) {
    float *master = bench_read(&u.bench, u.on_gpu[i].master);
    expect_same("master", master, u.start[i].master, elements(&u.on_gpu[i]));
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
  gpu_list(&u);
  RUN_TWICE(&u.bench, u.gpu->services.refresh(u.gpu, u.on_gpu, TENSORS));
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
      .rows = ROWS, .cols = COLS, .master = bf16_buffer(&u.bench, (int64_t)ROWS * COLS, NULL)};
  float *values = xmalloc((size_t)ROWS * COLS * sizeof *values),
        *found = xmalloc((size_t)ROWS * COLS * sizeof *found);
  for (int64_t i = 0; i < ROWS * COLS; i++) values[i] = (float)rng_normal(5, (uint64_t)i);
  bench_reset(&u.bench);
  u.gpu->services.write_master(u.gpu, &t, 0, values, COLS + 1);
  u.gpu->services.write_master(u.gpu, &t, COLS + 1, values + COLS + 1, 2 * COLS - 1);
  u.gpu->services.read_master(u.gpu, found, &t, 5, 3 * COLS - 5);
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
  g.p.row_stride = padded_vocab(&(OpsConfig){.V = E->rows});
  be->services.step_begin(be);
  be->embed(be, M, tokens, E->compute.data, operand_of(x), &sumsq);
  be->head_loss(be, M, operand_of(x), sumsq, E->folded, tokens, logits, 1.0 / (double)M, &g);
  be->wgrad(be, M, E->rows, E->cols, g.p, operand_of(x), E->grad_folded, false);
  be->embed_backward(be, M, tokens, x, E->grad, false);
  be->grads_finish(be, list, TENSORS);
  be->adamw(be, list, TENSORS);
}

TEST(a_captured_step_gives_the_same_bits) {
  enum { M = 64 };
  Update u;
  const int64_t padded = padded_vocab(&(OpsConfig){.V = 1003});
  update_open(&u, 64, 100, 1003, false, MOMENTS_FP32, MASTERS_FP32);
  gpu_list(&u);
  int32_t tokens[M];
  for (int m = 0; m < M; m++) tokens[m] = m * m % 1003;
  int32_t *tokens_gpu = int32_buffer(&u.bench, M, tokens);
  act_t *x = bf16_buffer(&u.bench, M * 64, NULL), *logits = bf16_buffer(&u.bench, M * padded, NULL);
  stat_t *sumsq = fp32_buffer(&u.bench, M, NULL), *s = fp32_buffer(&u.bench, M, NULL);
  Backend *be = u.gpu;
  const cudaStream_t stream = cuda_of(be)->gpu.stream;

  bench_reset(&u.bench);
  be->services.set_updates(be, 0);
  be->services.set_hyper(be, &hyper);
  be->services.refresh(be, u.on_gpu, TENSORS);
  captured_part(be, u.on_gpu, tokens_gpu, sumsq, x, logits, s, M);
  be->services.step_end(be);
  const StepResult first = be->services.step_result(be);
  char **direct = bench_snapshot(&u.bench);

  cudaGraph_t graph;
  cudaGraphExec_t program;
  assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  captured_part(be, u.on_gpu, tokens_gpu, sumsq, x, logits, s, M);
  assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  assert_int_equal(cudaGraphInstantiate(&program, graph, 0), cudaSuccess);
  bench_reset(&u.bench);
  be->services.set_updates(be, 0);
  be->services.refresh(be, u.on_gpu, TENSORS);
  assert_int_equal(cudaGraphLaunch(program, stream), cudaSuccess);
  be->services.step_end(be);
  const StepResult second = be->services.step_result(be);
  bench_compare(&u.bench, direct, bench_snapshot(&u.bench));
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
  gpu_list(&u);
  bench_reset(&u.bench);
  u.gpu->services.refresh(u.gpu, u.on_gpu, TENSORS);
  u.gpu->services.set_hyper(u.gpu, &hyper);
  for (int i = 0; i < 3; i++) {
    u.gpu->services.step_begin(u.gpu);
    u.gpu->grads_finish(u.gpu, u.on_gpu, TENSORS);
    u.gpu->adamw(u.gpu, u.on_gpu, TENSORS);
    u.gpu->services.step_end(u.gpu);
  }
  for (int i = 0; i < 3; i++) assert_int_equal(u.gpu->services.step_result(u.gpu).updates, i + 1);
  update_close(&u);
}
